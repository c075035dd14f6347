/*
 * proc_impl.h - what /proc says of a process
 */
#ifndef LAUNCH_PROC_IMPL_H
#define LAUNCH_PROC_IMPL_H

#include <stddef.h>
#include <sys/types.h>

/* Of proc(5)'s /proc/PID/stat. */
struct proc_stat {
    char state; /* 'R', 'T' stopped, 'Z' and 'X' dead */
    pid_t parent;
    unsigned long long start_ticks; /* since boot */
    int wait_status; /* as wait() says it, of one that is dead; needs ptrace's rights */
};

/* Returns 0, or -1 if there is no such process. */
int proc_stat(pid_t pid, struct proc_stat *stat);

/* The first size - 1 bytes of /proc/PID/NAME, and a 0. Returns 0, or -1. */
int proc_read(pid_t pid, const char *name, char *text, size_t size);

/* Dead, whether or not its parent has taken note. */
int proc_is_dead(const struct proc_stat *stat);

#endif
