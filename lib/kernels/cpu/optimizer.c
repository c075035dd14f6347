/*
 * optimizer.c - the gradient's norm and AdamW
 *
 * One pass over memory each, bound by it: AdamW reads 16 and writes 12 bytes an element, and 2 more
 * for a 16-bit weight. The order of IEEE operations is the contract with other backends:
 *
 *   once a call, in double then rounded to float:
 *     decay = 1 - lr * weight_decay (or of each block's), take1 = 1 - beta1, take2 = 1 - beta2,
 *     step = lr / bias1, root2 = sqrt(bias2)
 *   an element, in float, each operation rounded, none fused:
 *     g = gradient * factor
 *     p = master * decay
 *     m = m + take1 * (g - m)
 *     v = v * beta2 + take2 * g * g           ((take2 * g) * g)
 *     p = p - step * (m / (sqrt(v) / root2 + eps))
 */
#include "kernels/cpu/rows_impl.h"

#include <math.h>

/* ---- the norm ----------------------------------------------------------------------------------
 */

#define SUMSQ_BLOCKS_A_TILE 4
#define SUMSQ_LANES 16 /* element i of a block in lane i % 16; lanes are added as a tree */

/* Element i of the logical tensor in row-major order; blocks run over row edges. */
CPU_INLINE double block_squares(const struct tensor *x, int64_t start, int64_t end)
{
    double lanes[SUMSQ_LANES] = { 0 };
    int64_t i = start;
    int lane = 0;

    while (i < end) {
        int64_t row = i / x->cols, col = i % x->cols;
        int64_t n = min_i64(end - i, x->cols - col);
        const float *p = float_row(x, row) + col;
        int64_t k = 0;

        for (; k < n && lane; k++, lane = (lane + 1) % SUMSQ_LANES)
            lanes[lane] += (double)p[k] * p[k];
        for (; k + SUMSQ_LANES <= n; k += SUMSQ_LANES)
            for (int l = 0; l < SUMSQ_LANES; l++)
                lanes[l] += (double)p[k + l] * p[k + l];
        for (; k < n; k++, lane = (lane + 1) % SUMSQ_LANES)
            lanes[lane] += (double)p[k] * p[k];
        i += n;
    }
    for (int half = SUMSQ_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

CPU_INLINE void sumsq_tile_body(void *context, int64_t tile)
{
    const struct op_shape *op = context;
    double *sums = op->out[0].data;
    int64_t end = min_i64((tile + 1) * SUMSQ_BLOCKS_A_TILE, op->out[0].cols);

    for (int64_t block = tile * SUMSQ_BLOCKS_A_TILE; block < end; block++)
        sums[block] =
            block_squares(&op->in[0], block * OPS_NORM_BLOCK,
                          min_i64((block + 1) * OPS_NORM_BLOCK, tensor_elements(&op->in[0])));
}

CPU_TILES(sumsq_tile);

static void sumsq_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct op_shape op = call->op;

    (void)first;
    pool_run(kernels->pool, ceil_div(op.out[0].cols, SUMSQ_BLOCKS_A_TILE),
             sumsq_tile[cpu_of(kernels)->isa], &op);
}

static void sum_run(void *context, int64_t tile, int thread)
{
    const struct op_shape *op = context;
    const double *x = op->in[0].data;
    const int32_t *ends = op->in[1].data, *order = op->in[2].data;
    double sum = 0;

    (void)thread;
    for (int64_t i = tile ? ends[tile - 1] : 0; i < ends[tile]; i++)
        sum += x[order ? order[i] : i];
    ((double *)op->out[0].data)[tile] = sum;
}

static void sum_runs_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    pool_run(kernels->pool, call->op.out[0].cols, sum_run, (void *)(uintptr_t)&call->op);
}

static void gradient_norm_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const double *sums = op->in[0].data;
    const int32_t *order = op->in[1].data;
    int64_t n = order ? op->in[1].cols : op->in[0].cols;
    float scale = tensor_given(&op->in[2]) ? *(const float *)op->in[2].data : 1.0f;
    double sum = 0, clip = op->attributes.clip, norm;

    (void)kernels;
    (void)first;
    for (int64_t i = 0; i < n; i++)
        sum += sums[order ? order[i] : i];
    norm = sqrt(sum) / (double)scale;
    *(double *)op->out[0].data = norm;
    *(float *)op->out[1].data = (clip > 0 && norm > clip ? (float)(clip / norm) : 1.0f) / scale;
    *(int32_t *)op->out[2].data = !isfinite(norm);
}

