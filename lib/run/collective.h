/*
 * collective.h - the collectives of a program, on the comm thread
 */
#ifndef RUN_COLLECTIVE_H
#define RUN_COLLECTIVE_H

#include "comm/comm.h"
#include "ops/ops.h"

/* One collective op with its operands in memory; must outlive its execution. */
struct collective {
    enum op_kind kind;
    struct comm_group *group;
    struct tensor in, out;
    void *scratch;
    int first;      /* accumulated outputs start over */
    double seconds; /* of collective_run_timed, all runs */
};

/* A worker_fn: runs struct collective *argument. */
int collective_run(void *argument, struct err *err);

/* The same, and adds what it took to seconds. */
int collective_run_timed(void *argument, struct err *err);

/* Bytes of scratch for a collective of this shape over size ranks. */
size_t collective_scratch_bytes(const struct op_shape *shape, int size);

#endif
