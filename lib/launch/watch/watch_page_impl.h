/*
 * watch_page_impl.h - the page that the ranks of a node find each other by, under srun and mpirun
 *
 * A file in /dev/shm whose name follows from the job and the node. Whoever comes first makes it,
 * whole at once, and the watcher that it forks holds a lock on it for as long as it lives: a page
 * without that lock is a leftover and is replaced. Each rank claims the next free slot, so nobody
 * needs to know how many there are. Once they do know, the last to come removes the name.
 */
#ifndef LAUNCH_WATCH_WATCH_PAGE_IMPL_H
#define LAUNCH_WATCH_WATCH_PAGE_IMPL_H

#include "progress/progress_page.h"

enum { WATCH_RANKS_MAX = 1024 };

struct watch_page {
    _Atomic uint32_t n_claimed;  /* with WATCH_CLOSED once the watcher takes no more */
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

/* Claim a slot. NULL: the page takes no more; another is to be opened, or there is no room. */
struct progress_slot *watch_page_claim(struct watch_page *page, int world_rank);

/* Remove the page's name, if it is still that of this one. */
void watch_page_unlink(const char *path, const struct watch_page *page);

/* Remove pages of this user in the same folder whose watcher is gone. */
void watch_page_sweep(const char *path);

#endif
