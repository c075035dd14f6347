/*
 * collective.c - moves between ranks, and what is computed around them
 *
 * A collective is a row of moves, most often one, each a call of comm. Sums are moved data plus a
 * fixed tree of adds (comm/reduce.h), so their bits depend on the ranks' order alone: not on how a
 * sum is divided among them.
 */
#include "run/collective_impl.h"

#include <string.h>

#include "comm/reduce.h"

/* Up to so much every rank gathers all terms and sums them itself: one move in the place of two. */
#define GATHERED_BYTES_MAX ((size_t)128 << 10)

size_t collective_bytes_of(const struct tensor *t)
{
    return (size_t)tensor_elements(t) * dtype_bytes(t->dtype);
}

int64_t collective_part(int64_t n, int size)
{
    return (n + size - 1) / size;
}

bool collective_is_gathered(const struct tensor *x, int size)
{
    return (size_t)size * collective_bytes_of(x) <= GATHERED_BYTES_MAX;
}

static size_t all_reduce_scratch_bytes(const struct tensor *x, int size)
{
    int64_t n = tensor_elements(x), padded = collective_part(n, size) * size;

    if (collective_is_gathered(x, size))
        return (size_t)size * collective_bytes_of(x);
    return (size_t)(padded > n ? 2 * padded : n) * dtype_bytes(x->dtype);
}

int collective_may_be_fast(const struct op_shape *shape)
{
    return !collective_is_strided(&shape->in[OPS_FIRST]) &&
           (shape->kind == OP_REDUCE_SCATTER || shape->kind == OP_ALL_REDUCE) &&
           (shape->out[0].dtype == DTYPE_F32 || shape->out[0].dtype == DTYPE_BF16);
}

/* Of a reduce_scatter: every rank's part, one more for a sum that is added to what is there, and
 * then what is sent, where there is something else between it. */
static size_t packed_at(const struct tensor *part, int size)
{
    return ((size_t)size + (part->dtype == DTYPE_F32)) * collective_bytes_of(part);
}

size_t collective_scratch_bytes(const struct op_shape *shape, int size, bool is_fast)
{
    const struct tensor *out = &shape->out[0];

    /* A sum that is then added to what is there. */
    if (is_fast && collective_may_be_fast(shape))
        return shape->kind == OP_REDUCE_SCATTER ? collective_bytes_of(out) : 0;
    switch (shape->kind) {
    case OP_ALL_GATHER:
        return collective_is_strided(out) ? collective_bytes_of(out) : 0;
    case OP_REDUCE_SCATTER:
        return packed_at(out, size) + (collective_is_strided(&shape->in[OPS_FIRST])
                                           ? collective_bytes_of(&shape->in[OPS_FIRST])
                                           : 0);
    case OP_ALL_REDUCE:
        return all_reduce_scratch_bytes(out, size);
    case OP_ALL_REDUCE_SCALAR:
        return (size_t)size * collective_bytes_of(out);
    case OP_GATHER_HEADS:
    case OP_GATHER_HEADS_GRAD:
        return collective_heads_scratch_bytes(shape, size);
    case OP_ROWS_TO_HEADS:
    case OP_HEADS_TO_ROWS:
    case OP_GATHER_SEQUENCE:
    case OP_SCATTER_SEQUENCE:
    case OP_ROTATE:
        return collective_sequence_scratch_bytes(shape, size);
    case OP_GATHER_WINDOW:
    case OP_SCATTER_WINDOW:
        return collective_window_scratch_bytes(shape);
    case OP_SEND_ROWS:
    case OP_RETURN_ROWS:
        return collective_rows_scratch_bytes(shape, size);
    default:
        return 0;
    }
}

static bool is_of_sequences(enum op_kind kind)
{
    return kind == OP_ROWS_TO_HEADS || kind == OP_HEADS_TO_ROWS || kind == OP_GATHER_SEQUENCE ||
           kind == OP_SCATTER_SEQUENCE || kind == OP_ROTATE;
}

static bool is_of_windows(enum op_kind kind)
{
    return kind == OP_GATHER_WINDOW || kind == OP_SCATTER_WINDOW;
}

