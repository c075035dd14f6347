/*
 * stage.h - which layers a pipeline stage holds
 *
 * A model's layers are cut into n_stages contiguous runs, in order. The embedding comes with the
 * first, the head and its loss with the last. Costs are integers of any one unit (ns, FLOPs).
 */
#ifndef LAYOUT_STAGE_H
#define LAYOUT_STAGE_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

struct stage_costs {
    int n_layers;
    const int64_t *layers; /* [n_layers], each >= 0 */
    int64_t embedding;     /* added to the first stage */
    int64_t head;          /* added to the last */
};

/*
 * Cut by cost: counts[n_stages] layers each, at least one. The largest stage's cost is the least
 * there is (a pipeline runs at its slowest stage's pace); among those cuts the sum of the squares
 * of all stages' costs is the least (they are as equal as they can be); among those, counts is the
 * first in dictionary order: the layers that don't divide go to later stages, which hold fewer
 * micro-batches. Exact, in n_stages * n_layers^2 steps. Fails with ERR_CONFIG if n_stages is not in
 * 1..n_layers.
 */
int stage_split(int *counts, int n_stages, const struct stage_costs *costs, struct arena *scratch,
                struct err *err);

/*
 * Are given counts a cut of n_layers into n_stages? 0, or -1 and ERR_CONFIG with the reason and the
 * nearest that would work.
 */
int stage_check(const int *counts, int n_counts, int n_stages, int n_layers, struct err *err);

/* The cost of one stage of a cut. */
int64_t stage_cost(const int *counts, int n_stages, int stage, const struct stage_costs *costs);

#endif
