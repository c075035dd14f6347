/*
 * hooks.h - commands of the user's for what happens in a run, beside training (hooks.*)
 *
 * A thread runs them one at a time, by sh -c, in a process group of its own at low priority
 * (guarded_command_impl.h), with the event as one line of JSON on standard input. Training only
 * puts events down. Of steps the newest that waits replaces the one before: the event then says how
 * many were left out ("left_out"); of the other kinds at most N_HOOKS_WAITING wait, and what comes
 * on top is left out and counted alike. A command that takes too long is ended with its group. The
 * first failure of a kind is a warning, and the number of all at the end.
 */
#ifndef TRAIN_HOOKS_H
#define TRAIN_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum hook_kind { HOOK_STEP, HOOK_EVAL, HOOK_SAVE, HOOK_END, N_HOOK_KINDS };

enum { N_HOOKS_WAITING = 64 };

struct hooks_options {
    const char *commands[N_HOOK_KINDS]; /* NULL: none */
    const char *log;                    /* file to which their output is appended */
    const char *run;                    /* "run" of each event */
    double seconds;                     /* of a command */
    double grace_seconds;               /* from SIGTERM to SIGKILL */
};

struct hooks;

/* *hooks is NULL if there are no commands. The texts are copied. ERR_DEVICE if there can be no
 * thread. Sets SIGCHLD to its default. */
int hooks_create(struct hooks **hooks, const struct hooks_options *options, struct err *err);

/* An event: members of a JSON object, "\"step\":3,...". Returns at once. NULL is fine. */
void hooks_put(struct hooks *hooks, enum hook_kind kind, const char *members);

/*
 * Let what waits be run, at most for `seconds` and while may_wait, called several times a second,
 * says so; then end the command under way. Warns of what was left out and failed. NULL is fine.
 */
void hooks_close(struct hooks *hooks, double seconds, bool (*may_wait)(void *context),
                 void *context);

#endif
