/*
 * norm.c - RMSNorm (Zhang and Sennrich 2019) and LayerNorm (Ba et al. 2016), alone and fused with
 * the residual add, and their gradients
 *
 *     rmsnorm    y = x r w            r = 1 / sqrt(mean(x^2) + eps)
 *     layernorm  y = (x - m) r w + b  r = 1 / sqrt(var(x) + eps)
 *     gradient   g = dy w; dx = r (g - [mean(g)] - xh mean(g xh)), xh = (x - [m]) r; dw = sum of dy xh
 *                (what is in brackets: LayerNorm's)
 *
 * A tile is a block of rows. Bound by memory: a row stays in the first-level cache between the pass
 * that makes its statistics and the one that uses them. The parameters' gradients are sums
 * over all rows: each block of GRAD_ROWS rows sums its own into scratch, then blocks are added in
 * order, column tiles side by side, and the total goes to the accumulator in one add.
 */
#include "kernels/cpu/fp8_rows_impl.h"

#include <math.h>

#define FORWARD_ROWS 16
#define GRAD_ROWS 64
#define TOTAL_COLS 256

/* ---- forward -----------------------------------------------------------------------------------
 */

struct norm {
    const struct tensor *x, *delta, *w, *b;     /* delta, b: NULL where absent */
    const struct tensor *y, *mean, *rstd, *sum; /* mean NULL: RMSNorm */
    struct fp8_rows coded;
    float eps;
};

CPU_INLINE float row_sum(const void *x, int64_t d, enum dtype res)
{
    float lanes[SUM_LANES] = { 0 };
    int64_t i = 0;

    for (; i + SUM_LANES <= d; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lanes[l] += act_get(x, i + l, res);
    for (int l = 0; i + l < d; l++)
        lanes[l] += act_get(x, i + l, res);
    return sum_lanes(lanes);
}

/* Sum of (x - mean)^2. */
CPU_INLINE float row_squares(const void *x, float mean, int64_t d, enum dtype res)
{
    float lanes[SUM_LANES] = { 0 };
    int64_t i = 0;

    for (; i + SUM_LANES <= d; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++) {
            float off = act_get(x, i + l, res) - mean;

            lanes[l] = __builtin_fmaf(off, off, lanes[l]);
        }
    for (int l = 0; i + l < d; l++) {
        float off = act_get(x, i + l, res) - mean;

        lanes[l] = __builtin_fmaf(off, off, lanes[l]);
    }
    return sum_lanes(lanes);
}

/* With delta: of the sum as it is stored. */
CPU_INLINE void norm_row(const struct norm *n, int64_t row, enum dtype act, enum dtype res)
{
    int64_t d = n->x->cols;
    const void *x = cpu_row(n->x, row);
    const float *w = n->w->data, *b = n->b ? n->b->data : NULL;
    void *y = cpu_row(n->y, row);
    float mean = 0, rstd;

    if (n->delta) {
        const void *delta = cpu_row(n->delta, row);
        void *sum = cpu_row(n->sum, row);

        for (int64_t i = 0; i < d; i++)
            act_put(sum, i, act_get(x, i, res) + act_get(delta, i, act), res);
        x = sum;
    }
    if (n->mean)
        *float_row_mut(n->mean, row) = mean = row_sum(x, d, res) / (float)d;
    rstd = 1.0f / sqrtf(row_squares(x, mean, d, res) / (float)d + n->eps);
    *float_row_mut(n->rstd, row) = rstd;
    if (b)
        for (int64_t i = 0; i < d; i++)
            act_put(y, i, __builtin_fmaf((act_get(x, i, res) - mean) * rstd, w[i], b[i]), act);
    else
        for (int64_t i = 0; i < d; i++)
            act_put(y, i, (act_get(x, i, res) - mean) * rstd * w[i], act);
    if (n->coded.most)
        fp8_row(&n->coded, row);
}

CPU_INLINE void norm_tile_body(void *context, int64_t tile)
{
    const struct norm *n = context;
    int64_t row = tile * FORWARD_ROWS, end = min_i64(row + FORWARD_ROWS, n->x->rows);

    WITH_ACT_AND_RES(n->y->dtype, n->x->dtype, for (; row < end; row++) norm_row(n, row, act, res));
}

CPU_TILES(norm_tile);

static const struct tensor *if_given(const struct tensor *t)
{
    return tensor_given(t) ? t : NULL;
}

static void norm_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int adds = op->kind == OP_ADD_RMSNORM || op->kind == OP_ADD_LAYERNORM;
    int layer = op->kind == OP_LAYERNORM || op->kind == OP_ADD_LAYERNORM;
    struct norm n = {
        .x = &op->in[RMSNORM_X],
        .delta = adds ? &op->in[ADD_RMSNORM_DELTA] : NULL,
        .w = &op->in[RMSNORM_W + adds],
        .b = layer ? if_given(&op->in[LAYERNORM_B + adds]) : NULL,
        .y = &op->out[RMSNORM_Y],
        .mean = layer ? &op->out[LAYERNORM_MEAN] : NULL,
        .rstd = &op->out[RMSNORM_RSTD + layer],
        .sum = adds ? &op->out[ADD_RMSNORM_SUM + layer] : NULL,
        .coded = fp8_rows_of(op),
        .eps = (float)op->attributes.eps,
    };

    (void)first;
    pool_run(kernels->pool, ceil_div(n.x->rows, FORWARD_ROWS), norm_tile[cpu_of(kernels)->isa], &n);
}

