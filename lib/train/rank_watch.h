/*
 * rank_watch.h - ranks of a run that are slower than their peers
 *
 * Now and then each rank's own time of the steps since (trainer_times) is gathered, and rank 0
 * compares them (stragglers.h); so are the seconds that it waited for collectives. On the host
 * every step is measured; on a GPU the one that follows a sample. A sample is due when a step is
 * over and a twentieth of train.straggler_seconds has passed, by rank 0's clock: callers agree on
 * it.
 */
#ifndef TRAIN_RANK_WATCH_H
#define TRAIN_RANK_WATCH_H

#include <stdbool.h>

#include "train/stragglers.h"
#include "train/trainer.h"

struct rank_watch;

/*
 * Collective. *watch is NULL if nothing is to be compared: by the job, or of one rank. A release
 * by NULL, as all calls below with NULL, does nothing. Returns 0, or -1 and ERR_PEER or
 * ERR_DEVICE.
 */
int rank_watch_create(struct rank_watch **watch, struct trainer *trainer, const struct job *job,
                      struct err *err);
void rank_watch_destroy(struct rank_watch *watch);

/* After each step, between steps. Whether a sample is due, which rank 0 alone says. */
bool rank_watch_step(struct rank_watch *watch);

/*
 * Take a sample. Collective. On rank 0 `report` is called for each rank that is a straggler from
 * now on, or no longer. Returns 0, or -1 and ERR_PEER.
 */
typedef void (*rank_watch_report_fn)(void *context, const struct straggler_finding *finding,
                                     const char *host);
int rank_watch_sample(struct rank_watch *watch, rank_watch_report_fn report, void *context,
                      struct err *err);

/* The slowest rank and its host, on rank 0; false as stragglers_slowest. */
bool rank_watch_slowest(const struct rank_watch *watch, struct straggler_finding *slowest,
                        const char **host);

/* The rank whose steps waited most for collectives, seconds of a step in the last sample. Rank -1:
 * there was none yet, or this is not rank 0. */
struct rank_exposed {
    int rank;
    double seconds;
};
struct rank_exposed rank_watch_most_exposed(const struct rank_watch *watch);

/*
 * Seconds of ops by kind (run_take_op_times): gather is collective, a part of each sample, and done
 * at a run's end; it returns 0, or -1 and ERR_PEER. take: on any rank the sums of all ranks' steps
 * that were gathered since the last call; watch is not NULL.
 */
struct rank_op_times {
    int64_t n_rank_steps; /* 0: there is nothing, as of GPUs */
    double seconds[N_OP_KINDS];
};
int rank_watch_gather_op_times(struct rank_watch *watch, struct err *err);
struct rank_op_times rank_watch_take_op_times(struct rank_watch *watch);

int rank_watch_n_stragglers(const struct rank_watch *watch);

#endif