static bool is_of_experts(enum op_kind kind)
{
    return kind == OP_SEND_ROWS || kind == OP_RETURN_ROWS;
}

static bool is_of_heads(enum op_kind kind)
{
    return kind == OP_GATHER_HEADS || kind == OP_GATHER_HEADS_GRAD;
}

size_t collective_host_bytes(const struct op_shape *shape, int size)
{
    if (is_of_heads(shape->kind))
        return collective_heads_host_bytes(shape, size);
    return is_of_experts(shape->kind) ? collective_rows_host_bytes(shape, size) : 0;
}

bool collective_takes_strides(enum op_kind kind)
{
    return is_of_windows(kind) || is_of_heads(kind) || is_of_sequences(kind) ||
           kind == OP_ALL_GATHER || kind == OP_REDUCE_SCATTER;
}

/* Of heads that are gathered, too little to count. */
size_t collective_copied_bytes(const struct op_shape *shape, int size)
{
    if (is_of_windows(shape->kind))
        return collective_window_copied_bytes(shape);
    if (is_of_experts(shape->kind))
        return collective_rows_copied_bytes(shape, size);
    return is_of_sequences(shape->kind) ? collective_sequence_copied_bytes(shape, size) : 0;
}

/* ---- what is computed: at once in host memory, or on the collective's queue ---- */

bool collective_is_enqueued(const struct collective *c)
{
    return c->base.device && !tensor_given(&c->device_in) && !tensor_given(&c->device_out);
}

/* The sum is rounded, where the first term is, and so is what it is added to. */
static void add_narrow(const struct kernels_sum *sum)
{
    uint16_t *out = sum->out, *added = sum->terms;

    reduce_tree(DTYPE_BF16, added, added, sum->n_terms, sum->stride, sum->n);
    for (int64_t i = 0; i < sum->n; i++)
        out[i] = bf16_from_float(bf16_to_float(out[i]) + bf16_to_float(added[i]));
}

void collective_sum(const struct collective *c, const struct kernels_sum *sum, void *spare)
{
    float *out = sum->out;
    const float *added = spare;

    if (collective_is_enqueued(c)) {
        c->kernels->backend->traffic->sum(c->kernels, c->base.queue, sum);
        return;
    }
    if (sum->adds && sum->dtype == DTYPE_BF16) {
        add_narrow(sum);
        return;
    }
    reduce_tree(sum->dtype, sum->adds ? spare : sum->out, sum->terms, sum->n_terms, sum->stride,
                sum->n);
    for (int64_t i = 0; sum->adds && i < sum->n; i++)
        out[i] += added[i];
}

void collective_copy_bytes(const struct collective *c, void *to, const void *from, size_t n_bytes)
{
    if (collective_is_enqueued(c))
        c->base.device->ops->copy(c->base.device, c->base.queue, to, from, n_bytes);
    else
        memcpy(to, from, n_bytes);
}

void collective_fill_zero(const struct collective *c, void *to, size_t n_bytes)
{
    if (collective_is_enqueued(c))
        c->base.device->ops->fill(c->base.device, c->base.queue, to, 0, n_bytes);
    else
        memset(to, 0, n_bytes);
}

void collective_copy_columns(const struct collective *c, struct kernels_columns columns)
{
    if (collective_is_enqueued(c)) {
        c->kernels->backend->traffic->copy_columns(c->kernels, c->base.queue, &columns);
        return;
    }
    int64_t size = (int64_t)columns.element_bytes;

    for (int64_t b = 0; b < (columns.n_blocks ? columns.n_blocks : 1); b++)
        for (int64_t r = 0; r < columns.rows; r++) {
            int64_t to = b * columns.to_step + r * columns.to_stride;
            int64_t from = b * columns.from_step + r * columns.from_stride;

            memcpy((unsigned char *)columns.to + to * size,
                   (const unsigned char *)columns.from + from * size,
                   (size_t)(columns.cols * size));
        }
}

/* ---- the kinds' steps ---- */

