/*
 * collective_nodes.c - sums within nodes, then across; gathers across nodes, then within
 *
 * Of the n * m ranks of a group, n on each of m nodes, rank i is number i % n on node i / n. A
 * reduce_scatter of its n * m parts:
 *
 *   move k, k < m   on each node, all to all: its ranks get the terms of the n parts of node k's ranks
 *                   and add them, each those for the rank with its own number
 *   move m          across, all to all: each rank gets m nodes' sums of its part, and adds them
 *
 * The tree of additions has the n ranks of a node as a subtree (comm/reduce.h), so the bits are
 * those of one move of all terms to all ranks. An all_gather:
 *
 *   move 0            across: each rank gets the parts of the m ranks with its number
 *   move k, 1 <= k <= m   on each node, all get node k - 1's n parts from each other
 *
 * An all_reduce is both. Bytes between nodes: a rank sends m - 1 parts to other nodes where it
 * would send n * (m - 1).
 */
#include "base/num.h"
#include "comm/reduce.h"
#include "run/collective_impl.h"

#define ALIGNMENT ((size_t)64)

/* Whole operands of fewer bytes go as one move: the moves of nodes take longer than that saves. */
#define FLAT_BYTES_MAX ((size_t)32 << 10)

static bool is_sum(enum op_kind kind)
{
    return kind == OP_REDUCE_SCATTER || kind == OP_ALL_REDUCE;
}

/* Of the whole. */
static const struct tensor *whole_of(const struct op_shape *shape)
{
    return shape->kind == OP_ALL_GATHER ? &shape->out[0] : &shape->in[0];
}

bool collective_goes_by_node(const struct op_shape *shape, int size, int n, bool enqueues)
{
    enum dtype dtype = shape->out[0].dtype;

    if (n < 2 || n >= size || (n & (n - 1)) ||
        (shape->kind != OP_ALL_GATHER && !is_sum(shape->kind)))
        return false;
    if (collective_is_strided(&shape->in[0]) || collective_is_strided(&shape->out[0]))
        return false;
    if (collective_bytes_of(whole_of(shape)) <= FLAT_BYTES_MAX ||
        (shape->kind == OP_ALL_REDUCE && collective_is_gathered(&shape->in[0], size)))
        return false;
    if (!is_sum(shape->kind))
        return !enqueues;
    if (enqueues && dtype != DTYPE_F32)
        return false;
    return dtype == DTYPE_F32 || ((dtype == DTYPE_BF16 || dtype == DTYPE_F16) &&
                                  (size_t)n * dtype_bytes(dtype) > dtype_bytes(DTYPE_F32));
}

/* ---- scratch ---- */

/* Where things are in it: terms on a node, its sums, those of all nodes, and a sum to be added. */
struct node_layout {
    size_t padded, terms, sums, received, added, end;
};

static struct node_layout layout_of(enum op_kind kind, enum dtype dtype, int64_t whole,
                                    int64_t part, int size, int n)
{
    size_t part_bytes = (size_t)part * dtype_bytes(dtype), m = (size_t)(size / n);
    size_t wide_bytes = align_up(m * (size_t)part * sizeof(float), ALIGNMENT);
    struct node_layout l = { 0 };

    if (kind == OP_ALL_GATHER) {
        l.end = m * part_bytes;
        return l;
    }
    bool is_padded = kind == OP_ALL_REDUCE && part * size > whole;
    l.terms = is_padded ? align_up((size_t)size * part_bytes, ALIGNMENT) : 0;
    l.sums = l.terms + align_up((size_t)n * part_bytes, ALIGNMENT);
    l.received = l.sums + wide_bytes;
    l.added = l.received + wide_bytes;
    l.end = l.added + (kind == OP_REDUCE_SCATTER ? part_bytes : 0);
    return l;
}

/* Elements of one rank's part. */
static int64_t part_of_kind(enum op_kind kind, const struct tensor *in, const struct tensor *out,
                            int size)
{
    if (kind == OP_REDUCE_SCATTER)
        return tensor_elements(out);
    return kind == OP_ALL_GATHER ? tensor_elements(in) : collective_part(tensor_elements(in), size);
}

