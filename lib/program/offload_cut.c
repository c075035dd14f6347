/*
 * offload_cut.c - the update of a large cell, cut into pieces
 *
 * The optimizer, the sum of squares and the sum of two accumulators treat elements one by one, or
 * by norm blocks (TRAIT_BY_BLOCKS), so an op on all of a cell is as many ops on parts of it, bit
 * for bit. Each part is a plain value whose home is a part of the cell's home: the cell is never in
 * the device's memory as a whole while it is updated. Other ops of the update on a part of a cell,
 * such as a parameter's gradient in its bucket, have that part alone brought.
 *
 *     U  adamw embedding.grad, ..., ~embedding.master, ~embedding.m, ~embedding.v
 *     ->
 *     U  adamw %210, ..., ~%211, ~%212, ~%213            rows 0 to 4095
 *     U  adamw %214, ..., ~%215, ~%216, ~%217            rows 4096 to 8191
 */
#include <string.h>

#include "base/num.h"
#include "program/offload_impl.h"

/* Of an operand; a transfer of that size takes full rate. */
#define PIECE_BYTES ((size_t)16 << 20)

/* Of a value: the first one's id, and how many rows (or columns, of one row) each has. */
struct cell_pieces {
    int first;
    int64_t n_each;
};

struct cutting {
    const struct offload *o;
    struct program *p;
    struct cell_pieces *of; /* by value */
    int *whole;             /* by value that is a part: it by itself, in one piece; 0: not yet */
    bool by_views;          /* pieces are views: of what does not come and go */
    struct function to;
};

static int operand(const struct op *op, int k)
{
    return k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
}

/* Of an operand as large as the first one; others are tables by block, and scalars. */
static bool is_data(const struct program *p, const struct op *op, int id)
{
    const struct value *v = &p->values[id], *x = &p->values[op->in[OPS_FIRST]];

    return id && v->rows == x->rows && v->cols == x->cols;
}

/* Elements of data that an element stands for, of a table by block; else 0. */
static int64_t table_block(const struct op *op, int k)
{
    const struct op_info *info = op_info(op->kind);
    int64_t n = operand_stands_for(k < OPS_MAX_INPUTS ? &info->inputs[k]
                                                      : &info->outputs[k - OPS_MAX_INPUTS]);

    return n > 1 ? n : 0;
}

static int64_t blocks_of(const struct value *v)
{
    return ceil_div(v->rows * v->cols, OPS_NORM_BLOCK);
}

/* Rows of a piece, or columns of one row: whole norm blocks, unless it is all. */
static int64_t piece_extent(const struct cutting *c, const struct op *op)
{
    const struct value *x = &c->p->values[op->in[OPS_FIRST]];
    size_t most = c->o->options->rank.piece_bytes ? c->o->options->rank.piece_bytes : PIECE_BYTES;
    int64_t unit = x->rows == 1 ? 1 : x->cols, n = x->rows == 1 ? x->cols : x->rows;
    int64_t step = least_common_multiple(unit, OPS_NORM_BLOCK) / unit;
    int64_t each = (int64_t)(most / dtype_bytes(DTYPE_F32)) / unit / step * step;

    each = max_i64(each, step);
    return min_i64(each, n);
}

static bool is_away(const struct program *p, int id)
{
    return p->values[program_whole(p, id)].home != 0;
}

/* Whether some operand is away and larger than a piece, and none is a part that ranks share. */
static bool is_cut(const struct cutting *c, const struct op *op)
{
    const struct program *p = c->p;
    bool is_large = false;

    if (op->phase != PHASE_U || !(op_info(op->kind)->traits & TRAIT_BY_BLOCKS))
        return false;
    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
        int id = operand(op, k);
        const struct value *v = &p->values[id];

        if (v->shard_axis)
            return false;
        if (!is_data(p, op, id))
            continue;
        if (v->stride != v->cols)
            return false;
        is_large |= is_away(p, id) && piece_extent(c, op) < (v->rows == 1 ? v->cols : v->rows);
    }
    return is_large;
}

/* Part of what is away, such as a parameter's gradient in a bucket: it comes and goes by itself. */
static bool is_part(const struct program *p, int id)
{
    const struct value *v = &p->values[id];

    return v->base && is_away(p, id) && !v->shard_axis && (v->rows == 1 || v->stride == v->cols);
}

static bool has_part(const struct program *p, const struct op *op)
{
    bool has = false;

    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS && op->phase == PHASE_U; k++)
        has |= is_part(p, operand(op, k));
    return has;
}

/* A part of a cell that is a shard needs no gather, as all of it needs none. */
static int view_of_part(struct program *p, int id, int64_t begin, int64_t n)
{
    struct value v = p->values[id];
    int part = v.rows == 1 ? program_view(p, id, begin, 1, n, n)
                           : program_view(p, id, begin * v.cols, n, v.cols, v.cols);

    if (!v.base)
        p->values[part].bucket = 0;
    return part;
}

