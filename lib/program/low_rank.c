/*
 * low_rank.c - gradients are reduced over ranks as factors of low rank: compress.c's powersgd
 *
 * Of each matrix M of a flat cell, in which the error of earlier steps is, P = M Q is added over
 * ranks and made orthonormal, and so M' P gives the Q whose P Q' each rank decodes, the projection
 * of the sum onto what P spans (Vogels et al. 2019, algorithm 1). Q begins with the last step's,
 * made orthonormal, as in PyTorch's powerSGD_hook; zeros, before the first, become random numbers.
 * A rank of R loses its M - P Q' / R: together these are what the sum loses. Vectors, and matrices
 * that are no larger than their factors, lie between P's and are added up with them.
 *
 *     W  bucket.0 += accumulate bucket.0:error
 *     W  %80 = low_rank_basis bucket.0:right               parts: tables, constants
 *     W  %81 = low_rank_left bucket.0, parts, %80
 *     W  %82 = all_reduce %81  over dp
 *        ...                                               the backward goes on meanwhile
 *     W  %83 = low_rank_basis %82
 *     W  bucket.0:right.new = low_rank_right bucket.0, parts, %83
 *     W  bucket.0:right.new = all_reduce bucket.0:right.new  over dp
 *        ...
 *     W  %84, codec_sums = low_rank_sum ~bucket.0, parts, %83, bucket.0:right.new
 *     W  bucket.0:shard = accumulate %84's shard           under zero 0 %84 is bucket.0:sum
 *        ...
 *     U  keep_error bucket.0:right.new, skip_update, ~bucket.0:right
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "program/shard_impl.h"

/* ---- cells ---- */

struct member {
    int64_t offset;
    int parameter, use;
};