size_t collective_nodes_scratch_bytes(const struct op_shape *shape, int size, int n)
{
    size_t flat = collective_scratch_bytes(shape, size, false);

    if (!collective_goes_by_node(shape, size, n, false))
        return flat;
    const struct tensor *in = &shape->in[0], *out = &shape->out[0];
    size_t by_node = layout_of(shape->kind, out->dtype, tensor_elements(in),
                               part_of_kind(shape->kind, in, out, size), size, n)
                         .end;
    return by_node > flat ? by_node : flat;
}

int64_t collective_bytes_between_nodes(const struct op_shape *shape, int size, int n,
                                       bool sums_by_node, bool gathers_by_node)
{
    const struct tensor *in = &shape->in[0], *out = &shape->out[0];
    int64_t beyond = size - n, others = size / n - 1;

    if (n < 1 || n >= size)
        return 0;
    if (shape->kind == OP_EXCHANGE_CODES)
        return n * beyond * (int64_t)collective_bytes_of(in) / size;
    if (shape->kind == OP_GATHER_CODES)
        return n * (gathers_by_node ? others : beyond) * (int64_t)collective_bytes_of(in);
    if (shape->kind != OP_ALL_GATHER && !is_sum(shape->kind))
        return 0;
    int64_t part = part_of_kind(shape->kind, in, out, size);
    int64_t part_bytes = part * (int64_t)dtype_bytes(out->dtype);
    int64_t sum_bytes = part * (int64_t)sizeof(float);

    if (shape->kind == OP_ALL_REDUCE && collective_is_gathered(in, size))
        return n * (gathers_by_node ? others : beyond) * (int64_t)collective_bytes_of(in);
    int64_t summed = sums_by_node ? n * others * sum_bytes : n * beyond * part_bytes;
    int64_t gathered = n * (gathers_by_node ? others : beyond) * part_bytes;
    return (is_sum(shape->kind) ? summed : 0) + (shape->kind != OP_REDUCE_SCATTER ? gathered : 0);
}

/* ---- moves ---- */

/* One collective's sizes and places. */
struct node_moves {
    enum dtype dtype;
    int n, m;
    int64_t part;
    size_t part_bytes;
    unsigned char *padded, *terms, *sums, *received, *added;
    unsigned char *whole; /* of what is gathered, and of what is summed */
};

static struct node_moves moves_of(const struct collective *c)
{
    int size = comm_group_size(c->group), n = comm_group_size(c->nodes.node);
    int64_t whole = tensor_elements(&c->in), part = part_of_kind(c->kind, &c->in, &c->out, size);
    struct node_layout l = layout_of(c->kind, c->out.dtype, whole, part, size, n);
    unsigned char *scratch = c->scratch;
    bool is_padded = c->kind == OP_ALL_REDUCE && part * size > whole;

    return (struct node_moves){ .dtype = c->out.dtype,
                                .n = n,
                                .m = size / n,
                                .part = part,
                                .part_bytes = (size_t)part * dtype_bytes(c->out.dtype),
                                .padded = is_padded ? scratch : NULL,
                                .terms = scratch + l.terms,
                                .sums = scratch + l.sums,
                                .received = scratch + l.received,
                                .added = scratch + l.added,
                                .whole = is_padded ? scratch : c->out.data };
}

/* Of a node's n terms, unrounded. */
static void sum_on_node(const struct collective *c, const struct node_moves *moves, int block)
{
    float *sum = (float *)(void *)moves->sums + (int64_t)block * moves->part;

    if (moves->dtype == DTYPE_F32)
        collective_sum(c,
                       &(struct kernels_sum){ DTYPE_F32, sum, moves->terms, moves->n, moves->part,
                                              moves->part, 0 },
                       NULL);
    else
        reduce_tree_as(moves->dtype, DTYPE_F32, sum, moves->terms, moves->n, moves->part,
                       moves->part);
}

static void add_bf16(uint16_t *out, const uint16_t *added, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_from_float(bf16_to_float(out[i]) + bf16_to_float(added[i]));
}

