/*
 * recheck_sum.h - is a sum of gradients over data-parallel ranks that of what they had?
 *
 * A wrong sum reaches all replicas, as its owner's shard is gathered. In a step with a recheck
 * (recheck.h) all ranks keep some elements of a bucket of gradients as they are when its
 * reduce-scatter begins, and gather them and the sum that they have of them; each adds them again,
 * in the same order. Which bucket, owner and elements rotates. Only where a sum is complete at
 * once: gradient_sum late, reductions fixed, no codec (parallel.compress), and no replicas of
 * shards (zero_group).
 */
#ifndef TRAIN_RECHECK_SUM_H
#define TRAIN_RECHECK_SUM_H

#include "train/recheck.h"

struct recheck_sum;

/* NULL where there is no such sum: all else takes that too. */
struct recheck_sum *recheck_sum_create(struct trainer *trainer);
void recheck_sum_destroy(struct recheck_sum *sum);

/* Before the step with this number. */
void recheck_sum_begin(struct recheck_sum *sum, int64_t step);

/* At its gate, collective: as recheck_gradients. */
int recheck_sum_compare(struct recheck_sum *sum, struct recheck_finding *finding, struct err *err);

#endif
