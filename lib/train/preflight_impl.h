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

/* Seconds that a check other than the product may take: of a quick one at most one. */
double preflight_seconds(const struct preflight_check *check);

/* Seconds of the product; less when it is measured again. */
double preflight_product_seconds(const struct preflight_check *check);

/* A sign of life for the watcher. */
void preflight_beat(struct preflight_check *check);

/*
 * The checks, each of which fills figures of the own rank. A speed is kept if it is better than
 * what is there. All are local but links. They return 0, or -1 and ERR_DEVICE or ERR_PEER.
 */
int preflight_product(struct preflight_check *check, struct err *err); /* speed, hash, errors */
int preflight_memory(struct preflight_check *check, struct err *err);  /* errors, tested_bytes */
int preflight_bandwidth(struct preflight_check *check, struct err *err);
int preflight_disk(struct preflight_check *check, struct err *err); /* the first rank of a node */
/* Speeds of nodes and links, and the result's pairs. Collective. */
int preflight_links(struct preflight_check *check, struct err *err);

/* Whom a node meets in a round, 0..n_nodes - 2 + n_nodes % 2, of a tournament; -1: none. */
int preflight_partner(int node, int round, int n_nodes);

/* All ranks' parts [n_bytes] of all, on all. Collective. */
int preflight_gather(struct preflight_check *check, const void *own, void *all, size_t n_bytes,
                     struct err *err);

#endif
