/*
 * death_notices_impl.h - how the watchers of several nodes notify each other of deaths
 *
 * They write to the file log/watchers in the job's folder, which all nodes share. Launchers
 * terminate ranks of other nodes as well, but Slurm only 30 s later (KillWait). A thread writes and
 * reads the file (once a second), so that a file server that hangs does not block a watcher. Each
 * line begins with the launch's number: lines of other launches in the same folder are ignored.
 */
#ifndef LAUNCH_WATCH_DEATH_NOTICES_IMPL_H
#define LAUNCH_WATCH_DEATH_NOTICES_IMPL_H

#include <stdint.h>

struct death_notices;

/* Start the thread. log_folder is borrowed until the process ends. NULL: not possible. */
struct death_notices *death_notices_open(const char *log_folder, uint64_t launch_id);

/* Post a line like "rank 3 on n2 died" for the other nodes. Only the first call has an effect. */
void death_notices_post(struct death_notices *notices, const char *text);

/*
 * The first line that this or another node's watcher has posted, or NULL. With wait_seconds the
 * file is read now, and the result awaited for up to that time.
 */
const char *death_notices_first(struct death_notices *notices, double wait_seconds);

/* Returns once the posted line is written, or after wait_seconds. */
void death_notices_flush(struct death_notices *notices, double wait_seconds);

#endif
