/*
 * head_norm.c - RMSNorm of each query head and each key head, and its gradient
 *
 * norm.c's RMSNorm over head_dim elements. A tile is a block of rows with all of their heads; bound
 * by memory. The weights' gradients are sums over all rows and heads: each block of GRAD_ROWS rows
 * sums its own into scratch, row by row and head by head, then blocks are added in order, and the
 * total goes to the accumulator in one add.
 */
#include "kernels/cpu/rows_impl.h"

#include <math.h>

#define FORWARD_ROWS 16
#define GRAD_ROWS 64

struct head_norm {
    const struct op_shape *op;
    float *partial; /* [blocks x 2 e]: of wq, of wk */
    int64_t n_blocks;
    int first;
};

static inline int n_normed(const struct op_attributes *a)
{
    return a->n_heads + a->n_kv_heads;
}

/* ---- forward ---- */

CPU_INLINE float head_squares(const void *row, int64_t at, int64_t e, enum dtype act)
{
    float lanes[SUM_LANES] = { 0 };
    int64_t i = 0;

    for (; i + SUM_LANES <= e; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++) {
            float x = act_get(row, at + i + l, act);

            lanes[l] = __builtin_fmaf(x, x, lanes[l]);
        }
    for (int l = 0; i + l < e; l++) {
        float x = act_get(row, at + i + l, act);

        lanes[l] = __builtin_fmaf(x, x, lanes[l]);
    }
    return sum_lanes(lanes);
}

CPU_INLINE void head_norm_row(const struct head_norm *n, int64_t row, enum dtype act)
{
    const struct op_attributes *a = &n->op->attributes;
    const void *in = cpu_row(&n->op->in[HEAD_NORM_QK], row);
    void *out = cpu_row(&n->op->out[HEAD_NORM_OUT], row);
    float *rstd = float_row_mut(&n->op->out[HEAD_NORM_RSTD], row);
    int64_t e = a->head_dim;

    for (int head = 0; head < n_normed(a); head++) {
        const float *w = n->op->in[head < a->n_heads ? HEAD_NORM_WQ : HEAD_NORM_WK].data;
        int64_t at = head * e;

        rstd[head] = 1.0f / sqrtf(head_squares(in, at, e, act) / (float)e + (float)a->eps);
        INDEPENDENT_TURNS
        for (int64_t i = 0; i < e; i++)
            act_put(out, at + i, act_get(in, at + i, act) * rstd[head] * w[i], act);
    }
}

CPU_INLINE void head_norm_tile_body(void *context, int64_t tile)
{
    const struct head_norm *n = context;
    int64_t row = tile * FORWARD_ROWS,
            end = min_i64(row + FORWARD_ROWS, n->op->in[HEAD_NORM_QK].rows);

    WITH_ACT(n->op->in[HEAD_NORM_QK].dtype, for (; row < end; row++) head_norm_row(n, row, act));
}

CPU_TILES(head_norm_tile);

static void head_norm_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct head_norm n = { .op = &call->op };

    (void)first;
    pool_run(kernels->pool, ceil_div(call->op.in[HEAD_NORM_QK].rows, FORWARD_ROWS),
             head_norm_tile[cpu_of(kernels)->isa], &n);
}

/* ---- gradient ---- */

/* One head of a row: with g = dy w and xhat = x rstd, dx = rstd (g - xhat mean(g xhat)). */
struct head_grad {
    const void *dy, *x;
    const float *w;
    void *dx;
    float *dw; /* adds dy xhat */
    float rstd;
    int64_t at, e; /* columns */
};

