/*
 * algo_cache.h - which of a vendor's library's algorithms a run takes, the same on all ranks
 *
 * Which algorithm a product gets decides its bits, and measuring decides otherwise each time; so
 * one rank of each pipeline rank chooses for all, and what was chosen is written to
 * OUTPUT/kernels.txt, and into checkpoints' states, and given to the kernels before they are
 * prepared again. The CPU's kernels choose nothing: no file is made then.
 */
#ifndef TRAIN_ALGO_CACHE_H
#define TRAIN_ALGO_CACHE_H

#include "config/job.h"
#include "kernels/kernels.h"

#define ALGO_CACHE_FIELD "kernels" /* of a checkpoint's state */

/*
 * On every rank, before its kernels are prepared: load the algorithm choices from the run's folder,
 * or else from its newest checkpoint. Choices of another version of the library, or of another kind
 * of GPU, are reported and selected again: the numerics then differ, which a resume refuses without
 * --accept-numerics.
 */
void algo_cache_recall(const struct job *job, struct kernels *kernels);

/*
 * On every rank, when its programs are compiled and before they have memory: the libraries choose
 * for all of their ops (run_reserve), and then all forget what they chose and take what the first
 * rank of each pipeline rank did, of the lowest where several chose for a product. Collective, of
 * kernels that are alike on all ranks; 0, or -1 on all of them and ERR_PEER or a kernel's error.
 */
struct trainer;
int algo_cache_make(struct trainer *trainer, struct err *err);

/* On one rank, once all are prepared. Returns 0, or -1 and ERR_FAILED. */
int algo_cache_keep(const struct job *job, struct kernels *kernels, struct err *err);

#endif
