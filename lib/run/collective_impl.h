/*
 * collective_impl.h - what the files of collectives share
 *
 * Step k of a kind does what is computed once k moves are done, and says in *call what is moved
 * next; it returns 0 if there is no next, or -1 and ERR_PEER. Sums and copies are done at once in
 * host memory, or given to the collective's queue: a step does not know which.
 */
#ifndef RUN_COLLECTIVE_IMPL_H
#define RUN_COLLECTIVE_IMPL_H

#include "run/collective.h"

/* Whether what is computed is given to the queue, with all operands and scratch in the device's
 * memory. */
bool collective_is_enqueued(const struct collective *c);

/* out = or += the tree sum of the terms; spare: room for the sum where it is added. */
void collective_sum(const struct collective *c, const struct kernels_sum *sum, void *spare);

/* Bytes of a dense tensor's elements; and elements of n that each of size ranks sums, where the
 * last parts may go beyond n. */
size_t collective_bytes_of(const struct tensor *t);
int64_t collective_part(int64_t n, int size);

void collective_copy_bytes(const struct collective *c, void *to, const void *from, size_t n_bytes);

/* Sums and gathers that go by node (collective_nodes.c): *over is the group of the move. */
int collective_step_by_node(const struct collective *c, int step, struct comm_call *call,
                            struct comm_group **over);

void collective_copy_columns(const struct collective *c, struct kernels_columns columns);

void collective_fill_zero(const struct collective *c, void *to, size_t n_bytes);

/*
 * Sequences of which each rank has a part (collective_sequence.c). Operands may be strided; what
 * lies between their rows is left alone.
 */
int collective_step_sequence(const struct collective *c, int step, struct comm_call *call);
size_t collective_sequence_scratch_bytes(const struct op_shape *shape, int size);
size_t collective_sequence_copied_bytes(const struct op_shape *shape, int size);

/* Of a slice (attributes.part_rows): which rows of the whole side it has, of all ranks. */
typedef void (*collective_rows_fn)(void *context, int64_t first, int64_t n_rows);
void collective_each_slice_rows(const struct collective *c, collective_rows_fn each, void *context);

/* What windows see of them (collective_window.c); likewise. */
int collective_step_window(const struct collective *c, int step, struct comm_call *call);
size_t collective_window_scratch_bytes(const struct op_shape *shape);
size_t collective_window_copied_bytes(const struct op_shape *shape);

/* Parts of kv heads among the ranks that share them (collective_heads.c); operands may be strided.
 */
int collective_step_heads(const struct collective *c, int step, struct comm_call *call);
size_t collective_heads_scratch_bytes(const struct op_shape *shape, int size);
size_t collective_heads_host_bytes(const struct op_shape *shape, int size);

/* Rows to the ranks that have their experts, and back (collective_experts.c), of dense operands. */
int collective_step_rows(const struct collective *c, int step, struct comm_call *call,
                         struct err *err);
size_t collective_rows_scratch_bytes(const struct op_shape *shape, int size);
size_t collective_rows_host_bytes(const struct op_shape *shape, int size);
size_t collective_rows_copied_bytes(const struct op_shape *shape, int size);

/* collective_strided.c: a part of each rank's, in something that has others between them. pack puts
 * one behind the other, at `to`, what goes to each rank, and returns it. */
bool collective_is_strided(const struct tensor *t);
void *collective_pack(const struct collective *c, void *to);
int collective_step_gather(const struct collective *c, int step, struct comm_call *call);

#endif
