/*
 * stage.h - which layers a pipeline stage holds
 *
 * A model's layers are divided into n_stages contiguous stages, in order. The embedding is on the
 * first, the head and its loss on the last. Costs are integers of any one unit (ns, FLOPs).
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
 * Cut by cost: counts[n_stages] layers each, at least one. The largest stage's cost is minimal (a
 * pipeline runs at the pace of its slowest stage); among those cuts the sum of the squares of all
 * stages' costs is minimal (stages are as equal as possible); among those, counts is the first in
 * lexicographic order: later stages, which hold fewer micro-batches, get the remainder of layers.
 * Exact, in n_stages * n_layers^2 steps. Fails with ERR_CONFIG if n_stages is not in 1..n_layers.
 */
int stage_split(int *counts, int n_stages, const struct stage_costs *costs, struct arena *scratch,
                struct err *err);

/*
 * Whether counts divide n_layers into n_stages: 0, or -1 and ERR_CONFIG with the reason and the
 * nearest possible value.
 */
int stage_check(const int *counts, int n_counts, int n_stages, int n_layers, struct err *err);

/* The cost of one stage of a cut. */
int64_t stage_cost(const int *counts, int n_stages, int stage, const struct stage_costs *costs);

#endif
