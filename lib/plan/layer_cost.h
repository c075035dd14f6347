/*
 * layer_cost.h - the time and the memory of one more layer, from compiling a few
 *
 * The search (search.h) prices thousands of layouts. What a layout costs is nearly linear in the
 * layers that a rank has, so two programs of one stage are compiled, of n and of n + 1 layers, and
 * simulated; their difference is the layer's. Models with layers of several kinds (experts, sliding
 * windows) have such a pair for each kind. Programs are those of a run: no other description of
 * the model is used.
 */
#ifndef PLAN_LAYER_COST_H
#define PLAN_LAYER_COST_H

#include "config/cluster.h"
#include "config/job.h"
#include "device/pool.h"
#include "kernels/kernels.h"

/* All that a layer's cost depends on, of what the search varies. */
struct layer_key {
    int tp, dp, ep, zero, zero_group, bucket_mb, micro_batch;
    enum recompute_mode recompute;
    enum parameter_hold hold;
    int is_split; /* the backward is in two, I and W */
    int island;   /* of the cluster, on whose devices */
};

struct layer_cost {
    int64_t f, i, w; /* ns of a micro-batch: forward, gradients of inputs, of weights */
    int64_t once;    /* ns of a step, beside its micro-batches: sums, gathers, update; not hidden */
    int64_t weight_bytes, gradient_bytes, state_bytes;
    int64_t slot_bytes;   /* for each micro-batch that is alive */
    int64_t handed_bytes; /* from I to W, for each that is between them */
};

struct layer_costs {
    const struct layer_cost *const *layers; /* by layer of the model */
    struct layer_cost ends;                 /* embedding and head together */
    int64_t fixed_bytes;                    /* scratch, buffers of collectives */
    int64_t scratch_bytes;                  /* of them */
    bool is_possible; /* else nothing above: the model is not divisible so, say */
};

/* Costs that were found, by key. */
struct layer_cost_cache {
    const struct job *job; /* resolved for any number of ranks: model, data, numerics */
    struct kernels *kernels;
    const struct cluster *cluster;
    struct arena *arena;
    struct pool *pool; /* whose threads compile; NULL: the caller's */
    struct layer_cost_entry **entries;
    int n, capacity;
    int *representatives; /* by layer: the layer whose cost it has */
    struct layer_measure *measures;
    int n_measures, measures_capacity;
    int n_compiled; /* programs */
};

/* The first layer after the model's first that is of this layer's kind; where the first is the only
 * one of its kind, the second layer, if there is one. */
int layer_cost_representative(const struct job *job, int layer);

/* Compile what the costs of these keys need, on all threads: layer_costs_find then has them. */
void layer_costs_prepare(struct layer_cost_cache *cache, const struct layer_key *keys, int n);

/* The costs of a key; compiled when they are asked for the first time: milliseconds. */
const struct layer_costs *layer_costs_find(struct layer_cost_cache *cache,
                                           const struct layer_key *key);

#endif
