/*
 * watch_page_impl.h - the page by which the ranks of a node find their watcher, under srun and
 * mpirun
 *
 * A file in /dev/shm whose name follows from the job and the node. Its life, with ranks A and B of
 * a node:
 *
 *     1. A finds no file. It makes one without a name (O_TMPFILE), of its full size, locks it, and
 *        gives it its name by linkat: other processes see the page complete and locked, or not at
 *        all.
 *     2. If B was faster, linkat fails with EEXIST; A drops its own page and opens B's.
 *     3. A forks the watcher, which inherits the lock and keeps it as long as it lives. A page that
 *        is not locked is a leftover of a watcher that was killed: it is removed (under flock, so
 *        that only one process does so), and the rank begins again at 1.
 *     4. Each rank claims the next slot by incrementing n_claimed, since the number of ranks is not
 *        known yet, and writes its pid last, from which on it is watched.
 *     5. Once PMIx has reported the number, the last rank to pass watcher_join removes the name.
 *     6. When all ranks have ended or left, the watcher sets WATCH_CLOSED in n_claimed by
 *        compare-and-swap. If a rank claims a slot at that moment, one of both fails: the watcher
 *        stays for the new rank, or the rank finds the page closed and makes a new one.
 */
#ifndef LAUNCH_WATCH_WATCH_PAGE_IMPL_H
#define LAUNCH_WATCH_WATCH_PAGE_IMPL_H

#include "progress/progress_page.h"

enum { WATCH_RANKS_MAX = 1024 };

struct watch_page {
    _Atomic uint32_t n_claimed;  /* with WATCH_CLOSED once no more slots are given */
    _Atomic uint32_t n_joined;   /* of local_size: ranks that are past launch_join */
    _Atomic uint32_t world_size; /* 0 until a rank knows it */
    _Atomic uint64_t launch_id;  /* of a launch with other nodes; 0: none, or not known yet */
    uint64_t inode;              /* which file it is */
    _Alignas(64) union progress_place places[WATCH_RANKS_MAX];
    _Atomic int64_t log_starts[WATCH_RANKS_MAX]; /* where this job's part of a log begins, or -1 */
};

#define WATCH_CLOSED (1u << 31)

/* The page's path for this process: from PMIx's namespace, Slurm's job, node and namespaces. */
int watch_page_path(char *path, size_t size, struct err *err);

/*
 * Map the page of that path, making it if need be. *lock_fd becomes the locked descriptor if this
 * process made it, to be kept by the watcher that it forks and closed in the rank; else -1.
 */
int watch_page_open(const char *path, struct watch_page **page, int *lock_fd, struct err *err);
void watch_page_close(struct watch_page *page);

/* Claim a slot. NULL: the page is closed and another is to be opened, or all slots are taken. */
struct progress_slot *watch_page_claim(struct watch_page *page, int world_rank);

/* Remove the page's name, if it is still that of this one. */
void watch_page_unlink(const char *path, const struct watch_page *page);

/* Remove pages of this user in the same folder whose watcher is gone. */
void watch_page_sweep(const char *path);

#endif
