/*
 * search.h - the fastest layout of a job on a cluster that fits its memory
 *
 * Layouts are all ways to divide the ranks among tensor, pipeline and data parallel, with each
 * schedule, ZeRO stage, group and bucket that the job leaves open. What their layers keep, compute
 * again and send away is chosen where the job leaves it open, so that they fit the devices, or
 * memory.device_bytes. The search has three steps:
 *
 *   bound     of every layout, from the costs of a layer (layer_cost.h) without data parallel: a
 *             time that it cannot be below, bytes that it cannot be below
 *   estimate  in the order of bounds, until they are above the best estimates: costs of a layer
 *             with all that the layout has, and with few points of its front (keep_mix.h), through
 *             the pipeline's own lists (pipeline_simulate), and the bytes of every pipeline rank
 *   predict   the best estimates, fitted by memory_fit.h, compiled whole and simulated as
 *             `lmtrain plan` does for one layout: what is printed, and what decides
 *
 * With may_move the best estimates' cuts are then improved by moving single layers between stages
 * (search_moves.c): estimates of other cuts are not looked at.
 *
 * Bounds are never above estimates (test/plan/search_test.c), so the estimates that are found are
 * the best of all layouts. Nothing is random and nothing depends on a clock: equal input gives
 * equal output.
 *
 * Layouts whose times are within a share of each other are equal; among them the simplest is
 * first: fewer ranks, fewer axes in use, no tensor parallel across nodes, fewer pipeline ranks,
 * less than ZeRO 3.
 */
#ifndef PLAN_SEARCH_H
#define PLAN_SEARCH_H

#include "config/cluster.h"
#include "config/job_layout.h"
#include "device/pool.h"
#include "kernels/kernels.h"

struct search_request {
    const struct job *job; /* read; what is not searched is as it says */
    struct kernels *kernels;
    const struct cluster *cluster;
    int n_ranks;
    bool may_idle;       /* layouts of fewer ranks, on the first devices, are looked at, too */
    unsigned keys;       /* 1 << enum layout_key: to be searched; SCHEDULE: and chunks */
    unsigned schedules;  /* 1 << enum pipeline_kind: those that are tried */
    int max_tp;          /* 0: the devices that the fast link joins */
    double memory_share; /* of a device's memory; 0: PLAN_MEMORY_SHARE */
    double within;       /* times within this share are equal */
    int n_rows;          /* layouts that are predicted, if there are so many */
    enum search_objective objective;
    bool may_move; /* layers between the stages of the best, while their estimates are shorter */
    struct pool *pool; /* whose threads predict; NULL: the caller's */
    bool in_full;      /* estimate every layout: for tests */
};

struct search_row {
    struct layout layout;
    int64_t bound_ns, estimate_ns;
    int64_t ns; /* predicted: with host constant and jitter */
    int weight; /* times are compared times it: 1, or for OBJECTIVE_DEVICE_TIME the devices */
    size_t estimate_bytes, bytes;
    bool fits;
    /* Of the pipeline rank with most, a step: what is computed again, what copies to the host and
     * back are of. */
    int64_t recompute_ns, moved_bytes;
    double bubble; /* share of the step in which the busiest rank waits for other stages */
    double mfu, tokens_per_second;
};

/* The least that layouts with this value of a key come to, where none of them is a row. */
struct search_other {
    enum layout_key key;
    int value;        /* as layout_value */
    bool fits;        /* any of them; else */
    size_t bytes;     /* the least that they need */
    int64_t bound_ns; /* the least bound of those that fit, times their weight */
};

struct search_result {
    enum search_objective objective;
    int n_ranks;             /* as asked for; a row may have fewer */
    struct search_row *rows; /* [n_rows], the first is the best; in the arena */
    int n_rows;
    struct search_other *others;
    int n_others;
    int n_layouts, n_misfits, n_bounded, n_estimated; /* looked at; of which did not fit, were ruled
                                                         out by their bound, were estimated */
    int n_predicted;                                  /* compiled whole */
    int n_compiled;                                   /* programs of few layers */
    size_t available;                                 /* bytes of a device */
    struct layout smallest; /* where n_rows is 0: the layout that needs least, and its bytes */
    size_t smallest_bytes;
};

/* What the search makes small. */
double search_cost(const struct search_row *row);

/* Returns 0, also where nothing fits (n_rows 0); or -1 and ERR_CONFIG if no layout is possible. */
int search_layouts(struct search_result *result, const struct search_request *request,
                   struct arena *arena, struct err *err);

#endif
