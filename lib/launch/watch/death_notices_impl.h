/*
 * death_notices_impl.h - how the watchers of several nodes hear that their job is breaking up
 *
 * By log/watchers in the job's folder, which all nodes share. Launchers tell other nodes, too, but
 * Slurm gives ranks that wait for a dead one 30 s (KillWait) to hear it. The file is written and
 * looked at (once a second) in a thread, so that a file server that hangs keeps no watcher from its
 * work. Lines carry the launch's number: those of other launches in the same folder are not ours.
 */
#ifndef LAUNCH_WATCH_DEATH_NOTICES_IMPL_H
#define LAUNCH_WATCH_DEATH_NOTICES_IMPL_H

#include <stdint.h>

struct death_notices;

/* Begin to look. log_folder stays the caller's, until the process ends. NULL: not possible. */
struct death_notices *death_notices_open(const char *log_folder, uint64_t launch_id);

/* Tell the other nodes, as "rank 3 on n2 died": the first time, and as far as it can be done. */
void death_notices_post(struct death_notices *notices, const char *text);

/*
 * What was told first, by us or by another node's watcher, or NULL. With wait_seconds it looks now,
 * and waits so long at most.
 */
const char *death_notices_first(struct death_notices *notices, double wait_seconds);

/* Returns once what was told is written, or after wait_seconds. The thread looks on until exit. */
void death_notices_flush(struct death_notices *notices, double wait_seconds);

#endif
