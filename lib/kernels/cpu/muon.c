/*
 * muon.c - Muon's momentum and update, element by element, and Newton-Schulz steps between them
 *
 * The order of IEEE operations is the contract with other backends. Once a call, in double then
 * rounded to float:
 *
 *     rest = 1 - beta1,  decay = 1 - lr * weight_decay (or of each block's)
 *
 * An element, in float, each operation rounded, none fused:
 *
 *     muon_momentum   g = gradient * factor;  m = m + rest * (g - m);  u = m + rest * (g - m)
 *     muon_update     p = master * decay;  p = p - lr * x
 *
 * newton_schulz copies a matrix into scratch, its rows the shorter side, and works there:
 *
 *     norm: sums of squares by OPS_NORM_BLOCK elements as sumsq has them, added in order, in double
 *     X = x * (float)(1 / max(norm, eps))
 *     A = X X'                                       rounded to bf16
 *     B = b * A + c * (A A)                          the product whole in fp32, then two roundings
 *     X = a * X + B X                                and a sum; of the last step times scale, too
 *
 * Bound by the products (gemm.c); of the two others memory: 14 bytes an element each.
 */
#include <math.h>
#include <string.h>

#include "base/halves.h"
#include "kernels/cpu/gemm_impl.h"
#include "kernels/cpu/rows_impl.h"

/* ---- momentum ---------------------------------------------------------------------------------
 */

struct momentum {
    const struct op_shape *op;
    struct tiling tiling;
    float factor, rest;
    bool skip;
};

CPU_INLINE void momentum_row(const struct momentum *a, int64_t row, int64_t col, int64_t n,
                             int gradient16, int nesterov)
{
    const void *gradient = cpu_row(&a->op->in[MUON_MOMENTUM_GRADIENT], row);
    float *m = float_row_mut(&a->op->in[MUON_MOMENTUM_M], row) + col;
    uint16_t *u = (uint16_t *)cpu_row(&a->op->out[MUON_MOMENTUM_U], row) + col;
    float factor = a->factor, rest = a->rest;

    INDEPENDENT_TURNS
    for (int64_t i = 0; i < n; i++) {
        float g = act_get(gradient, col + i, gradient16 ? DTYPE_BF16 : DTYPE_F32) * factor;
        float mean = m[i] + rest * (g - m[i]);

        m[i] = mean;
        u[i] = vec_to_bf16(nesterov ? mean + rest * (g - mean) : mean);
    }
}

CPU_INLINE void momentum_tile_body(void *context, int64_t tile)
{
    const struct momentum *a = context;
    struct tile_bounds r = tiling_at(&a->tiling, tile);
    int64_t n = r.col_end - r.col;
    int gradient16 = a->op->in[MUON_MOMENTUM_GRADIENT].dtype == DTYPE_BF16;

    for (int64_t row = r.row; row < r.row_end; row++) {
        if (a->skip) {
            uint16_t *u = cpu_row(&a->op->out[MUON_MOMENTUM_U], row);

            memset(u + r.col, 0, (size_t)n * sizeof *u);
        } else if (a->op->attributes.nesterov) {
            WITH_ACT(gradient16 ? DTYPE_BF16 : DTYPE_F32,
                     momentum_row(a, row, r.col, n, act == DTYPE_BF16, 1));
        } else {
            WITH_ACT(gradient16 ? DTYPE_BF16 : DTYPE_F32,
                     momentum_row(a, row, r.col, n, act == DTYPE_BF16, 0));
        }
    }
}

CPU_TILES(momentum_tile);

static void muon_momentum_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    struct momentum a = {
        .op = op,
        .tiling =
            tiling_of(op->in[MUON_MOMENTUM_GRADIENT].rows, op->in[MUON_MOMENTUM_GRADIENT].cols),
        .factor = *(const float *)op->in[MUON_MOMENTUM_CLIP_FACTOR].data,
        .rest = (float)(1.0 - op->attributes.beta1),
        .skip = *(const int32_t *)op->in[MUON_MOMENTUM_SKIP_UPDATE].data != 0,
    };

    (void)first;
    pool_run(kernels->pool, a.tiling.n_tiles, momentum_tile[cpu_of(kernels)->isa], &a);
}

/* ---- the update -------------------------------------------------------------------------------
 */

struct muon_step {
    const struct op_shape *op;
    struct tiling tiling;
    double lr;
    float step, decay;
};

CPU_INLINE void update_stretch(const struct muon_step *a, int64_t row, int64_t col, int64_t n,
                               float decay)
{
    const uint16_t *x = (const uint16_t *)cpu_row(&a->op->in[MUON_UPDATE_X], row) + col;
    float *master = float_row_mut(&a->op->in[MUON_UPDATE_MASTER], row) + col, step = a->step;

    INDEPENDENT_TURNS
    for (int64_t i = 0; i < n; i++) {
        float p = master[i] * decay;

        master[i] = p - step * vec_from_bf16(x[i]);
    }
}

