/*
 * child.h - what a process says on standard error, and how it ends
 */
#ifndef SUPPORT_CHILD_H
#define SUPPORT_CHILD_H

#include <stddef.h>

/*
 * Run work(context) in a child process, which ends with 0 if work returns. said gets what it wrote
 * to standard error, cut to size. Returns its exit status, or minus the signal that ended it. Fails
 * the test where no child can be made.
 */
int child_run(void (*work)(void *context), void *context, char *said, size_t size);

#endif
