/*
 * micro_batch_sizes.h - sizes of micro-batches that make a pipeline's bubble short
 *
 * In 1f1b small micro-batches first and last fill and drain the pipeline sooner, and large ones
 * between them are computed in less time a sequence: DPP, "dynamic pipeline", of AscendSpeed, whose
 * lists are given by hand, with the search of MindSpeed's optimpipeline_solver. Lists rise and
 * fall: each size below the largest stands 0 to 3 times before and behind those of the largest,
 * which make up the sum. All largest sizes are tried; where there are more than five sizes up to
 * it, lists have five of them, evenly apart. A list's time is that of pipeline_simulate with the
 * costs of each size. Lists are simulated in the order of a lower bound until that exceeds the
 * best, or a number of steps is simulated. Pure: equal input gives an equal list on any rank.
 */
#ifndef PLAN_MICRO_BATCH_SIZES_H
#define PLAN_MICRO_BATCH_SIZES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

struct micro_batch_sizes_request {
    int n_ranks, n_chunks;   /* of the pipeline, scheduled as dynamic */
    int n_sequences;         /* the sum */
    int n_sizes;             /* sizes 1 .. n_sizes */
    const bool *is_left_out; /* [n_sizes]: size k + 1 cannot be; NULL: all can */
    /* [n_sizes][n_ranks * n_chunks]: of a micro-batch of k + 1 sequences, by stage */
    const int64_t *f, *i, *w;
    const int64_t *transfers; /* [n_sizes] */
};

struct micro_batch_sizes {
    int *sizes, n;      /* the list, in the arena */
    int64_t ns, bubble; /* as struct pipeline_timing has them: makespan and bubble */
    int even;           /* of lists of one size the best; 0: no size divides the sum */
    int64_t even_ns, even_bubble;
    int n_lists, n_simulated;
};

/* How long a list takes. Returns 0, or -1 as pipeline_build. */
int micro_batch_sizes_time(int64_t *ns, int64_t *bubble,
                           const struct micro_batch_sizes_request *request, const int *sizes, int n,
                           struct err *err);

/* The best list. Returns 0, or -1 and ERR_CONFIG where no list has the sum. */
int micro_batch_sizes_find(struct micro_batch_sizes *found,
                           const struct micro_batch_sizes_request *request, struct arena *arena,
                           struct err *err);

#endif