/* Where each block of elements has its own decay. */
CPU_INLINE void update_blocks(const struct muon_step *a, int64_t row, int64_t col, int64_t n)
{
    const double *decays = a->op->in[MUON_UPDATE_DECAY].data;
    int64_t start = row * a->op->in[MUON_UPDATE_X].cols, last = start + col + n;

    for (int64_t at = start + col, end; at < last; at = end) {
        int64_t block = at / OPS_NORM_BLOCK;

        end = min_i64((block + 1) * OPS_NORM_BLOCK, last);
        update_stretch(a, row, at - start, end - at, (float)(1.0 - a->lr * decays[block]));
    }
}

CPU_INLINE void update_weight(const struct muon_step *a, int64_t row, int64_t col, int64_t col_end)
{
    const float *master = float_row(&a->op->in[MUON_UPDATE_MASTER], row);
    void *weight = cpu_row(&a->op->out[MUON_UPDATE_WEIGHT], row);
    enum dtype dtype = a->op->out[MUON_UPDATE_WEIGHT].dtype;

    if (a->op->attributes.half_away && dtype == DTYPE_BF16) {
        for (int64_t i = col; i < col_end; i++)
            ((uint16_t *)weight)[i] = halves_upper(master[i]);
        return;
    }
    WITH_ACT(dtype, for (int64_t i = col; i < col_end; i++) act_put(weight, i, master[i], act));
}

CPU_INLINE void update_tile_body(void *context, int64_t tile)
{
    const struct muon_step *a = context;
    struct tile_bounds r = tiling_at(&a->tiling, tile);

    for (int64_t row = r.row; row < r.row_end; row++) {
        if (tensor_given(&a->op->in[MUON_UPDATE_DECAY]))
            update_blocks(a, row, r.col, r.col_end - r.col);
        else
            update_stretch(a, row, r.col, r.col_end - r.col, a->decay);
        if (tensor_given(&a->op->out[MUON_UPDATE_WEIGHT]))
            update_weight(a, row, r.col, r.col_end);
    }
}

CPU_TILES(update_tile);

static void muon_update_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    double lr = ((const float *)op->in[MUON_UPDATE_SCALARS].data)[SCALAR_LR];

    (void)first;
    if (*(const int32_t *)op->in[MUON_UPDATE_SKIP_UPDATE].data)
        return;

    struct muon_step a = {
        .op = op,
        .tiling = tiling_of(op->in[MUON_UPDATE_X].rows, op->in[MUON_UPDATE_X].cols),
        .lr = lr,
        .step = (float)lr,
        .decay = (float)(1.0 - lr * op->attributes.weight_decay),
    };
    pool_run(kernels->pool, a.tiling.n_tiles, update_tile[cpu_of(kernels)->isa], &a);
}

/* ---- Newton-Schulz steps ----------------------------------------------------------------------
 */

/* What a matrix is made into; in scratch, the products' own behind it. */
struct steps_memory {
    int64_t small, large; /* X is [small x large] */
    uint16_t *x, *a, *b;  /* A and B are [small x small] */
    float *product;       /* of either size */
    double *sums;         /* of squares, a block each */
    void *scratch;        /* of products */
    size_t n_bytes;
};

/* The products of a step: X X', A A and B X. */
enum step_product { PRODUCT_GRAM, PRODUCT_SQUARE, PRODUCT_STEP, N_STEP_PRODUCTS };

static struct cpu_gemm_shape step_shape(const struct steps_memory *s, enum step_product which)
{
    int64_t n = which == PRODUCT_STEP ? s->large : s->small;
    int64_t k = which == PRODUCT_GRAM ? s->large : s->small;

    return (struct cpu_gemm_shape){ .m = s->small,
                                    .n = n,
                                    .k = k,
                                    .in = DTYPE_BF16,
                                    .out = which == PRODUCT_GRAM ? DTYPE_BF16 : DTYPE_F32,
                                    .b_transposed = which == PRODUCT_GRAM,
                                    .lda = k,
                                    .ldb = which == PRODUCT_GRAM ? s->large : n,
                                    .ldc = n };
}

