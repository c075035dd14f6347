/*
 * sandbox_impl.h - the layers of a sandbox, each as a call for the process that is to be kept in
 */
#ifndef EVAL_SANDBOX_IMPL_H
#define EVAL_SANDBOX_IMPL_H

#include <linux/filter.h>
#include <stdbool.h>

/* 0, or -1 where the kernel doesn't have it or refuses. */

/* Namespaces, and a root of the system's folders, read-only; /scratch is in memory. The pid
 * namespace is for children. folder: where the root is put together; stays empty outside. */
int sandbox_enter_namespaces(const char *folder);

/*
 * Root changes to the user "nobody", so that limits and permissions apply; other users stay the
 * same.
 */
int sandbox_leave_root(void);

/* Change the owner of a folder to that user. */
int sandbox_give_away(const char *folder);

/*
 * Files can be read where the system has its own, and written under scratch alone; NULL: nowhere,
 * so that nothing on a disk grows.
 */
int sandbox_landlock(const char *scratch);

/*
 * The system calls that CPython needs to compute, by a list of those that are allowed: no sockets,
 * processes (threads may be), signals to others, tracing, namespaces, mounts, keys, ...
 */
struct sandbox_filter {
    unsigned short n;
    struct sock_filter instructions[4096];
};

/*
 * Build, before sandbox_limit (it allocates), and load, as the last thing before execve; by the
 * same process, whose pid is in it, and which has set PR_SET_NO_NEW_PRIVS.
 */
int sandbox_seccomp_build(struct sandbox_filter *filter);
int sandbox_seccomp_load(const struct sandbox_filter *filter);

/*
 * CPU seconds, memory, files, and processes with threads: of a user namespace 64, otherwise 64 more
 * than the user has.
 */
int sandbox_limit(int seconds, bool has_namespaces);

void sandbox_close_files(int from);

#endif
