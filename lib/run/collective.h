/*
 * collective.h - the collectives of a program
 *
 * Their steps (moves, and what is computed around them) are written once and done in one of three
 * ways:
 *   on the comm thread, over host memory;
 *   on the comm thread, staged: operands lie in a device's memory and are copied to pinned host
 *     memory and back, so that any comm carries them and several ranks may share a device;
 *   enqueued: moves by comm_enqueue, sums and copies by the backend's kernels, all on a queue of
 *     the device; no thread waits for anything.
 */
#ifndef RUN_COLLECTIVE_H
#define RUN_COLLECTIVE_H

#include "comm/comm.h"
#include "comm/worker.h"
#include "kernels/kernels.h"
#include "ops/ops.h"
#include "program/order.h"

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
    int is_fast;    /* enqueued, and comm adds (reduce_scatter, all_reduce) */
    int peer;       /* send, receive: in the group */
    double seconds; /* from begin to end, all runs */
    /* What other streams must have done before: tickets of the same worker. */
    const struct worker *worker;
    uint64_t after[ORDER_MAX_AFTER];
    int n_after;
    int n_moves; /* begun in this run, the last of them under way */
    double began_at;
    struct comm_request request;

    /* Where operands lie on a device: whose kernels, which of its queues, and the places in its
     * queues when this was given (all before on the compute queue) and when it was done. */
    struct kernels *kernels; /* NULL: in host memory */
    int queue;
    struct device_mark *given, *done;
    struct device_mark *begun; /* enqueued and timed: with done, how long it took; else NULL */
    int is_untold;             /* and its last run's time is not in seconds yet */
    /* Staged: in, out and scratch are pinned host memory, and these the operands; else not given.
     */
    struct tensor device_in, device_out;
    enum collective_stage {
        COLLECTIVE_IDLE,
        COLLECTIVE_COPIES_IN,
        COLLECTIVE_MOVES,
        COLLECTIVE_COPIES_OUT
    } stage;
};

/* A worker_fn: a turn at struct collective *argument. */
int collective_run(void *argument, struct err *err);

/*
 * Give all of it to its queue, which must come after the operands' makers; waits for nobody.
 * Returns 0, or -1 and ERR_PEER.
 */
int collective_enqueue(const struct collective *c, struct err *err);

/* Bytes from a tensor's first element to behind its last: what staging copies. */
size_t collective_extent(const struct tensor *t);

/* Bytes of scratch for a collective of this shape over size ranks; is_fast: as struct collective has
 * it. */
size_t collective_scratch_bytes(const struct op_shape *shape, int size, int is_fast);

/* Whether comm may add what this kind sums. Scalars keep their order: they are little. */
int collective_may_be_fast(const struct op_shape *shape);

#endif