/* base NULL: for n_bytes alone. */
static struct steps_memory lay_out(const struct cpu_kernels *cpu, const struct op_shape *op,
                                   char *base)
{
    struct newton_schulz_matrix m = ops_newton_schulz_matrix(op);
    struct steps_memory s = { .small = min_i64(m.rows, m.cols), .large = max_i64(m.rows, m.cols) };
    int64_t square = s.small * s.small, whole = s.small * s.large;
    size_t n_product = 0;
    size_t parts[] = { (size_t)whole * 2, (size_t)square * 2, (size_t)square * 2,
                       (size_t)max_i64(square, whole) * sizeof(float),
                       (size_t)ceil_div(whole, OPS_NORM_BLOCK) * sizeof(double) };
    char *at[5];

    for (int i = 0; i < 5; i++) {
        at[i] = base ? base + s.n_bytes : NULL;
        s.n_bytes += align_up(parts[i], 64);
    }
    for (int i = 0; i < N_STEP_PRODUCTS; i++) {
        struct cpu_gemm_shape shape = step_shape(&s, (enum step_product)i);
        size_t n_bytes = cpu_gemm_scratch_bytes(cpu, &shape);

        n_product = n_bytes > n_product ? n_bytes : n_product;
    }
    s.x = (uint16_t *)(void *)at[0];
    s.a = (uint16_t *)(void *)at[1];
    s.b = (uint16_t *)(void *)at[2];
    s.product = (float *)(void *)at[3];
    s.sums = (double *)(void *)at[4];
    s.scratch = base ? base + s.n_bytes : NULL;
    s.n_bytes += n_product;
    return s;
}

static size_t newton_schulz_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    return lay_out(cpu_of(kernels), op, NULL).n_bytes;
}

/* The number-th matrix of x, and its copy in scratch. */
struct matrix_place {
    const struct op_shape *op;
    struct newton_schulz_matrix matrix;
    int64_t number;
    uint16_t *copy;
    bool is_transposed;
};

/* Where a part of row `row` of the matrix begins. */
static uint16_t *part_of_row(const struct matrix_place *p, int64_t row, int64_t part)
{
    const struct op_attributes *a = &p->op->attributes;
    int64_t of_slot = p->number % a->matrices, slot = p->number / a->matrices;
    int64_t in_x = (slot * a->matrix_parts + part) * a->matrices + of_slot;

    return (uint16_t *)cpu_row(&p->op->in[NEWTON_SCHULZ_X], in_x * a->matrix_rows + row);
}

CPU_INLINE void exchange_row(uint16_t *row, uint16_t *copy, int64_t n, int64_t stride, bool is_out)
{
    if (is_out)
        for (int64_t i = 0; i < n; i++)
            row[i] = copy[i * stride];
    else
        for (int64_t i = 0; i < n; i++)
            copy[i * stride] = row[i];
}

/* Row `row` of the matrix, from x or back to it. */
static void move_row(const struct matrix_place *p, int64_t row, bool is_out)
{
    const struct op_attributes *a = &p->op->attributes;
    int64_t cols = p->op->in[NEWTON_SCHULZ_X].cols;
    int64_t n = a->by_columns ? a->matrix_parts : 1;

    for (int64_t i = 0; i < n; i++) {
        int64_t part = a->by_columns ? i : row / a->matrix_rows;
        uint16_t *from = part_of_row(p, a->by_columns ? row : row % a->matrix_rows, part);

        if (p->is_transposed)
            exchange_row(from, p->copy + i * cols * p->matrix.rows + row, cols, p->matrix.rows,
                         is_out);
        else
            exchange_row(from, p->copy + row * p->matrix.cols + i * cols, cols, 1, is_out);
    }
}

enum { ROWS_A_TILE = 16 };

static void copy_in_tile(void *context, int64_t tile, int thread)
{
    const struct matrix_place *p = context;

    (void)thread;
    for (int64_t row = tile * ROWS_A_TILE; row < min_i64((tile + 1) * ROWS_A_TILE, p->matrix.rows);
         row++)
        move_row(p, row, false);
}

static void copy_out_tile(void *context, int64_t tile, int thread)
{
    const struct matrix_place *p = context;

    (void)thread;
    for (int64_t row = tile * ROWS_A_TILE; row < min_i64((tile + 1) * ROWS_A_TILE, p->matrix.rows);
         row++)
        move_row(p, row, true);
}

/* y = of * x + by * product, which is scaled where that is said; without a product of * x. */
struct combine {
    const uint16_t *x;
    uint16_t *y;
    const float *product; /* NULL: there is none */
    float of, by, scale;
    int64_t n;
    bool is_scaled;
};

enum { COMBINE_A_TILE = 16384 };