static int by_offset(const void *a, const void *b)
{
    const struct member *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The accumulators that lie in the flat cell, in its order. */
static struct member *list_members(struct program *p, const struct bucket_reduction *r, int *n)
{
    struct member *list = arena_array(&p->arena, struct member, p->n_parameters * TENSOR_MAX_USES);
    int error = p->buckets[r->bucket].errors[r->use];

    *n = 0;
    for (int i = 0; i < p->n_parameters; i++)
        for (int use = 0; use < TENSOR_MAX_USES; use++) {
            const struct value *v = &p->values[p->parameters[i].errors[use]];

            if (v->base == error)
                list[(*n)++] = (struct member){ v->offset, i, use };
        }
    qsort(list, (size_t)*n, sizeof *list, by_offset);
    return list;
}

/* Those of experts; q, k and v, or gate and up, are one. */
static int64_t matrices_of(const struct parameter *q)
{
    return max_i64(q->matrices.n_repeats, 1);
}

static bool is_factored(const struct program *p, const struct parameter *q)
{
    return ops_is_low_rank(p->codec.rank, q->rows / matrices_of(q), q->cols);
}

struct tables {
    struct ops_factored *parts;
    int32_t *left, *right; /* of each factor its first element and its rows */
    int64_t n_parts, n_factored, n_left, n_right;
};

static void add_part(struct tables *t, int64_t first, int64_t rows, int64_t cols, int rank)
{
    bool is_matrix = ops_is_low_rank(rank, rows, cols);

    t->parts[t->n_parts++] = (struct ops_factored){
        .first = (int32_t)first,
        .rows = is_matrix ? (int32_t)rows : 1,
        .cols = (int32_t)(is_matrix ? cols : rows * cols),
        .left = (int32_t)t->n_left,
        .right = is_matrix ? (int32_t)t->n_right : -1,
    };
    if (!is_matrix) {
        t->n_left += rows * cols;
        return;
    }
    t->left[2 * t->n_factored] = (int32_t)t->n_left;
    t->left[2 * t->n_factored + 1] = (int32_t)rows;
    t->right[2 * t->n_factored] = (int32_t)t->n_right;
    t->right[2 * t->n_factored++ + 1] = (int32_t)cols;
    t->n_left += rows * rank;
    t->n_right += cols * rank;
}

static struct tables tables_of(struct program *p, const struct member *list, int n)
{
    struct tables t = { 0 };
    int64_t n_parts = 0;

    for (int i = 0; i < n; i++)
        n_parts += matrices_of(&p->parameters[list[i].parameter]);
    t.parts = arena_array(&p->arena, struct ops_factored, n_parts);
    t.left = arena_array(&p->arena, int32_t, 2 * n_parts);
    t.right = arena_array(&p->arena, int32_t, 2 * n_parts);
    for (int i = 0; i < n; i++) {
        const struct parameter *q = &p->parameters[list[i].parameter];
        int64_t rows = q->rows / matrices_of(q);

        CHECK(q->rows % matrices_of(q) == 0);
        for (int64_t k = 0; k < matrices_of(q); k++)
            add_part(&t, list[i].offset + k * rows * q->cols, rows, q->cols, p->codec.rank);
    }
    return t;
}

static int table_cell(struct program *p, const char *name, const char *suffix, const void *content,
                      int64_t n)
{
    int cell = program_cell(p, ROLE_CONSTANT, arena_printf(&p->arena, "%s:%s", name, suffix), 1, n,
                            DTYPE_I32);

    p->values[cell].content = content;
    return cell;
}

/* Over the axis of the sum all ranks have one; over others each its own where its gradients are. */
static int factor_cell(struct program *p, enum cell_role role, const char *name, int64_t n,
                       const struct bucket *b, int use)
{
    int cell = program_cell(p, role, name, 1, n, DTYPE_F32);

    memcpy(p->values[cell].spread, p->values[b->errors[use]].spread, sizeof p->values[cell].spread);
    program_spread_over(p, cell, b->axis, role == ROLE_ERROR ? SPREAD_SAME : SPREAD_PARTIAL);
    return cell;
}

/* The parameters' views of what is kept. */
static void view_factors(struct program *p, const struct member *list, int n, int kept)
{
    int64_t at = 0;

    for (int i = 0; i < n; i++) {
        struct parameter *q = &p->parameters[list[i].parameter];
        int64_t rows = matrices_of(q) * q->cols;
        int rank = p->codec.rank;

        if (!is_factored(p, q))
            continue;
        int view = program_view(p, kept, at, rows, rank, rank);
        p->parameters[list[i].parameter].factors[list[i].use] = view;
        at += rows * rank;
    }
}

/* Where there is no matrix, as many as a table must have, all of no rows. */
void low_rank_make_cells(struct program *p, const struct bucket_reduction *r)
{
    struct bucket *b = &p->buckets[r->bucket];
    struct bucket_factors *f = &b->factors[r->use];
    const char *name = p->values[b->left[r->use]].name;
    int n;

    CHECK(b->n_elements <= INT32_MAX);
    const struct member *list = list_members(p, r, &n);
    struct tables t = tables_of(p, list, n);
    int64_t n_factored = max_i64(t.n_factored, 1), n_right = max_i64(t.n_right, p->codec.rank);
    f->n_left = t.n_left;
    f->parts = table_cell(p, name, "parts", t.parts, t.n_parts * OPS_FACTORED_WORDS);
    f->left_parts = table_cell(p, name, "left.parts", t.left, 2 * n_factored);
    f->right_parts = table_cell(p, name, "right.parts", t.right, 2 * n_factored);
    const char *kept = arena_printf(&p->arena, "%s:right", name);
    f->kept = factor_cell(p, ROLE_ERROR, kept, n_right, b, r->use);
    int own =
        factor_cell(p, ROLE_GRADIENT, arena_printf(&p->arena, "%s.new", kept), n_right, b, r->use);
    f->found = program_view(p, own, 0, 1, n_right, n_right);
    program_spread_over(p, f->found, b->axis, SPREAD_SAME);
    view_factors(p, list, n, f->kept);
}

/* ---- ops ---- */

static struct op op_of(const struct program *p, enum op_kind kind)
{
    return (
        struct op){ .kind = kind, .attributes.rank = p->codec.rank, .phase = PHASE_W, .layer = -1 };
}

static struct op all_reduce_op(enum mesh_axis axis, int x, int y)
{
    struct op op = { .kind = OP_ALL_REDUCE, .phase = PHASE_W, .layer = -1 };

    op.attributes.axis = axis;
    op.in[ALL_REDUCE_X] = x;
    op.out[ALL_REDUCE_Y] = y;
    op.stream = stream_of_axis(axis);
    return op;
}

static int basis_of(struct program *p, int function, int *index, int x, int parts, bool fills)
{
    struct op op = op_of(p, OP_LOW_RANK_BASIS);

    op.attributes.fills = fills;
    op.in[LOW_RANK_BASIS_X] = x;
    op.in[LOW_RANK_BASIS_PARTS] = parts;
    op.out[LOW_RANK_BASIS_Y] = program_value(p, 1, p->values[x].cols, DTYPE_F32);
    program_insert(p, function, (*index)++, &op);
    return op.out[LOW_RANK_BASIS_Y];
}

/* From `index` on: left factors of this rank, and their sum, which is returned. */
static int emit_left(struct program *p, int function, int *index, const struct bucket_reduction *r)
{
    const struct bucket *b = &p->buckets[r->bucket];
    const struct bucket_factors *f = &b->factors[r->use];
    int basis = basis_of(p, function, index, f->kept, f->right_parts, true);
    int own = program_value(p, 1, f->n_left, DTYPE_F32);
    int sum = program_value(p, 1, f->n_left, DTYPE_F32);

    struct op op = op_of(p, OP_LOW_RANK_LEFT);
    op.in[LOW_RANK_LEFT_X] = b->left[r->use];
    op.in[LOW_RANK_LEFT_PARTS] = f->parts;
    op.in[LOW_RANK_LEFT_RIGHT] = basis;
    op.out[LOW_RANK_LEFT_LEFT] = own;
    program_insert(p, function, (*index)++, &op);
    op = all_reduce_op(b->axis, own, sum);
    program_insert(p, function, *index, &op);
    return sum;
}

/* From `index` on: right factors, and their sum in `found`. Returns the basis of left. */
static int emit_right(struct program *p, int function, int *index, const struct bucket_reduction *r,
                      int left, int found)
{
    const struct bucket *b = &p->buckets[r->bucket];
    const struct bucket_factors *f = &b->factors[r->use];
    int basis = basis_of(p, function, index, left, f->left_parts, false);

    struct op op = op_of(p, OP_LOW_RANK_RIGHT);
    op.in[LOW_RANK_RIGHT_X] = b->left[r->use];
    op.in[LOW_RANK_RIGHT_PARTS] = f->parts;
    op.in[LOW_RANK_RIGHT_LEFT] = basis;
    op.out[LOW_RANK_RIGHT_RIGHT] = program_base(p, found);
    program_insert(p, function, (*index)++, &op);
    op = all_reduce_op(b->axis, program_base(p, found), found);
    program_insert(p, function, *index, &op);
    return basis;
}

static void emit_sum(struct program *p, int function, int index, const struct bucket_reduction *r,
                     int left, int right, int sums, int whole)
{
    const struct bucket *b = &p->buckets[r->bucket];
    int sum = whole ? whole : program_value(p, 1, b->n_elements, DTYPE_F32);

    struct op op = op_of(p, OP_LOW_RANK_SUM);
    op.attributes.scale = 1.0 / program_n_shards(p, r->bucket);
    op.in[LOW_RANK_SUM_X] = b->left[r->use];
    op.in[LOW_RANK_SUM_PARTS] = b->factors[r->use].parts;
    op.in[LOW_RANK_SUM_LEFT] = left;
    op.in[LOW_RANK_SUM_RIGHT] = right;
    op.out[LOW_RANK_SUM_Y] = sum;
    op.out[LOW_RANK_SUM_SUMS] = sums;
    program_insert(p, function, index, &op);
    compress_take_shard(p, function, index, r, sum, whole);
}

/* The op of the same stream behind op `after`, or the end of the function. */
static int behind_next(const struct function *f, int after)
{
    return min_int(compress_wait_place(f, after) + 1, f->n_ops);
}

/*
 * The next bucket's left factors are under way before this one's are waited for, and its right ones
 * before the sum is made, so that something travels while something is computed:
 *
 *     left 0 | left 1  right 0 | left 2  right 1  sum 0 | left 3  right 2  sum 1 | ...
 */
void low_rank_emit(struct program *p, int function, int index, const struct bucket_reduction *r,
                   int sums, int whole)
{
    const struct function *f = &p->functions[function];
    int found = p->buckets[r->bucket].factors[r->use].found;

    index++;
    int left = emit_left(p, function, &index, r);
    index = behind_next(f, index);
    int basis = emit_right(p, function, &index, r, left, found);
    int next = compress_wait_place(f, index);
    index = next < f->n_ops ? behind_next(f, next) : next;
    emit_sum(p, function, index, r, basis, found, sums, whole);
}

void low_rank_emit_unchanged(struct program *p, int function, const struct bucket_reduction *r)
{
    const struct bucket_factors *f = &p->buckets[r->bucket].factors[r->use];
    struct op op = { .kind = OP_ACCUMULATE, .phase = PHASE_W, .first = FIRST_ALWAYS, .layer = -1 };

    op.in[ACCUMULATE_X] = f->kept;
    op.out[ACCUMULATE_Y] = f->found;
    program_emit(p, function, &op);
}