/* shard = or += the tree sum of all ranks' parts, complete before its one add. */
static void sum_parts(const struct collective *c)
{
    int64_t n = tensor_elements(&c->out);
    int size = comm_group_size(c->group);
    struct kernels_sum sum = { c->out.dtype, c->out.data, c->scratch, size, n, n, !c->base.first };

    CHECK(c->base.first || c->out.dtype == DTYPE_F32 || c->out.dtype == DTYPE_BF16);
    collective_sum(c, &sum, (float *)c->scratch + (int64_t)size * n);
}

static int step_reduce_scatter(const struct collective *c, int step, struct comm_call *call)
{
    if (step == 0)
        *call = (struct comm_call){ COMM_ALL_TO_ALL,
                                    collective_is_strided(&c->in)
                                        ? collective_pack(
                                              c, (unsigned char *)c->scratch +
                                                     packed_at(&c->out, comm_group_size(c->group)))
                                        : c->in.data,
                                    c->scratch, collective_bytes_of(&c->out), 0 };
    else
        sum_parts(c);
    return step == 0;
}

/* Everybody gets all terms. */
static int step_sum_by_all(const struct collective *c, int step, struct comm_call *call)
{
    int64_t n = tensor_elements(&c->in);

    struct kernels_sum sum = {
        c->out.dtype, c->out.data, c->scratch, comm_group_size(c->group), n, n, 0
    };

    *call = (struct comm_call){ COMM_ALL_GATHER, c->in.data, c->scratch,
                                collective_bytes_of(&c->in), 0 };
    if (step > 0)
        collective_sum(c, &sum, NULL);
    return step == 0;
}

/* Each rank sums a part, then gets the others'. Where n does not divide, a copy is padded. */
static int step_sum_by_parts(const struct collective *c, int step, struct comm_call *call)
{
    int size = comm_group_size(c->group);
    int64_t n = tensor_elements(&c->in), part = collective_part(n, size);
    size_t n_bytes = collective_bytes_of(&c->in),
           part_bytes = (size_t)part * dtype_bytes(c->in.dtype);
    bool is_padded = part * size > n;
    unsigned char *terms = c->scratch, *padded = terms + (size_t)size * part_bytes;
    unsigned char *whole = is_padded ? padded : c->out.data;
    unsigned char *own = whole + (size_t)comm_group_rank(c->group) * part_bytes;

    switch (step) {
    case 0:
        if (is_padded) {
            collective_copy_bytes(c, padded, c->in.data, n_bytes);
            collective_fill_zero(c, padded + n_bytes, (size_t)size * part_bytes - n_bytes);
        }
        *call = (struct comm_call){ COMM_ALL_TO_ALL, is_padded ? padded : c->in.data, terms,
                                    part_bytes, 0 };
        return 1;
    case 1:
        collective_sum(c, &(struct kernels_sum){ c->in.dtype, own, terms, size, part, part, 0 },
                       NULL);
        *call = (struct comm_call){ COMM_ALL_GATHER, own, whole, part_bytes, 0 };
        return 1;
    default:
        if (is_padded)
            collective_copy_bytes(c, c->out.data, padded, n_bytes);
        return 0;
    }
}

static bool goes_by_node(const struct collective *c)
{
    struct op_shape shape = { .kind = c->kind, .in = { c->in }, .out = { c->out } };

    return c->nodes.node &&
           collective_goes_by_node(&shape, comm_group_size(c->group),
                                   comm_group_size(c->nodes.node), collective_is_enqueued(c));
}

