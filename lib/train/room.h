/*
 * room.h - how much memory this process may still take
 *
 * The least of what the machine has and what the control groups that this process is in allow, of
 * version 2 or 1, on every level. What files keep in memory counts as room: the kernel gives it up
 * when somebody asks, and a job that has read its data has a group full of it.
 */
#ifndef TRAIN_ROOM_H
#define TRAIN_ROOM_H

#include <stdint.h>

/* In bytes, 0 if there is none; -1 if the system does not say. */
int64_t room_bytes(void);

/* What the groups that are listed in a file like /proc/self/cgroup allow, mounted as in
 * /sys/fs/cgroup; -1: no limit. */
int64_t room_of_groups(const char *groups, const char *mount);

#endif
