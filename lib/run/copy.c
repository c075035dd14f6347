/*
 * copy.c - see the header
 */
#include "run/copy.h"

#include "base/num.h"
#include "comm/comm.h"

/* Some tens of microseconds of a core's memory bandwidth: what others wait for their turn. */
#define PIECE_BYTES ((size_t)256 << 10)

static void give(struct copy *c, struct device *device, size_t n_bytes)
{
    device->ops->copy(device, c->base.queue, c->to + c->n_given, c->from + c->n_given, n_bytes);
    c->n_given += n_bytes;
}

static bool is_over(struct copy *c)
{
    return !c->base.device || stream_op_has_passed(&c->base);
}

static int turn(struct stream_op *op, struct err *err)
{
    struct copy *c = (struct copy *)op;
    size_t rest = c->n_bytes - c->n_given;

    (void)err;
    if (rest && op->device) {
        give(c, op->device, rest);
        op->device->ops->event_record(op->device, op->queue, op->done);
        return COMM_MOVING;
    }
    if (rest)
        give(c, device_host(), min_size(rest, PIECE_BYTES));
    if (c->n_given < c->n_bytes || !is_over(c))
        return COMM_MOVING;
    c->n_given = 0;
    return COMM_DONE;
}

static int enqueue(struct stream_op *op, struct err *err)
{
    struct copy *c = (struct copy *)op;

    (void)err;
    op->device->ops->copy(op->device, op->queue, c->to, c->from, c->n_bytes);
    return 0;
}

struct copy copy_of(void *to, const void *from, size_t n_bytes)
{
    static const struct mover mover = { turn, enqueue };

    return (struct copy){ .base.mover = &mover, .from = from, .to = to, .n_bytes = n_bytes };
}