/* over: the group of the move. */
static int next_move(const struct collective *c, int step, struct comm_call *call,
                     struct comm_group **over, struct err *err)
{
    *over = c->group;
    if (goes_by_node(c))
        return collective_step_by_node(c, step, call, over);
    switch (c->kind) {
    case OP_ALL_GATHER:
        return collective_step_gather(c, step, call);
    case OP_REDUCE_SCATTER:
        return step_reduce_scatter(c, step, call);
    case OP_ALL_REDUCE:
        return collective_is_gathered(&c->in, comm_group_size(c->group))
                   ? step_sum_by_all(c, step, call)
                   : step_sum_by_parts(c, step, call);
    case OP_ALL_REDUCE_SCALAR:
        return step_sum_by_all(c, step, call);
    case OP_GATHER_HEADS:
    case OP_GATHER_HEADS_GRAD:
        return collective_step_heads(c, step, call);
    case OP_ROWS_TO_HEADS:
    case OP_HEADS_TO_ROWS:
    case OP_GATHER_SEQUENCE:
    case OP_SCATTER_SEQUENCE:
    case OP_ROTATE:
        return collective_step_sequence(c, step, call);
    case OP_GATHER_WINDOW:
    case OP_SCATTER_WINDOW:
        return collective_step_window(c, step, call);
    case OP_SEND_ROWS:
    case OP_RETURN_ROWS:
        return collective_step_rows(c, step, call, err);
    case OP_GATHER_CODES:
        *call = (struct comm_call){ COMM_ALL_GATHER, c->in.data, c->out.data,
                                    collective_bytes_of(&c->in), 0 };
        return step == 0;
    case OP_EXCHANGE_CODES:
        CHECK(c->in.rows == comm_group_size(c->group));
        *call = (struct comm_call){ COMM_ALL_TO_ALL, c->in.data, c->out.data,
                                    collective_bytes_of(&c->in) / (size_t)c->in.rows, 0 };
        return step == 0;
    case OP_SEND:
        *call =
            (struct comm_call){ COMM_SEND, c->in.data, NULL, collective_bytes_of(&c->in), c->peer };
        return step == 0;
    case OP_RECEIVE:
        *call = (struct comm_call){ COMM_RECEIVE, NULL, c->out.data, collective_bytes_of(&c->out),
                                    c->peer };
        return step == 0;
    default:
        CHECK(!"a collective");
    }
}

/* ---- on the comm thread ---- */

size_t collective_extent(const struct tensor *t)
{
    return tensor_given(t) ? (size_t)((t->rows - 1) * t->stride + t->cols) * dtype_bytes(t->dtype)
                           : 0;
}

static void copy_operand(const struct collective *c, const struct tensor *to,
                         const struct tensor *from)
{
    struct device *device = c->base.device;
    size_t n_bytes = collective_extent(to);

    if (n_bytes)
        device->ops->copy(device, c->base.queue, to->data, from->data, n_bytes);
}

struct row_copy {
    const struct collective *c;
    const struct tensor *to, *from;
};

static struct tensor rows_of(const struct tensor *t, int64_t first, int64_t n_rows)
{
    struct tensor rows = *t;

    rows.data = (unsigned char *)t->data + (size_t)(first * t->stride) * dtype_bytes(t->dtype);
    rows.rows = n_rows;
    return rows;
}

static void copy_some(void *context, int64_t first, int64_t n_rows)
{
    const struct row_copy *r = context;
    struct tensor to = rows_of(r->to, first, n_rows), from = rows_of(r->from, first, n_rows);

    copy_operand(r->c, &to, &from);
}

/* The side of a slice that has the rows of all slices. */
static const struct tensor *all_slices(const struct collective *c)
{
    return !c->attributes.part_rows ? NULL : ops_makes_whole(c->kind) ? &c->out : &c->in;
}

/* Of what has all slices, this one's rows. */
static void copy_side(const struct collective *c, const struct tensor *side,
                      const struct tensor *to, const struct tensor *from)
{
    if (side == all_slices(c))
        collective_each_slice_rows(c, copy_some, &(struct row_copy){ c, to, from });
    else
        copy_operand(c, to, from);
}

/* What is added to comes along, and what lies between the rows of a part of something wider, or
 * is not received. */
static void copy_in(struct collective *c)
{
    bool keeps = !c->base.first || c->out.stride != c->out.cols || c->kind == OP_SEND_ROWS ||
                 c->attributes.experts;

    copy_side(c, &c->in, &c->in, &c->device_in);
    copy_operand(c, &c->choices, &c->device_choices);
    if (tensor_given(&c->out) && keeps)
        copy_side(c, &c->out, &c->out, &c->device_out);
    c->base.device->ops->event_record(c->base.device, c->base.queue, c->base.done);
    c->stage = COLLECTIVE_COPIES_IN;
}