CPU_INLINE void combine_tile_body(void *context, int64_t tile)
{
    const struct combine *c = context;
    int64_t begin = tile * COMBINE_A_TILE, end = min_i64(c->n, begin + COMBINE_A_TILE);
    const uint16_t *x = c->x;
    uint16_t *y = c->y;
    const float *product = c->product;
    float of = c->of, by = c->by, scale = c->scale;

    if (!product) {
        INDEPENDENT_TURNS
        for (int64_t i = begin; i < end; i++)
            y[i] = vec_to_bf16(vec_from_bf16(x[i]) * of);
    } else if (c->is_scaled) {
        INDEPENDENT_TURNS
        for (int64_t i = begin; i < end; i++) {
            float sum = of * vec_from_bf16(x[i]) + by * product[i];

            y[i] = vec_to_bf16(sum * scale);
        }
    } else {
        INDEPENDENT_TURNS
        for (int64_t i = begin; i < end; i++)
            y[i] = vec_to_bf16(of * vec_from_bf16(x[i]) + by * product[i]);
    }
}

CPU_TILES(combine_tile);

static void combine(struct kernels *kernels, struct combine *c)
{
    pool_run(kernels->pool, ceil_div(c->n, COMBINE_A_TILE), combine_tile[cpu_of(kernels)->isa], c);
}

static void run_product(struct kernels *kernels, const struct steps_memory *s,
                        enum step_product which)
{
    struct cpu_gemm_shape shape = step_shape(s, which);
    struct cpu_gemm_operands operands = { .first = 1 };

    operands.a = which == PRODUCT_GRAM ? s->x : which == PRODUCT_SQUARE ? s->a : s->b;
    operands.b = which == PRODUCT_SQUARE ? s->a : s->x;
    operands.c = which == PRODUCT_GRAM ? (void *)s->a : s->product;
    cpu_gemm_run(cpu_of(kernels), &shape, &operands, s->scratch);
}

/* The norm as the gradients' is made, by the same kernel. */
static double norm_of(struct kernels *kernels, const struct steps_memory *s)
{
    int64_t n_blocks = ceil_div(s->small * s->large, OPS_NORM_BLOCK);
    struct kernel_call call = { .op = { .kind = OP_SUMSQ } };
    double sum = 0;

    call.op.in[SUMSQ_X] = (struct tensor){ s->x, s->small, s->large, s->large, DTYPE_BF16 };
    call.op.out[SUMSQ_SUMS] = (struct tensor){ s->sums, 1, n_blocks, n_blocks, DTYPE_F64 };
    kernels->backend->entries[OP_SUMSQ].run(kernels, &call, 0);
    for (int64_t i = 0; i < n_blocks; i++)
        sum += s->sums[i];
    return sqrt(sum);
}

static void run_steps(struct kernels *kernels, const struct op_attributes *a,
                      const struct steps_memory *s)
{
    int64_t square = s->small * s->small, whole = s->small * s->large;
    double norm = norm_of(kernels, s);
    float inverse = (float)(1.0 / (norm > a->eps || norm != norm ? norm : a->eps));

    combine(kernels, &(struct combine){ .x = s->x, .y = s->x, .of = inverse, .n = whole });
    for (int i = 0; i < a->steps; i++) {
        struct newton_schulz_step step = newton_schulz_step(a->coefficients, i);

        run_product(kernels, s, PRODUCT_GRAM);
        run_product(kernels, s, PRODUCT_SQUARE);
        combine(kernels, &(struct combine){ .x = s->a,
                                            .y = s->b,
                                            .product = s->product,
                                            .of = (float)step.b,
                                            .by = (float)step.c,
                                            .n = square });
        run_product(kernels, s, PRODUCT_STEP);
        combine(kernels, &(struct combine){ .x = s->x,
                                            .y = s->x,
                                            .product = s->product,
                                            .of = (float)step.a,
                                            .by = 1,
                                            .scale = (float)a->scale,
                                            .n = whole,
                                            .is_scaled = i + 1 == a->steps });
    }
}

static void newton_schulz_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    struct steps_memory s = lay_out(cpu_of(kernels), op, call->scratch);
    struct matrix_place p = { .op = op, .matrix = ops_newton_schulz_matrix(op), .copy = s.x };
    int64_t n_tiles = ceil_div(p.matrix.rows, ROWS_A_TILE);

    (void)first;
    p.is_transposed = p.matrix.rows > p.matrix.cols;
    for (p.number = 0; p.number < p.matrix.n; p.number++) {
        pool_run(kernels->pool, n_tiles, copy_in_tile, &p);
        run_steps(kernels, &op->attributes, &s);
        pool_run(kernels->pool, n_tiles, copy_out_tile, &p);
    }
}

void cpu_register_muon(struct kernels_backend *table)
{
    table->entries[OP_MUON_MOMENTUM] = (struct kernel_entry){ .run = muon_momentum_run };
    table->entries[OP_NEWTON_SCHULZ] =
        (struct kernel_entry){ .run = newton_schulz_run,
                               .scratch_bytes = newton_schulz_scratch_bytes };
    table->entries[OP_MUON_UPDATE] = (struct kernel_entry){ .run = muon_update_run };
}
