/*
 * sandbox.h - programs that a model wrote, run where they can do no harm
 *
 * A helper process is forked before this process has threads, a model or open files; it runs each
 * program in a child of its own under every layer that the machine has: namespaces (user, mount,
 * pid, net, ipc, uts; a root of its own with the system read-only and nothing of /home), Landlock
 * (files are read-only but for a scratch folder), seccomp (no sockets, no signals or tracing of
 * others), and always limits of time, memory, processes, files and output. Without namespaces and
 * without Landlock with seccomp it refuses.
 *
 * A program has passed when it ran to its end without an exception: the interpreter then says a
 * nonce that no name in it leads to. An interpreter that is taken apart from within can't be kept
 * from telling lies about itself; it gets no further than its own verdict.
 */
#ifndef EVAL_SANDBOX_H
#define EVAL_SANDBOX_H

#include "base/err.h"
#include "base/str.h"

enum sandbox_outcome { SANDBOX_PASSED, SANDBOX_FAILED, SANDBOX_TIMED_OUT };

/* Layers; those not asked for are left out, and limits are always there. */
enum sandbox_layers {
    SANDBOX_NAMESPACES = 1,
    SANDBOX_LANDLOCK = 2,
    SANDBOX_SECCOMP = 4,
    SANDBOX_ALL = 7,
};

struct sandbox;

/*
 * Call it first, while there are no threads. Returns 0, or -1 and ERR_FAILED: no python3, or no
 * isolation.
 */
int sandbox_open(struct sandbox **sandbox, int layers, struct err *err);
void sandbox_close(struct sandbox *sandbox);

/* "user, mount, pid, net, ipc and uts namespaces; Landlock; ..." */
const char *sandbox_enforced(const struct sandbox *sandbox);
int sandbox_layers(const struct sandbox *sandbox);

/* Run a Python program, for at most so many seconds. ERR_FAILED: the helper is gone. */
int sandbox_run(struct sandbox *sandbox, const char *program, double deadline,
                enum sandbox_outcome *outcome, struct err *err);

/* "passed", "failed", "timed out" */
const char *sandbox_outcome_name(enum sandbox_outcome outcome);

#endif