static void copy_out(struct collective *c)
{
    copy_side(c, &c->out, &c->device_out, &c->out);
    c->base.device->ops->event_record(c->base.device, c->base.queue, c->base.done);
    c->stage = COLLECTIVE_COPIES_OUT;
}

/* A turn at the moves. */
static int move(struct collective *c, struct err *err)
{
    struct comm_call call;
    struct comm_group *over;

    for (;;) {
        int progress = c->n_moves ? comm_test(&c->request, err) : COMM_DONE;

        if (progress != COMM_DONE)
            return progress;
        int next = next_move(c, c->n_moves, &call, &over, err);
        if (next <= 0)
            return next < 0 ? -1 : COMM_DONE;
        if (comm_start(&c->request, over, &call, err))
            return -1;
        c->n_moves++;
    }
}

/* For faults: a bit of a high mantissa digit, in the middle. */
static void flip_bit(const struct tensor *t)
{
    size_t n_bytes = dtype_bytes(t->dtype);
    unsigned char *at =
        (unsigned char *)t->data + (size_t)(t->rows / 2 * t->stride + t->cols / 2) * n_bytes;

    at[n_bytes > 2 ? 2 : 0] ^= 1 << 4;
}

static int turn(struct stream_op *op, struct err *err)
{
    struct collective *c = (struct collective *)op;

    if (c->stage == COLLECTIVE_IDLE) {
        c->stage = COLLECTIVE_MOVES;
        if (op->device)
            copy_in(c);
    }
    if (c->stage == COLLECTIVE_COPIES_IN) {
        if (!stream_op_has_passed(op))
            return COMM_MOVING;
        c->stage = COLLECTIVE_MOVES;
    }
    if (c->stage == COLLECTIVE_MOVES) {
        int progress = move(c, err);

        if (progress != COMM_DONE)
            return progress;
        c->n_moves = 0;
        if (op->flips && tensor_given(&c->out))
            flip_bit(&c->out);
        if (op->device)
            copy_out(c);
    }
    if (c->stage == COLLECTIVE_COPIES_OUT && !stream_op_has_passed(op))
        return COMM_MOVING;
    c->stage = COLLECTIVE_IDLE;
    return COMM_DONE;
}

/* ---- on a queue ---- */

/* The library's sum, to its place or to scratch and from there, in one add, to what is there. */
static int enqueue_fast(const struct collective *c, struct err *err)
{
    int is_scattered = c->kind == OP_REDUCE_SCATTER, adds = is_scattered && !c->base.first;
    int64_t n = tensor_elements(&c->out);
    struct comm_sum sum = { is_scattered, c->out.dtype, c->in.data, adds ? c->scratch : c->out.data,
                            n };

    if (comm_enqueue_sum(c->group, &sum, c->base.queue, err))
        return -1;
    if (adds)
        collective_sum(
            c, &(struct kernels_sum){ c->out.dtype, c->out.data, c->scratch, 1, n, n, 1 }, NULL);
    return 0;
}

static int enqueue(struct stream_op *op, struct err *err)
{
    const struct collective *c = (const struct collective *)op;
    struct comm_call call;
    struct comm_group *over;

    if (c->is_fast)
        return enqueue_fast(c, err);

    for (int step = 0;; step++) {
        int next = next_move(c, step, &call, &over, err);

        if (next <= 0)
            return next;
        if (comm_enqueue(over, &call, op->queue, err))
            return -1;
    }
}

struct collective collective_of(const struct op_shape *shape, struct comm_group *group,
                                void *scratch)
{
    static const struct mover mover = { turn, enqueue };
    struct collective c = { .base.mover = &mover,
                            .kind = shape->kind,
                            .attributes = shape->attributes,
                            .group = group,
                            .in = shape->in[0],
                            .out = shape->out[0],
                            .choices = is_of_experts(shape->kind) ? shape->in[SEND_ROWS_CHOICES]
                                                                  : (struct tensor){ 0 },
                            .scratch = scratch };

    /* A slice's rows lie among all ranks' rows. */
    if (shape->attributes.part_rows)
        (ops_makes_whole(shape->kind) ? &c.out : &c.in)->rows =
            shape->attributes.part_rows * comm_group_size(group);
    return c;
}
