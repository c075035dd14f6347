/*
 * sandbox.h - programs that a model wrote, run where they can do no harm
 *
 * A helper process is forked before this process has threads, a model or open files; it runs each
 * program in a child of its own under every layer that the machine has: namespaces (user, mount,
 * pid, net, ipc, uts; a root of its own with the system read-only and nothing of /home, and a
 * scratch folder in memory), Landlock (files are read-only but for that folder), seccomp (an
 * allow-list of system calls), and always limits of time, memory, processes, files and output.
 * Without namespaces there is no scratch folder: Landlock lets nothing be written. Without
 * namespaces and without Landlock with seccomp it refuses.
 *
 * A program has passed when its test ran to its end without an exception. The test runs in another
 * process (sandbox_driver.py), which gets of the program nothing but data of built-in types: what a
 * program does to its own interpreter does not reach the verdict. What remains: the program can
 * return what the test expects without computing it; errors of the kernel, and of CPython's JSON
 * reader and compiler, which see its text and its results in the judging process. A program without
 * a test has passed when its own process says so, which it can forge.
 */
#ifndef EVAL_SANDBOX_H
#define EVAL_SANDBOX_H

#include "base/err.h"
#include "base/str.h"

enum sandbox_outcome { SANDBOX_PASSED, SANDBOX_FAILED, SANDBOX_TIMED_OUT };

/* Layers of the sandbox; limits are always on, the others where they are requested. */
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

struct sandbox_program {
    const char *program; /* Python, which is not trusted */
    const char *given;   /* trusted definitions that the test may use (a benchmark's prompt) */
    const char *test;    /* trusted; NULL or "": none */
    const char *entry;   /* the name of the program's that the test sees; or NULL */
};

/*
 * Run a program and its test, for at most so many seconds after their interpreters have started.
 * The test passes arguments of built-in types, which are copied, with what was changed in them
 * copied back; a result of another type equals only itself. program and test together have to
 * compile as one text, too. Texts above 4 MiB fail. ERR_FAILED: the helper is gone.
 */
int sandbox_run(struct sandbox *sandbox, const struct sandbox_program *program, double deadline,
                enum sandbox_outcome *outcome, struct err *err);

/* "passed", "failed", "timed out" */
const char *sandbox_outcome_name(enum sandbox_outcome outcome);

#endif
