/*
 * replica_programs.h - programs of data-parallel ranks with different numbers of micro-batches
 *
 * A plan's programs are those of the rank with most (parallel.replica_micro_batches); others have
 * shorter lists of actions. They are compiled when they are asked for, once for each number.
 */
#ifndef PLAN_REPLICA_PROGRAMS_H
#define PLAN_REPLICA_PROGRAMS_H

#include "plan/plan.h"

struct replica_programs {
    const struct plan *plan;
    struct replica_entry *entries; /* in the arena */
    int n, capacity;
    struct arena arena;
};

/* The plan outlives it. */
void replica_programs_init(struct replica_programs *replicas, const struct plan *plan);
void replica_programs_release(struct replica_programs *replicas);

/* The programs [pp] of a data-parallel rank, which live as long as this; NULL on failure. */
const struct program *replica_programs_find(struct replica_programs *replicas, int data_rank,
                                            struct err *err);

/* The micro-batches of a data-parallel rank. */
int replica_micro_batches(const struct job *job, int data_rank);

#endif
