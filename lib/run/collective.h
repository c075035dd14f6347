/*
 * collective.h - the collectives of a program, on the comm thread
 */
#ifndef RUN_COLLECTIVE_H
#define RUN_COLLECTIVE_H

#include "comm/comm.h"
#include "comm/worker.h"
#include "ops/ops.h"

enum { COLLECTIVE_MAX_AFTER = 4 };

/*
 * One collective op with its operands in memory; must outlive its execution. Operands are dense but
 * those of gather_heads.
 */
struct collective {
    enum op_kind kind;
    struct op_attributes attributes;
    struct comm_group *group;
    struct tensor in, out;
    void *scratch;
    int first;      /* the output is written, not added to */
    int peer;       /* send, receive: in the group */
    double seconds; /* from begin to end, all runs */
    /* What other streams must have done before: tickets of the same worker. */
    const struct worker *worker;
    uint64_t after[COLLECTIVE_MAX_AFTER];
    int n_after;
    int n_moves; /* begun in this run, the last of them under way */
    double began_at;
    struct comm_request request;
};

/* A worker_fn: a turn at struct collective *argument. */
int collective_run(void *argument, struct err *err);

/* Bytes of scratch for a collective of this shape over size ranks. */
size_t collective_scratch_bytes(const struct op_shape *shape, int size);

#endif
