/*
 * preflight_impl.h - a preflight under way on one rank, and its checks
 */
#ifndef TRAIN_PREFLIGHT_IMPL_H
#define TRAIN_PREFLIGHT_IMPL_H

#include "comm/comm.h"
#include "progress/progress.h"
#include "report/progress_line.h"
#include "train/preflight.h"

struct preflight_check {
    const struct preflight_request *request;
    struct engine *engine;
    struct comm_group *world; /* NULL: one rank */
    struct preflight *result;
    struct preflight_rank *own;
    struct progress_slot *progress;
    struct progress_line line;
    struct arena *arena;
    bool is_throttled, is_flipped; /* by a fault on demand */
};

/* Whether a signal asks this rank to stop: checks then end early, in good order. */
bool preflight_is_stopped(void);

/* A sign of life for the watcher. */
void preflight_beat(struct preflight_check *check);

/* Products for so many seconds: fills the own rank's hash, errors, and speed, if it is better than
 * what is there. Local. Errors: ERR_DEVICE. */
int preflight_product(struct preflight_check *check, double seconds, struct err *err);

/* Patterns through free memory: the own rank's errors and tested_bytes. Local. */
int preflight_memory(struct preflight_check *check, struct err *err);

/* Disk, by the first rank of each node. Local. */
void preflight_disk(struct preflight_check *check);

/* Exchanges in nodes and between pairs of them: speeds of nodes and links, and the result's pairs
 * as far as this rank knows them. Collective. */
int preflight_links(struct preflight_check *check, struct err *err);

/* All ranks' parts [n_bytes] of all, on all. Collective. */
int preflight_gather(struct preflight_check *check, const void *own, void *all, size_t n_bytes,
                     struct err *err);

#endif