/* out = or += the nodes' sums, rounded once. */
static void sum_across(const struct collective *c, const struct node_moves *moves, void *out,
                       bool adds)
{
    if (moves->dtype == DTYPE_F32) {
        collective_sum(c,
                       &(struct kernels_sum){ DTYPE_F32, out, moves->received, moves->m,
                                              moves->part, moves->part, adds },
                       moves->added);
        return;
    }
    CHECK(!adds || moves->dtype == DTYPE_BF16);
    reduce_tree_as(DTYPE_F32, moves->dtype, adds ? moves->added : out, moves->received, moves->m,
                   moves->part, moves->part);
    if (adds)
        add_bf16(out, (const uint16_t *)(const void *)moves->added, moves->part);
}

/* The m + 1 moves of a sum, from `from`, which has all parts; behind the last one out has its. */
static int step_scatter(const struct collective *c, const struct node_moves *moves, int step,
                        const void *from, void *out, struct comm_call *call,
                        struct comm_group **over)
{
    size_t block_bytes = (size_t)moves->n * moves->part_bytes;

    if (step > 0 && step <= moves->m)
        sum_on_node(c, moves, step - 1);
    if (step < moves->m) {
        *over = c->nodes.node;
        *call = (struct comm_call){ COMM_ALL_TO_ALL,
                                    (const unsigned char *)from + (size_t)step * block_bytes,
                                    moves->terms, moves->part_bytes, 0 };
        return 1;
    }
    if (step == moves->m) {
        *over = c->nodes.across;
        *call = (struct comm_call){ COMM_ALL_TO_ALL, moves->sums, moves->received,
                                    (size_t)moves->part * sizeof(float), 0 };
        return 1;
    }
    sum_across(c, moves, out, c->kind == OP_REDUCE_SCATTER && !c->base.first);
    return 0;
}

/* The 1 + m moves of a gather of all ranks' parts into whole; numbered: room for m of them. */
static int step_gather(const struct collective *c, const struct node_moves *moves, int step,
                       const void *own, unsigned char *numbered, struct comm_call *call,
                       struct comm_group **over)
{
    size_t block_bytes = (size_t)moves->n * moves->part_bytes;

    if (step > moves->m)
        return 0;
    if (step == 0) {
        *over = c->nodes.across;
        *call = (struct comm_call){ COMM_ALL_GATHER, own, numbered, moves->part_bytes, 0 };
        return 1;
    }
    *over = c->nodes.node;
    *call =
        (struct comm_call){ COMM_ALL_GATHER, numbered + (size_t)(step - 1) * moves->part_bytes,
                            moves->whole + (size_t)(step - 1) * block_bytes, moves->part_bytes, 0 };
    return 1;
}

static int step_all_reduce(const struct collective *c, const struct node_moves *moves, int step,
                           struct comm_call *call, struct comm_group **over)
{
    int n_scatter = moves->m + 1;
    size_t n_bytes = collective_bytes_of(&c->in);
    size_t whole_bytes = (size_t)(moves->n * moves->m) * moves->part_bytes;
    unsigned char *own = moves->whole + (size_t)comm_group_rank(c->group) * moves->part_bytes;

    if (step == 0 && moves->padded) {
        collective_copy_bytes(c, moves->padded, c->in.data, n_bytes);
        collective_fill_zero(c, moves->padded + n_bytes, whole_bytes - n_bytes);
    }
    if (step < n_scatter)
        return step_scatter(c, moves, step, moves->padded ? moves->padded : c->in.data, own, call,
                            over);
    if (step == n_scatter)
        sum_across(c, moves, own, false);
    int next = step_gather(c, moves, step - n_scatter, own, moves->sums, call, over);
    if (!next && moves->padded)
        collective_copy_bytes(c, c->out.data, moves->padded, n_bytes);
    return next;
}

int collective_step_by_node(const struct collective *c, int step, struct comm_call *call,
                            struct comm_group **over)
{
    struct node_moves moves = moves_of(c);

    if (c->kind == OP_ALL_GATHER)
        return step_gather(c, &moves, step, c->in.data, c->scratch, call, over);
    if (c->kind == OP_REDUCE_SCATTER)
        return step_scatter(c, &moves, step, c->in.data, c->out.data, call, over);
    return step_all_reduce(c, &moves, step, call, over);
}