/* ---- gradients ---------------------------------------------------------------------------------
 */

struct norm_grad {
    const struct tensor *dy, *x, *w, *mean, *rstd, *add; /* mean, add: NULL where absent */
    const struct tensor *dx, *dw, *db, *copy;            /* NULL where absent */
    struct fp8_rows coded;
    float *partial_dw, *partial_db; /* [blocks x d] each */
    int64_t n_blocks;
    int first;
};

/* What a row adds to dw and db, as norm_grad_row does, where dx is not wanted. */
CPU_INLINE void norm_grad_sums(const struct norm_grad *n, int64_t row, float *dw, float *db,
                               enum dtype act, enum dtype res)
{
    const void *dy = cpu_row(n->dy, row), *x = cpu_row(n->x, row);
    float rstd = *float_row(n->rstd, row), mean = n->mean ? *float_row(n->mean, row) : 0;

    for (int64_t i = 0; i < n->x->cols; i++)
        dw[i] = __builtin_fmaf(act_get(dy, i, act), (act_get(x, i, res) - mean) * rstd, dw[i]);
    if (n->db)
        for (int64_t i = 0; i < n->x->cols; i++)
            db[i] += act_get(dy, i, act);
}

/*
 * With g = dy w and xhat = (x - mean) rstd: dx = rstd (g - mean(g) - xhat mean(g xhat)); RMSNorm
 * has no mean(g). dw adds dy xhat, db adds dy.
 */
CPU_INLINE void norm_grad_row(const struct norm_grad *n, int64_t row, float *dw, float *db,
                              enum dtype act, enum dtype res)
{
    int64_t d = n->x->cols, i = 0;
    const void *dy = cpu_row(n->dy, row), *x = cpu_row(n->x, row);
    const void *add = n->add ? cpu_row(n->add, row) : NULL;
    const float *w = n->w->data;
    void *dx = cpu_row(n->dx, row);
    float rstd = *float_row(n->rstd, row), mean = n->mean ? *float_row(n->mean, row) : 0;
    float dots[SUM_LANES] = { 0 }, sums[SUM_LANES] = { 0 };
    float dot, sum;

    for (; i + SUM_LANES <= d; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++) {
            float g = act_get(dy, i + l, act) * w[i + l];
            float xhat = (act_get(x, i + l, res) - mean) * rstd;

            dots[l] = __builtin_fmaf(g, xhat, dots[l]);
            sums[l] += g;
        }
    for (int l = 0; i + l < d; l++) {
        float g = act_get(dy, i + l, act) * w[i + l];
        float xhat = (act_get(x, i + l, res) - mean) * rstd;

        dots[l] = __builtin_fmaf(g, xhat, dots[l]);
        sums[l] += g;
    }
    dot = sum_lanes(dots) / (float)d;
    sum = n->mean ? sum_lanes(sums) / (float)d : 0;
    for (i = 0; i < d; i++) {
        float grad = act_get(dy, i, act), xhat = (act_get(x, i, res) - mean) * rstd;
        float own = rstd * (__builtin_fmaf(-xhat, dot, grad * w[i]) - sum);

        act_put(dx, i, add ? act_get(add, i, res) + own : own, res);
        dw[i] = __builtin_fmaf(grad, xhat, dw[i]);
    }
    if (n->db)
        for (i = 0; i < d; i++)
            db[i] += act_get(dy, i, act);
    if (n->copy) {
        void *copy = cpu_row(n->copy, row);

        for (i = 0; i < d; i++)
            act_put(copy, i, act_get(dx, i, res), act);
    }
    if (n->coded.most)
        fp8_row(&n->coded, row);
}