/* ---- AdamW -------------------------------------------------------------------------------------
 */

enum adamw_input { GRADIENT, SCALARS, FACTOR, SKIP, MASTER, M, V, DECAY };

struct adamw {
    const struct op_shape *op;
    struct tiling tiling;
    double lr;
    float factor, decay, take1, take2, beta2, step, root2, eps;
};

CPU_INLINE void adamw_row(const struct adamw *a, int64_t row, const struct rectangle *r,
                          float decay)
{
    const float *gradient = float_row(&a->op->in[GRADIENT], row);
    float *master = float_row_mut(&a->op->in[MASTER], row);
    float *m = float_row_mut(&a->op->in[M], row), *v = float_row_mut(&a->op->in[V], row);
    float factor = a->factor, take1 = a->take1, take2 = a->take2;
    float beta2 = a->beta2, step = a->step, root2 = a->root2, eps = a->eps;

    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++) {
        float g = gradient[i] * factor, p = master[i] * decay;
        float mean = m[i] + take1 * (g - m[i]);
        float square = v[i] * beta2 + take2 * g * g;

        m[i] = mean;
        v[i] = square;
        master[i] = p - step * (mean / (sqrtf(square) / root2 + eps));
    }
}

/* Where each block of elements has its own decay, piece by piece. */
CPU_INLINE void adamw_blocks(const struct adamw *a, int64_t row, const struct rectangle *r)
{
    const double *decays = a->op->in[DECAY].data;
    int64_t start = row * a->op->in[GRADIENT].cols;

    for (int64_t at = start + r->col, end; at < start + r->col_end; at = end) {
        int64_t block = at / OPS_NORM_BLOCK;

        end = min_i64((block + 1) * OPS_NORM_BLOCK, start + r->col_end);
        struct rectangle piece = { row, row + 1, at - start, end - start };
        adamw_row(a, row, &piece, (float)(1.0 - a->lr * decays[block]));
    }
}

CPU_INLINE void weight_row(const struct adamw *a, int64_t row, const struct rectangle *r)
{
    const float *master = float_row(&a->op->in[MASTER], row);
    void *weight = cpu_row(&a->op->out[0], row);

    WITH_ACT(a->op->out[0].dtype,
             for (int64_t i = r->col; i < r->col_end; i++) act_put(weight, i, master[i], act));
}

CPU_INLINE void adamw_tile_body(void *context, int64_t tile)
{
    const struct adamw *a = context;
    struct rectangle r = tiling_at(&a->tiling, tile);

    for (int64_t row = r.row; row < r.row_end; row++) {
        if (tensor_given(&a->op->in[DECAY]))
            adamw_blocks(a, row, &r);
        else
            adamw_row(a, row, &r, a->decay);
        if (tensor_given(&a->op->out[0]))
            weight_row(a, row, &r);
    }
}

CPU_TILES(adamw_tile);

static void adamw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *at = &op->attributes;
    const float *scalars = op->in[SCALARS].data;
    double lr = scalars[SCALAR_LR];

    (void)first;
    if (*(const int32_t *)op->in[SKIP].data)
        return;

    struct adamw a = {
        .op = op,
        .tiling = tiling_of(op->in[GRADIENT].rows, op->in[GRADIENT].cols),
        .lr = lr,
        .factor = *(const float *)op->in[FACTOR].data,
        .decay = (float)(1.0 - lr * at->weight_decay),
        .take1 = (float)(1.0 - at->beta1),
        .take2 = (float)(1.0 - at->beta2),
        .beta2 = (float)at->beta2,
        .step = (float)(lr / (double)scalars[SCALAR_BIAS1]),
        .root2 = (float)sqrt((double)scalars[SCALAR_BIAS2]),
        .eps = (float)at->eps,
    };

    pool_run(kernels->pool, a.tiling.n_tiles, adamw_tile[cpu_of(kernels)->isa], &a);
}

void cpu_register_optimizer(struct kernels_backend *table)
{
    table->entries[OP_SUMSQ] = (struct kernel_entry){ .run = sumsq_run };
    table->entries[OP_SUM_RUNS] = (struct kernel_entry){ .run = sum_runs_run };
    table->entries[OP_GRADIENT_NORM] = (struct kernel_entry){ .run = gradient_norm_run };
    table->entries[OP_ADAMW] = (struct kernel_entry){ .run = adamw_run };
}
