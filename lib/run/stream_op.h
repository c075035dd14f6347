/*
 * stream_op.h - an op that is given to a stream
 *
 * No kernel computes it: it moves bytes, between ranks (collective.h) or between the device's
 * memory and the host's (copy.h). Each kind of mover does so in two ways:
 *   on the comm thread, which takes turns at all that is given to it;
 *   enqueued: all of it is given to a queue of the device, and no thread waits for anything.
 * When it may begin, and what waits for it, is the same for all (program/order.h).
 */
#ifndef RUN_STREAM_OP_H
#define RUN_STREAM_OP_H

#include <stdbool.h>

#include "comm/worker.h"
#include "device/device.h"
#include "program/order.h"

struct stream_op;

struct mover {
    /* A turn at an op that has begun: an enum comm_progress, or -1 and ERR_PEER. */
    int (*turn)(struct stream_op *op, struct err *err);
    /* Give all of it to op->queue. Waits for nothing. Returns 0, or -1 and ERR_PEER. */
    int (*enqueue)(struct stream_op *op, struct err *err);
};

/* A struct collective or a struct copy begins with this; it must outlive its execution. */
struct stream_op {
    const struct mover *mover;
    int first;  /* the output is written, not added to */
    bool flips; /* a fault: on the comm thread, a bit of what comes out is another */

    /* On the comm thread: tickets of the same worker that come before. */
    const struct worker *worker;
    uint64_t after[ORDER_MAX_AFTER];
    int n_after;
    struct device_event *after_queued[ORDER_MAX_AFTER]; /* likewise, of what was enqueued */
    int n_after_queued;
    bool has_begun;
    double
        ready_at; /* all that it comes after was done: when it was given if that was known then */
    double began_at, ended_at;
    double seconds; /* from begin to end, all runs */

    /* Where values lie in a GPU's memory; else all NULL. The place in the compute queue when the op
     * was given, and in its own queue when it was done. */
    struct device *device;
    int queue;
    struct device_event *given, *done;
    struct device_event *begun; /* enqueued and timed: with done, how long it took; else NULL */
    bool is_untold;             /* and its last run's time is not in seconds yet */
};

/* A worker_fn: a turn at the struct stream_op *argument. */
int stream_op_run(void *argument, struct err *err);

/* Whether its own queue has come to `done` as it was last set. */
static inline int stream_op_has_passed(const struct stream_op *op)
{
    return op->device->ops->event_done(op->device, op->done);
}

#endif
