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
#include "kernels/kernels.h"
#include "ops/ops.h"
#include "run/stream_op.h"

/*
 * The ranks of a group on one node, and those with the same place on each node, where all nodes
 * have as many neighbours of the group (mesh_node_members); NULL: what is moved goes between any
 * two ranks.
 */
struct collective_nodes {
    struct comm_group *node, *across;
};

/*
 * One collective op with its operands in memory; must outlive its execution. Operands are dense but
 * where collective_takes_strides.
 */
struct collective {
    struct stream_op base;
    enum op_kind kind;
    struct op_attributes attributes;
    struct comm_group *group;
    struct collective_nodes nodes;
    struct tensor in, out;
    struct tensor choices; /* send_rows, return_rows: their second input; else not given */
    void *scratch;
    bool is_fast; /* enqueued, and comm adds (reduce_scatter, all_reduce) */
    int peer;     /* send, receive: in the group */
    int n_moves;  /* begun in this run, the last of them under way */
    struct comm_request request;

    struct kernels *kernels; /* of base.device, where that is given */
    /* Staged: in, out and scratch are pinned host memory, and these the operands; else not given.
     */
    struct tensor device_in, device_out, device_choices;
    void *host_tables; /* enqueued: collective_host_bytes of pinned host memory */
    enum collective_stage {
        COLLECTIVE_IDLE,
        COLLECTIVE_COPIES_IN,
        COLLECTIVE_MOVES,
        COLLECTIVE_COPIES_OUT
    } stage;
};

/* In host memory, and without what comes from a worker or a device, which is zero. */
struct collective collective_of(const struct op_shape *shape, struct comm_group *group,
                                void *scratch);

/* Bytes from a tensor's first element to behind its last: what staging copies. */
size_t collective_extent(const struct tensor *t);

/* Bytes of scratch for a collective of this shape over size ranks; is_fast: as struct collective
 * has it. */
size_t collective_scratch_bytes(const struct op_shape *shape, int size, bool is_fast);

/*
 * Whether a collective of this shape over size ranks, n of them on each node, sums within the nodes
 * first and then across, or gathers across and then within: moves that bring each byte to a node
 * once. No bit of a sum changes: n is a power of two, and the partial sum of a node is not rounded
 * (reduce_tree_as). What is small goes as one move; so do sums of which unrounded partial sums
 * would not be fewer bytes. enqueues: on a device's queue; there a library gathers so by itself,
 * and sums are of fp32. collective_nodes_scratch_bytes: in the place of collective_scratch_bytes,
 * if it may be either.
 */
bool collective_goes_by_node(const struct op_shape *shape, int size, int n, bool enqueues);
size_t collective_nodes_scratch_bytes(const struct op_shape *shape, int size, int n);

/* Bytes that the ranks of one node send to others, over a group of size ranks with n on each node:
 * the sum by node, or between any two ranks (all to all), and likewise what is gathered. */
int64_t collective_bytes_between_nodes(const struct op_shape *shape, int size, int n,
                                       bool sums_by_node, bool gathers_by_node);

/* Bytes of pinned host memory that it needs besides, where it is enqueued; 0 for most. */
size_t collective_host_bytes(const struct op_shape *shape, int size);

/* Whether operands may be strided: they are packed before they are moved. */
bool collective_takes_strides(enum op_kind kind);

/* Bytes that a rank of size copies between operands and what it sends and receives. */
size_t collective_copied_bytes(const struct op_shape *shape, int size);

/* Bytes that a rank sends of what windows see (gather_window, scatter_window): half of them to
 * either neighbour. */
size_t collective_window_sent_bytes(const struct op_shape *shape);

/* Bytes that a rank is expected to send and keep of rows that go to experts, or come back
 * (send_rows, return_rows), if all experts are chosen alike. */
size_t collective_rows_moved_bytes(const struct op_shape *shape, int size);

/* Whether comm may add what this kind sums. Scalars keep their order: they are little. */
int collective_may_be_fast(const struct op_shape *shape);

/* Whether an all_reduce of x over size ranks, whose order of sums is fixed, is one gather: then
 * each rank sums all of it. Else each sums a part, and these are gathered. */
bool collective_is_gathered(const struct tensor *x, int size);

#endif