CPU_INLINE void head_grad_at(const struct head_grad *h, enum dtype act)
{
    float dots[SUM_LANES] = { 0 }, dot;
    int64_t i = 0;

    for (; i + SUM_LANES <= h->e; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            dots[l] = __builtin_fmaf(act_get(h->dy, h->at + i + l, act) * h->w[i + l],
                                     act_get(h->x, h->at + i + l, act) * h->rstd, dots[l]);
    for (int l = 0; i + l < h->e; l++)
        dots[l] = __builtin_fmaf(act_get(h->dy, h->at + i + l, act) * h->w[i + l],
                                 act_get(h->x, h->at + i + l, act) * h->rstd, dots[l]);
    dot = sum_lanes(dots) / (float)h->e;
    INDEPENDENT_TURNS
    for (i = 0; i < h->e; i++) {
        float dy = act_get(h->dy, h->at + i, act), xhat = act_get(h->x, h->at + i, act) * h->rstd;

        act_put(h->dx, h->at + i, h->rstd * __builtin_fmaf(-xhat, dot, dy * h->w[i]), act);
        h->dw[i] = __builtin_fmaf(dy, xhat, h->dw[i]);
    }
}

CPU_INLINE void head_norm_grad_row(const struct head_norm *n, int64_t row, float *partial,
                                   enum dtype act)
{
    const struct op_attributes *a = &n->op->attributes;
    const float *rstd = float_row(&n->op->in[HEAD_NORM_GRAD_RSTD], row);
    struct head_grad h = { .dy = cpu_row(&n->op->in[HEAD_NORM_GRAD_DOUT], row),
                           .x = cpu_row(&n->op->in[HEAD_NORM_GRAD_QK], row),
                           .dx = cpu_row(&n->op->out[HEAD_NORM_GRAD_DQK], row),
                           .e = a->head_dim };

    for (int head = 0; head < n_normed(a); head++) {
        bool is_key = head >= a->n_heads;

        h.w = n->op->in[is_key ? HEAD_NORM_GRAD_WK : HEAD_NORM_GRAD_WQ].data;
        h.dw = partial + is_key * h.e;
        h.rstd = rstd[head];
        h.at = head * h.e;
        head_grad_at(&h, act);
    }
}

CPU_INLINE void head_norm_grad_tile_body(void *context, int64_t tile)
{
    const struct head_norm *n = context;
    int64_t row = tile * GRAD_ROWS,
            end = min_i64(row + GRAD_ROWS, n->op->in[HEAD_NORM_GRAD_DOUT].rows);
    int64_t width = 2 * (int64_t)n->op->attributes.head_dim;
    float *partial = n->partial + tile * width;

    memset(partial, 0, (size_t)width * sizeof *partial);
    WITH_ACT(n->op->in[HEAD_NORM_GRAD_DOUT].dtype,
             for (; row < end; row++) head_norm_grad_row(n, row, partial, act));
}

CPU_TILES(head_norm_grad_tile);

/* Tile 0 is wq's total, 1 wk's. */
CPU_INLINE void head_norm_total_tile_body(void *context, int64_t tile)
{
    const struct head_norm *n = context;
    int64_t e = n->op->attributes.head_dim;
    float *out = n->op->out[HEAD_NORM_GRAD_DWQ + tile].data, sum[OPS_HEAD_DIM_MAX];

    if (!tensor_given(&n->op->out[HEAD_NORM_GRAD_DWQ + tile]))
        return;
    memcpy(sum, n->partial + tile * e, (size_t)e * sizeof *sum);
    for (int64_t block = 1; block < n->n_blocks; block++)
        for (int64_t i = 0; i < e; i++)
            sum[i] += n->partial[(2 * block + tile) * e + i];
    for (int64_t i = 0; i < e; i++)
        out[i] = n->first ? sum[i] : out[i] + sum[i];
}

CPU_TILES(head_norm_total_tile);

static size_t head_norm_grad_scratch(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return (size_t)(ceil_div(op->in[HEAD_NORM_GRAD_DOUT].rows, GRAD_ROWS) * 2 *
                    op->attributes.head_dim) *
           sizeof(float);
}

static void head_norm_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    enum cpu_isa isa = cpu_of(kernels)->isa;
    struct head_norm n = { .op = &call->op,
                           .partial = call->scratch,
                           .n_blocks = ceil_div(call->op.in[HEAD_NORM_GRAD_DOUT].rows, GRAD_ROWS),
                           .first = first };

    pool_run(kernels->pool, n.n_blocks, head_norm_grad_tile[isa], &n);
    pool_run(kernels->pool, 2, head_norm_total_tile[isa], &n);
}

void cpu_register_head_norm(struct kernels_backend *table)
{
    table->entries[OP_HEAD_NORM] = (struct kernel_entry){ .run = head_norm_run };
    table->entries[OP_HEAD_NORM_GRAD] =
        (struct kernel_entry){ .run = head_norm_grad_run, .scratch_bytes = head_norm_grad_scratch };
}
