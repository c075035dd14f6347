/*
 * run_lock.h - one job in a run folder
 *
 * Two jobs in one folder would overwrite each other's checkpoints. The lock is flock(2) on the
 * folder's file `lock`: it goes with its process however that ends, is not inherited by what the
 * process starts, and reaches across hosts where the file system carries it (NFS does). The file
 * says who holds it; what it says decides nothing.
 */
#ifndef TRAIN_RUN_LOCK_H
#define TRAIN_RUN_LOCK_H

#include <stdbool.h>

#include "base/err.h"

/*
 * Make the folder (as file_share says), lock it, and write down who we are. Returns a descriptor to
 * be closed at the run's end; or -1 and ERR_CONFIG naming the holder's process and host, or
 * ERR_FAILED. A file system without locks gets a warning and is used.
 */
int run_lock(const char *folder, struct err *err);

/*
 * The same for processes that share the folder: as many as there are have it, none while one has it
 * alone. A file system without locks is refused: -1 and ERR_CONFIG.
 */
int run_lock_shared(const char *folder, struct err *err);

/* Whether another process has a folder's lock; false where that cannot be found out. */
bool run_lock_is_held(const char *folder);

/* The same of any file that flock locks. */
bool lock_is_held(const char *path);

#endif