CPU_INLINE void norm_grad_tile_body(void *context, int64_t tile)
{
    const struct norm_grad *n = context;
    int64_t d = n->x->cols, row = tile * GRAD_ROWS, end = min_i64(row + GRAD_ROWS, n->x->rows);
    float *dw = n->partial_dw + tile * d, *db = n->db ? n->partial_db + tile * d : NULL;

    memset(dw, 0, (size_t)d * sizeof *dw);
    if (db)
        memset(db, 0, (size_t)d * sizeof *db);
    WITH_ACT_AND_RES(n->dy->dtype, n->x->dtype,
                     for (; row < end; row++) if (n->dx) norm_grad_row(n, row, dw, db, act, res);
                     else norm_grad_sums(n, row, dw, db, act, res));
}

CPU_TILES(norm_grad_tile);

CPU_INLINE void total(const struct norm_grad *n, const float *partial, float *out, int64_t col)
{
    int64_t d = n->x->cols, cols = min_i64(TOTAL_COLS, d - col);
    float sum[TOTAL_COLS];

    memcpy(sum, partial + col, (size_t)cols * sizeof *sum);
    for (int64_t block = 1; block < n->n_blocks; block++)
        for (int64_t i = 0; i < cols; i++)
            sum[i] += partial[block * d + col + i];
    for (int64_t i = 0; i < cols; i++)
        out[col + i] = n->first ? sum[i] : out[col + i] + sum[i];
}

CPU_INLINE void norm_total_tile_body(void *context, int64_t tile)
{
    const struct norm_grad *n = context;

    if (n->dw)
        total(n, n->partial_dw, n->dw->data, tile * TOTAL_COLS);
    if (n->db)
        total(n, n->partial_db, n->db->data, tile * TOTAL_COLS);
}

CPU_TILES(norm_total_tile);

static size_t norm_grad_scratch(struct kernels *kernels, const struct op_shape *op)
{
    bool has_db = op->kind == OP_LAYERNORM_GRAD && tensor_given(&op->out[LAYERNORM_GRAD_DB]);

    (void)kernels;
    return (size_t)(ceil_div(op->in[RMSNORM_GRAD_DY].rows, GRAD_ROWS) *
                    op->in[RMSNORM_GRAD_DY].cols * (1 + has_db)) *
           sizeof(float);
}

static void norm_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int layer = op->kind == OP_LAYERNORM_GRAD;
    enum cpu_isa isa = cpu_of(kernels)->isa;
    int64_t d = op->in[RMSNORM_GRAD_DY].cols,
            n_blocks = ceil_div(op->in[RMSNORM_GRAD_DY].rows, GRAD_ROWS);
    struct norm_grad n = {
        .dy = &op->in[RMSNORM_GRAD_DY],
        .x = &op->in[RMSNORM_GRAD_X],
        .w = &op->in[RMSNORM_GRAD_W],
        .mean = layer ? &op->in[LAYERNORM_GRAD_MEAN] : NULL,
        .rstd = &op->in[RMSNORM_GRAD_RSTD + layer],
        .add = if_given(&op->in[RMSNORM_GRAD_ADD + layer]),
        .dx = if_given(&op->out[RMSNORM_GRAD_DX]),
        .dw = if_given(&op->out[RMSNORM_GRAD_DW]),
        .db = layer ? if_given(&op->out[LAYERNORM_GRAD_DB]) : NULL,
        .copy = if_given(&op->out[RMSNORM_GRAD_COPY + layer]),
        .coded = fp8_rows_of(op),
        .partial_dw = call->scratch,
        .partial_db = (float *)call->scratch + n_blocks * d,
        .n_blocks = n_blocks,
        .first = first,
    };

    pool_run(kernels->pool, n_blocks, norm_grad_tile[isa], &n);
    if (n.dw || n.db)
        pool_run(kernels->pool, ceil_div(d, TOTAL_COLS), norm_total_tile[isa], &n);
}

void cpu_register_norm(struct kernels_backend *table)
{
    struct kernel_entry forward = { .run = norm_run };
    struct kernel_entry grad = { .run = norm_grad_run, .scratch_bytes = norm_grad_scratch };

    table->entries[OP_RMSNORM] = forward;
    table->entries[OP_LAYERNORM] = forward;
    table->entries[OP_ADD_RMSNORM] = forward;
    table->entries[OP_ADD_LAYERNORM] = forward;
    table->entries[OP_RMSNORM_GRAD] = grad;
    table->entries[OP_LAYERNORM_GRAD] = grad;
}
