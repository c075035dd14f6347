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

/* What a turn copies: a piece, or where bytes come due little by little a part of one. */
static size_t next_bytes(const struct copy *c)
{
    size_t rest = c->n_bytes - c->n_given, due = copy_due(c) - c->n_given;

    return due < min_size(rest, PIECE_BYTES / 4) ? 0 : min_size(due, PIECE_BYTES);
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
    if (rest) {
        size_t n = next_bytes(c);

        if (!n)
            return COMM_WAITING;
        give(c, device_host(), n);
    }
    if (c->n_given < c->n_bytes || !is_over(c))
        return COMM_MOVING;
    if (copy_due(c) < c->n_bytes)
        return COMM_WAITING;
    c->n_given = 0;
    copy_end(c);
    return COMM_DONE;
}

size_t copy_due(const struct copy *c)
{
    return c->bytes_per_s > 0
               ? throttle_due(c->throttle, c->bytes_per_s, c->base.ready_at, c->n_bytes)
               : c->n_bytes;
}

void copy_end(struct copy *c)
{
    if (c->bytes_per_s > 0)
        throttle_end(c->throttle, c->bytes_per_s, c->base.ready_at, c->n_bytes);
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
