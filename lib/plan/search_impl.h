/*
 * search_impl.h - what the search shares with its list of layouts and its model of cost
 */
#ifndef PLAN_SEARCH_IMPL_H
#define PLAN_SEARCH_IMPL_H

#include "plan/layer_cost.h"
#include "plan/search.h"

/* Layers of the stages of a pipeline. */
struct stage_cut {
    int n_stages;
    const int *first_layer; /* [n_stages + 1]; NULL: not possible */
};

struct search {
    const struct search_request *request;
    struct arena *arena;
    struct layer_cost_cache costs;
    struct stage_cut *cuts; /* by n_stages */
    size_t available;
};

/* A layout with what bounds and estimates are made of it. */
struct layout_candidate {
    struct layout layout;
    int n_micro_batches;
    int64_t bound_ns, estimate_ns;
    size_t bound_bytes, estimate_bytes;
    bool is_estimated, is_misfit; /* as compiled whole */
};

struct candidates {
    struct layout_candidate *items;
    int n, capacity;
};

/* All layouts that are possible, in lexicographic order. */
void search_list(const struct search *search, struct candidates *candidates);

/* Fill a candidate's bounds. Returns whether it is possible. */
bool search_bound(struct search *search, struct layout_candidate *candidate);

/* Fill its estimates, which are at least its bounds. Returns whether it is possible. */
bool search_estimate(struct search *search, struct layout_candidate *candidate);

#endif
