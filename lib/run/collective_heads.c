/*
 * collective_heads.c - kv heads that several ranks share (gather_heads and its gradient)
 *
 * Neighbours of the axis share one kv head, and each has computed a part of its columns. They give
 * them to each other alone: where all ranks of the axis share one head that is a gather, or an
 * exchange of equal parts; else other ranks are sent nothing. Gradients are summed in the order of
 * the ranks that share the head.
 */
#include <stdbool.h>

#include "base/num.h"
#include "run/collective_impl.h"

#define PART_ALIGNMENT ((size_t)64)

/* Elements of one rank's part of a shared k and v head. */
static int64_t heads_piece(const struct op_attributes *a, int64_t rows)
{
    return rows * 2 * (a->head_dim / a->group);
}

/* What says what each rank is sent, where not all of them share one kv head: those that share one
 * exchange parts of it, and the others get nothing. */
static size_t heads_table_bytes(const struct op_attributes *a, int size)
{
    return a->group < size ? align_up((size_t)size * sizeof(struct comm_part), PART_ALIGNMENT) : 0;
}

/* The table, and pieces of each sharer: that come, and, of gradients, that go. */
size_t collective_heads_scratch_bytes(const struct op_shape *shape, int size)
{
    const struct op_attributes *a = &shape->attributes;
    size_t n = shape->kind == OP_GATHER_HEADS_GRAD ? 2 : 1;
    size_t piece = (size_t)heads_piece(a, shape->out[0].rows) * dtype_bytes(shape->out[0].dtype);

    return heads_table_bytes(a, size) + n * (size_t)a->group * piece;
}

size_t collective_heads_host_bytes(const struct op_shape *shape, int size)
{
    return heads_table_bytes(&shape->attributes, size);
}

static unsigned char *column(const struct tensor *t, int64_t at)
{
    return (unsigned char *)t->data + (size_t)at * dtype_bytes(t->dtype);
}

/* The columns of a gather_heads: q, then k and v of e each, or a rank's w of either. */
struct head_gather {
    int64_t rows, q, e, w, piece;
    int first, n; /* the ranks that share this one's kv head */
    int own;      /* this rank among them */
    bool is_of_all;
    unsigned char *pieces; /* one behind the other */
    size_t element_bytes, piece_bytes;
};

static struct head_gather heads_of(const struct collective *c)
{
    const struct op_attributes *a = &c->attributes;
    int64_t piece = heads_piece(a, c->in.rows);
    size_t element_bytes = dtype_bytes(c->in.dtype);

    int size = comm_group_size(c->group), rank = comm_group_rank(c->group);

    CHECK(size % a->group == 0);
    return (struct head_gather){ .rows = c->in.rows,
                                 .q = (int64_t)a->n_heads * a->head_dim,
                                 .e = a->head_dim,
                                 .w = a->head_dim / a->group,
                                 .piece = piece,
                                 .first = rank / a->group * a->group,
                                 .n = a->group,
                                 .own = rank % a->group,
                                 .is_of_all = a->group == size,
                                 .pieces = (unsigned char *)c->scratch + heads_table_bytes(a, size),
                                 .element_bytes = element_bytes,
                                 .piece_bytes = (size_t)piece * element_bytes };
}

/* The i-th sharer's columns of k and v: between t, which has all of them, and its piece. */
static void copy_shared(const struct collective *c, const struct head_gather *h,
                        const struct tensor *t, int i, unsigned char *piece, int to_piece)
{
    for (int v = 0; v < 2; v++) {
        unsigned char *whole = column(t, h->q + v * h->e + i * h->w);
        unsigned char *part = piece + (size_t)(v * h->w) * h->element_bytes;
        struct kernels_columns columns = { whole, t->stride,        part, 2 * h->w, h->rows,
                                           h->w,  h->element_bytes, 0,    0,        0 };

        if (to_piece)
            columns = (struct kernels_columns){ part, 2 * h->w,         whole, t->stride, h->rows,
                                                h->w, h->element_bytes, 0,     0,         0 };
        collective_copy_columns(c, columns);
    }
}

static void copy_queries(const struct collective *c, const struct head_gather *h)
{
    collective_copy_columns(c, (struct kernels_columns){ c->out.data, c->out.stride, c->in.data,
                                                         c->in.stride, h->rows, h->q,
                                                         h->element_bytes, 0, 0, 0 });
}

/* The parts that the sharers exchange: what they are sent begins at `send`, with `step` bytes from
 * one to the next; pieces come behind each other. */
static struct comm_call exchange_of_heads(const struct collective *c, const struct head_gather *h,
                                          const unsigned char *send, size_t step,
                                          unsigned char *receive)
{
    struct comm_part *parts = c->host_tables ? c->host_tables : c->scratch;

    for (int r = 0; r < comm_group_size(c->group); r++) {
        size_t i = (size_t)(r - h->first);
        bool is_sharer = r >= h->first && r < h->first + h->n && r != comm_group_rank(c->group);

        parts[r] = is_sharer ? (struct comm_part){ send + i * step, h->piece_bytes,
                                                   receive + i * h->piece_bytes, h->piece_bytes }
                             : (struct comm_part){ 0 };
    }
    return (struct comm_call){ COMM_EXCHANGE, parts, NULL, h->piece_bytes, 0 };
}

static int step_gather_heads(const struct collective *c, int step, struct comm_call *call)
{
    struct head_gather h = heads_of(c);
    unsigned char *pieces = h.pieces, *own = pieces + (size_t)h.own * h.piece_bytes;

    if (step == 0) {
        collective_copy_columns(c, (struct kernels_columns){ own, 2 * h.w, column(&c->in, h.q),
                                                             c->in.stride, h.rows, 2 * h.w,
                                                             h.element_bytes, 0, 0, 0 });
        *call = h.is_of_all ? (struct comm_call){ COMM_ALL_GATHER, own, pieces, h.piece_bytes, 0 }
                            : exchange_of_heads(c, &h, own, 0, pieces);
        return 1;
    }
    copy_queries(c, &h);
    for (int i = 0; i < h.n; i++)
        copy_shared(c, &h, &c->out, i, pieces + (size_t)i * h.piece_bytes, 0);
    return 0;
}

/* Where parts are exchanged, a rank's own stays. */
static int step_gather_heads_grad(const struct collective *c, int step, struct comm_call *call)
{
    struct head_gather h = heads_of(c);
    unsigned char *pieces = h.pieces, *terms = pieces + (size_t)h.n * h.piece_bytes;
    struct kernels_sum sum = { c->in.dtype, terms, terms, h.n, h.piece, h.piece, 0 };

    if (step == 0) {
        for (int i = 0; i < h.n; i++)
            copy_shared(c, &h, &c->in, i,
                        (i == h.own && !h.is_of_all ? terms : pieces) + (size_t)i * h.piece_bytes,
                        1);
        *call = h.is_of_all ? (struct comm_call){ COMM_ALL_TO_ALL, pieces, terms, h.piece_bytes, 0 }
                            : exchange_of_heads(c, &h, pieces, h.piece_bytes, terms);
        return 1;
    }
    collective_sum(c, &sum, NULL);
    copy_queries(c, &h);
    collective_copy_columns(c, (struct kernels_columns){ column(&c->out, h.q), c->out.stride, terms,
                                                         2 * h.w, h.rows, 2 * h.w, h.element_bytes,
                                                         0, 0, 0 });
    return 0;
}

int collective_step_heads(const struct collective *c, int step, struct comm_call *call)
{
    return c->kind == OP_GATHER_HEADS ? step_gather_heads(c, step, call)
                                      : step_gather_heads_grad(c, step, call);
}
