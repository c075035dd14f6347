/*
 * normalize_rows.c - rows of a matrix divided by their lengths, and the gradient of that
 *
 * y = w / max(|w|, eps), dw = (dy - y (y . dy)) / |w|: the head of Baichuan 2 (Yang et al. 2023,
 * NormHead). A tile is a block of rows, each of which is read twice, the second time
 * from cache. Bound by memory.
 */
#include "kernels/cpu/rows_impl.h"

#include <math.h>

#define ROWS_A_TILE 16

/* ---- forward ---- */

CPU_INLINE void normalize_row(const struct op_shape *op, int64_t row, enum dtype act)
{
    const void *w = cpu_row(&op->in[NORMALIZE_ROWS_W], row);
    void *y = cpu_row(&op->out[NORMALIZE_ROWS_Y], row);
    int64_t d = op->in[NORMALIZE_ROWS_W].cols, i = 0;
    float lanes[SUM_LANES] = { 0 }, norm, eps = (float)op->attributes.eps;

    for (; i + SUM_LANES <= d; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++) {
            float x = act_get(w, i + l, act);

            lanes[l] = __builtin_fmaf(x, x, lanes[l]);
        }
    for (int l = 0; i + l < d; l++) {
        float x = act_get(w, i + l, act);

        lanes[l] = __builtin_fmaf(x, x, lanes[l]);
    }
    norm = sqrtf(sum_lanes(lanes));
    norm = norm < eps ? eps : norm;
    *float_row_mut(&op->out[NORMALIZE_ROWS_NORM], row) = norm;
    INDEPENDENT_TURNS
    for (i = 0; i < d; i++)
        act_put(y, i, act_get(w, i, act) / norm, act);
}

CPU_INLINE void normalize_tile_body(void *context, int64_t tile)
{
    const struct op_shape *op = context;
    int64_t row = tile * ROWS_A_TILE,
            end = min_i64(row + ROWS_A_TILE, op->in[NORMALIZE_ROWS_W].rows);

    WITH_ACT(op->in[NORMALIZE_ROWS_W].dtype, for (; row < end; row++) normalize_row(op, row, act));
}

CPU_TILES(normalize_tile);

static void normalize_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct op_shape op = call->op;

    (void)first;
    pool_run(kernels->pool, ceil_div(op.in[NORMALIZE_ROWS_W].rows, ROWS_A_TILE),
             normalize_tile[cpu_of(kernels)->isa], &op);
}

/* ---- gradient ---- */

struct normalize_grad {
    const struct op_shape *op;
    int first;
};

/* dw adds (dy - y (y dy)) / norm; where eps stood for the length, dy / norm. */
CPU_INLINE void normalize_grad_row(const struct normalize_grad *n, int64_t row, enum dtype act)
{
    const float *dy = float_row(&n->op->in[NORMALIZE_ROWS_GRAD_DY], row),
                norm = *float_row(&n->op->in[NORMALIZE_ROWS_GRAD_NORM], row);
    const void *w = cpu_row(&n->op->in[NORMALIZE_ROWS_GRAD_W], row);
    void *dw = cpu_row(&n->op->out[NORMALIZE_ROWS_GRAD_DW], row);
    enum dtype own_dtype =
        n->op->out[NORMALIZE_ROWS_GRAD_DW].dtype == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32;
    int64_t d = n->op->in[NORMALIZE_ROWS_GRAD_DY].cols, i = 0;
    float lanes[SUM_LANES] = { 0 }, inverse = 1.0f / norm, dot;

    for (; i + SUM_LANES <= d; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lanes[l] = __builtin_fmaf(act_get(w, i + l, act), dy[i + l], lanes[l]);
    for (int l = 0; i + l < d; l++)
        lanes[l] = __builtin_fmaf(act_get(w, i + l, act), dy[i + l], lanes[l]);
    dot = norm > (float)n->op->attributes.eps ? sum_lanes(lanes) * inverse * inverse : 0.0f;
    INDEPENDENT_TURNS
    for (i = 0; i < d; i++) {
        float own = __builtin_fmaf(-dot, act_get(w, i, act), dy[i]) * inverse;

        act_put(dw, i, n->first ? own : act_get(dw, i, own_dtype) + own, own_dtype);
    }
}

CPU_INLINE void normalize_grad_tile_body(void *context, int64_t tile)
{
    const struct normalize_grad *n = context;
    int64_t row = tile * ROWS_A_TILE,
            end = min_i64(row + ROWS_A_TILE, n->op->in[NORMALIZE_ROWS_GRAD_DY].rows);

    WITH_ACT(n->op->in[NORMALIZE_ROWS_GRAD_W].dtype,
             for (; row < end; row++) normalize_grad_row(n, row, act));
}

CPU_TILES(normalize_grad_tile);

static void normalize_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct normalize_grad n = { .op = &call->op, .first = first };

    pool_run(kernels->pool, ceil_div(call->op.in[NORMALIZE_ROWS_GRAD_DY].rows, ROWS_A_TILE),
             normalize_grad_tile[cpu_of(kernels)->isa], &n);
}

void cpu_register_normalize_rows(struct kernels_backend *table)
{
    table->entries[OP_NORMALIZE_ROWS] = (struct kernel_entry){ .run = normalize_run };
    table->entries[OP_NORMALIZE_ROWS_GRAD] = (struct kernel_entry){ .run = normalize_grad_run };
}
