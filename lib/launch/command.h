/*
 * command.h - what another program says, within bounds
 */
#ifndef LAUNCH_COMMAND_H
#define LAUNCH_COMMAND_H

#include "base/str.h"

/*
 * Run argv (looked up on PATH, without a shell) and add what it writes to stdout and stderr, at
 * most 64 KiB, to said. Returns its exit status; -1 if it could not be run, was killed by a signal,
 * or was not done within timeout_seconds and killed.
 */
int command_capture(char *const *argv, double timeout_seconds, struct str *said);

#endif