/* A plain value for part of a cell that is away; its home is that part of the cell's. */
static int new_piece(struct program *p, int id, int64_t begin, int64_t n)
{
    struct value v = p->values[id];
    struct value whole = p->values[program_whole(p, id)];
    int64_t rows = v.rows == 1 ? 1 : n, cols = v.rows == 1 ? n : v.cols;
    int64_t at = v.offset + begin * (v.rows == 1 ? 1 : v.cols);
    int home = program_view(p, whole.home, at, rows, cols, cols);
    int piece = program_value(p, rows, cols, v.dtype);

    memcpy(p->values[home].spread, v.spread, sizeof v.spread);
    memcpy(p->values[piece].spread, v.spread, sizeof v.spread);
    p->values[piece].home = home;
    return piece;
}

/* Part number `index` of an operand of data. */
static int piece_of(struct cutting *c, int id, int64_t index, int64_t each, int64_t extent)
{
    struct program *p = c->p;
    int64_t begin = index * each, n = min_i64(each, extent - begin);

    if (c->by_views || !is_away(p, id))
        return view_of_part(p, id, begin, n);
    struct cell_pieces *pieces = &c->of[id];
    if (!pieces->first) {
        pieces->n_each = each;
        for (int64_t i = 0; i * each < extent; i++) {
            int piece = new_piece(p, id, i * each, min_i64(each, extent - i * each));

            pieces->first = i ? pieces->first : piece;
        }
    }
    CHECK(pieces->n_each == each);
    /* Each has its home before it in the table. */
    return pieces->first + 2 * (int)index;
}

static void emit(struct cutting *c, const struct op *op)
{
    struct function *f = &c->to;

    f->ops = arena_grow(&c->p->arena, f->ops, sizeof *f->ops, &f->capacity, f->n_ops + 1);
    f->ops[f->n_ops++] = *op;
}

static void cut_op(struct cutting *c, const struct op *op)
{
    struct program *p = c->p;
    struct value x = p->values[op->in[OPS_FIRST]];
    int64_t each = piece_extent(c, op), extent = x.rows == 1 ? x.cols : x.rows;
    int64_t n_blocks = blocks_of(&x), unit = x.rows == 1 ? 1 : x.cols;
    int sites = op_info(op->kind)->site_input;

    for (int64_t i = 0; i * each < extent; i++) {
        int64_t first = i * each * unit / OPS_NORM_BLOCK;
        int64_t n = min_i64(each, extent - i * each);
        struct op piece = *op;

        for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
            int id = operand(op, k);
            int *to = k < OPS_MAX_INPUTS ? &piece.in[k] : &piece.out[k - OPS_MAX_INPUTS];

            if (is_data(p, op, id))
                *to = piece_of(c, id, i, each, extent);
            else if (id && n_blocks > 1 && table_block(op, k))
                *to = view_of_part(p, id, first * OPS_NORM_BLOCK / table_block(op, k),
                                   ceil_div(n * unit, table_block(op, k)));
        }
        if (sites && !op->in[sites - 1])
            piece.attributes.rng_site += (uint64_t)first;
        emit(c, &piece);
    }
}

/* As it is, on parts by themselves. */
static void part_op(struct cutting *c, const struct op *op)
{
    struct op parted = *op;

    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
        int id = operand(op, k);
        int *to = k < OPS_MAX_INPUTS ? &parted.in[k] : &parted.out[k - OPS_MAX_INPUTS];
        const struct value *v = &c->p->values[id];

        if (!is_part(c->p, id))
            continue;
        if (!c->whole[id])
            c->whole[id] = new_piece(c->p, id, 0, v->rows == 1 ? v->cols : v->rows);
        *to = c->whole[id];
    }
    emit(c, &parted);
}

void offload_cut_moved(const struct offload *o,
                       bool (*moves)(const struct program *program, const struct op *op))
{
    struct program *p = o->program;
    struct cutting c = { .o = o, .p = p, .by_views = true };

    for (int f = 0; f < p->n_functions; f++) {
        const struct function from = p->functions[f];

        c.to = from;
        c.to.ops = NULL;
        c.to.n_ops = c.to.capacity = 0;
        for (int i = 0; i < from.n_ops; i++)
            if (moves(p, &from.ops[i]) && is_cut(&c, &from.ops[i]))
                cut_op(&c, &from.ops[i]);
            else
                emit(&c, &from.ops[i]);
        if (c.to.n_ops > from.n_ops)
            p->functions[f] = c.to;
    }
}

void offload_cut_updates(const struct offload *o)
{
    struct program *p = o->program;
    struct cutting c = { .o = o, .p = p };

    c.of = arena_array(o->arena, struct cell_pieces, p->n_values);
    c.whole = arena_array(o->arena, int, p->n_values);
    for (int f = 0; f < p->n_functions; f++) {
        const struct function from = p->functions[f];
        bool any = false;

        for (int i = 0; i < from.n_ops; i++)
            any |= is_cut(&c, &from.ops[i]) || has_part(p, &from.ops[i]);
        if (!any)
            continue;
        c.to = from;
        c.to.ops = NULL;
        c.to.n_ops = c.to.capacity = 0;
        for (int i = 0; i < from.n_ops; i++)
            if (is_cut(&c, &from.ops[i]))
                cut_op(&c, &from.ops[i]);
            else
                part_op(&c, &from.ops[i]);
        p->functions[f] = c.to;
    }
}
