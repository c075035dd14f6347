/*
 * available_memory.h - how much memory this process can still allocate
 *
 * The minimum of the machine's available memory and the limits of all control groups (cgroup v1 or
 * v2, every level) of this process. The page cache counts as available: the kernel reclaims it on
 * demand, and after a job has read its data its cgroup is full of it.
 */
#ifndef TRAIN_AVAILABLE_MEMORY_H
#define TRAIN_AVAILABLE_MEMORY_H

#include <stdint.h>

/* In bytes, 0 if there is none; -1 if the system does not say. */
int64_t available_memory(void);

/* What the groups that are listed in a file like /proc/self/cgroup allow, mounted as in
 * /sys/fs/cgroup; -1: no limit. */
int64_t available_memory_of_groups(const char *groups, const char *mount);

#endif
