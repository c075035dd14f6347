/*
 * recheck.h - does each rank compute what another one computes from the same inputs?
 *
 * What a rank adds to a gradient reaches all replicas, so comparing them (replicas.h) cannot find a
 * wrong summand. Here, every train.recheck_every steps, each data-parallel rank computes the first
 * micro-batch of the step twice: before the step that of the next rank, by the program's entry
 * RECHECK, and in the step its own. Tokens, weights and random numbers are the same in both, so by
 * the bitwise law every op has the same result, and the ops' hashes (run_hash_ops) are compared
 * between the two ranks, before any parameter is updated. The update's ops are compared between
 * replicas after it, as far as they compute the same there.
 *
 * The rank at fault is the one whose op had the inputs that it should have had, but not the
 * output: with tp and pp an error spreads to other ranks through what they receive, and their first
 * difference is what they received. Which of two computations is right a third one decides, of one
 * more rank. Of two data-parallel ranks each computes twice, and one alone computes three times:
 * that finds what errs now and then, but cannot tell, or not even see, a rank that always errs in
 * the same way.
 *
 * A sum over ranks that is wrong is found by recheck_sum.h. Covered is what the step really used of
 * its first micro-batch, on every rank. A single error in another of M micro-batches or in another
 * step is not seen; one that repeats is seen sooner or later. Of what a rank updates alone, its
 * shards from zero 1 on, a piece is computed again by other ranks: recheck_optimizer.h. No bit of
 * training changes.
 */
#ifndef TRAIN_RECHECK_H
#define TRAIN_RECHECK_H

#include <stdbool.h>

#include "launch/excluded.h"
#include "train/trainer.h"

#define RECHECK_HOST_BYTES LAUNCH_HOST_BYTES

struct recheck;

/* Of a trainer that outlives it and calls recheck_begin and recheck_end. *recheck is NULL unless
 * train.recheck_every is given: all else takes that too. Collective. 0, or -1 and ERR_DEVICE or
 * ERR_PEER. */
int recheck_create(struct recheck **recheck, struct trainer *trainer, struct err *err);
void recheck_destroy(struct recheck *recheck);

/* By the trainer, around a step, once its scalars are written. Collective. 0, or -1 and an error of
 * running a program or of reading data. */
int recheck_begin(struct recheck *recheck, int64_t step, struct err *err);
void recheck_end(struct recheck *recheck);

/* Whether the step that has begun is checked. */
bool recheck_is_due(const struct recheck *recheck);

/* Who was found, the same on all ranks. */
struct recheck_finding {
    int is_found;                  /* -1 was returned because of it */
    int rank;                      /* -1: two ranks disagree, and no third could decide */
    char host[RECHECK_HOST_BYTES]; /* of the rank, as the launcher calls it */
    int has_others;                /* not all ranks are on that host */
};

/*
 * Compare what was computed: from the trainer's gate, and after the step. Collective over all
 * ranks, a few bytes each (of an update of shards, a few MiB to the next rank); nothing in steps
 * without a recheck. Returns 0, or -1 on every rank and ERR_PEER: who is at fault, and in which op;
 * or a rank that is gone.
 */
int recheck_gradients(struct recheck *recheck, struct recheck_finding *finding, struct err *err);
int recheck_update(struct recheck *recheck, struct recheck_finding *finding, struct err *err);

#endif
