/*
 * traffic.h - what given ops need where values lie in a device's memory
 *
 * Where comm enqueues (GPUs with NCCL each), collectives are given to the device's queues, and
 * compute and they wait for each other by events. Else they are staged: each stream has one block
 * of pinned host memory, of its largest collective's size, and the comm thread copies. Copies of a
 * program with a file are the comm thread's in either case (copies.c).
 */
#ifndef RUN_TRAFFIC_H
#define RUN_TRAFFIC_H

#include "base/err.h"

struct run;
struct resolved_op;

/* Whether what the run gives is enqueued, copies between spaces too; a rank alone always does. */
int traffic_is_enqueued(const struct run *run);

/* After resolve: fill what of a given op is the device's; nothing to do on the host. Returns
 * 0, or -1 and ERR_DEVICE. Release: after all that was given is done, and also after a failure. */
int traffic_create(struct run *run, struct err *err);
void traffic_release(struct run *run);

/* Give an op, its function's `index`-th, to its queue, after all that its operands' users were
 * given. 0, or -1 and ERR_PEER. */
int traffic_enqueue(struct run *run, struct resolved_op *op, int index, struct err *err);

/* What the compute queue is given from now on comes after the op. */
void traffic_before_compute(struct run *run, const struct resolved_op *op);

/* Whether the op, as it was last given, is done; and wait for it. 0, or -1 and ERR_PEER. */
int traffic_is_done(const struct run *run, const struct resolved_op *op);
int traffic_wait(struct run *run, const struct resolved_op *op, struct err *err);

/* Where ops are timed, at an entry's end: into each collective's seconds, which were not waited for
 * before. 0, or -1 and ERR_PEER. */
int traffic_tell_times(struct run *run, struct err *err);

#endif
