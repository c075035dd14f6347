/*
 * stream_op.c - on the comm thread: when an op begins, and how long it took
 */
#include "run/stream_op.h"

#include "base/clock.h"
#include "comm/comm.h"

/* Whether all have come that this one is after. */
static bool may_begin(const struct stream_op *op)
{
    for (int i = 0; i < op->n_after; i++)
        if (!worker_done(op->worker, op->after[i]))
            return false;
    for (int i = 0; i < op->n_after_queued; i++)
        if (!op->device->ops->event_done(op->device, op->after_queued[i]))
            return false;
    return !op->given || op->device->ops->event_done(op->device, op->given);
}

int stream_op_run(void *argument, struct err *err)
{
    struct stream_op *op = argument;

    if (!op->has_begun) {
        if (!may_begin(op))
            return COMM_WAITING;
        op->began_at = clock_seconds();
        if (op->n_after || op->given || op->ready_at <= 0)
            op->ready_at = op->began_at;
        op->has_begun = true;
    }
    int progress = op->mover->turn(op, err);
    if (progress != COMM_DONE)
        return progress;
    op->has_begun = false;
    op->ended_at = clock_seconds();
    op->seconds += op->ended_at - op->began_at;
    return COMM_DONE;
}
