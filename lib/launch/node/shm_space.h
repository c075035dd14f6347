/*
 * shm_space.h - whether shared memory suffices for a job's ranks, before they start
 *
 * Under MPI ranks of one node talk through files in a folder of shared memory, /dev/shm nearly
 * always. They are mapped sparsely and filled later: where the folder is too small (Docker gives 64
 * MiB), a rank dies of SIGBUS in the midst of its first exchange. So a node's daemon or watcher
 * checks here before its ranks use them.
 */
#ifndef LAUNCH_NODE_SHM_SPACE_H
#define LAUNCH_NODE_SHM_SPACE_H

#include <stdint.h>

#include "base/err.h"

/* What n_ranks of one node take in shared memory, with what PMIx and our own pages need. Pure. */
uint64_t shm_space_needed(int n_ranks);

/*
 * Whether `free_bytes` of `total_bytes` in folder are enough for n_ranks of one node. ERR_DEVICE
 * says what is needed, what is there and what to do. Pure.
 */
int shm_space_judge(const char *folder, int n_ranks, uint64_t free_bytes, uint64_t total_bytes,
                    struct err *err);

/*
 * The same, asking the file system of folder (that of job_folder_parent, on the node in question).
 * A folder whose file system cannot be queried is no error: creating the first file in it reports
 * more.
 */
int shm_space_check(const char *folder, int n_ranks, struct err *err);

/* The same for ranks that will have this environment, which sets Open MPI's sizes, and not ours. */
int shm_space_check_for(const char *folder, int n_ranks, char *const *environment, struct err *err);

#endif
