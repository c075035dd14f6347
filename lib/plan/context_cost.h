/*
 * context_cost.h - what dividing sequences over ranks (parallel.cp) costs: how evenly attention is
 * divided, and what ranks send each other for it
 *
 * Bytes are counted from the collectives of the compiled programs, of which a rank of each
 * pipeline stage has one, so they are those of a run.
 */
#ifndef PLAN_CONTEXT_COST_H
#define PLAN_CONTEXT_COST_H

#include "layout/context.h"
#include "plan/plan.h"

/* Means over the model's layers, of a micro-batch. */
struct context_bytes {
    double forward, backward; /* that a rank sends to others of its sequences */
    double gathered_again;    /* keys and values that the backward gathers, as the rank has them:
                                 what a micro-batch under way would take if they were kept */
};

struct context_cost {
    struct context_cut cut;
    int64_t rows;   /* of a sequence, that a rank has */
    double balance; /* pairs of query and key, over all layers: the most of a rank over the mean;
                            of sequences of one document */
    struct context_bytes bytes;
    int n_under_way;    /* micro-batches of the shown rank, at most */
    double saved_bytes; /* gathered_again of all its layers and micro-batches under way */
};

/* Of a plan whose job has parallel.cp above 1. */
struct context_cost context_cost_of(const struct plan *plan);

#endif
