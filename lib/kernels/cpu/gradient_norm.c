/*
 * gradient_norm.c - the gradient's norm: sums of squares by block, and what they make
 *
 * Sums of squares are one pass over the gradient, bound by what a core reads from memory, which may
 * be less than what it reads and writes at the same time. The order of additions is part of the
 * contract with other backends.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/rows_impl.h"

#define SUMSQ_BLOCKS_A_TILE 4
#define SUMSQ_LANES 16 /* element i of a block in lane i % 16; lanes are added as a tree */
#define SUMSQ_AHEAD \
    8192 /* bytes: what is read so far ahead is under way, which hardware alone does
                          * not see to in time; 20 % faster than without */

CPU_INLINE double square(const void *row, int64_t i, enum dtype dtype)
{
    double x = (double)act_get(row, i, dtype);

    return x * x;
}

/* Whole rounds of lanes. The sums are a copy of the lanes', so that they stay in registers. */
CPU_INLINE int64_t add_rounds(double *lanes, const void *row, int64_t k, int64_t end,
                              enum dtype dtype)
{
    double sums[SUMSQ_LANES];

    memcpy(sums, lanes, sizeof sums);
    for (; k + SUMSQ_LANES <= end; k += SUMSQ_LANES) {
        __builtin_prefetch((const char *)row + (size_t)k * dtype_bytes(dtype) + SUMSQ_AHEAD);
        for (int l = 0; l < SUMSQ_LANES; l++)
            sums[l] += square(row, k + l, dtype);
    }
    memcpy(lanes, sums, sizeof sums);
    return k;
}

/* Element i of the logical tensor in row-major order; blocks run over row edges. */
CPU_INLINE double block_squares(const struct tensor *x, int64_t start, int64_t end,
                                enum dtype dtype)
{
    double lanes[SUMSQ_LANES] = { 0 };
    int64_t i = start;
    int lane = 0;

    while (i < end) {
        int64_t row = i / x->cols, k = i % x->cols, row_end = min_i64(x->cols, k + end - i);
        const void *p = cpu_row(x, row);

        i += row_end - k;
        for (; k < row_end && lane; k++, lane = (lane + 1) % SUMSQ_LANES)
            lanes[lane] += square(p, k, dtype);
        k = add_rounds(lanes, p, k, row_end, dtype);
        for (; k < row_end; k++, lane++)
            lanes[lane] += square(p, k, dtype);
    }
    for (int half = SUMSQ_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

CPU_INLINE void sumsq_tile_body(void *context, int64_t tile)
{
    const struct op_shape *op = context;
    double *sums = op->out[SUMSQ_SUMS].data;
    int64_t end = min_i64((tile + 1) * SUMSQ_BLOCKS_A_TILE, op->out[SUMSQ_SUMS].cols);

    for (int64_t block = tile * SUMSQ_BLOCKS_A_TILE; block < end; block++) {
        int64_t begin = block * OPS_NORM_BLOCK;
        int64_t last = min_i64(begin + OPS_NORM_BLOCK, tensor_elements(&op->in[SUMSQ_X]));

        sums[block] = op->in[SUMSQ_X].dtype == DTYPE_BF16
                          ? block_squares(&op->in[SUMSQ_X], begin, last, DTYPE_BF16)
                          : block_squares(&op->in[SUMSQ_X], begin, last, DTYPE_F32);
    }
}

CPU_TILES(sumsq_tile);

static void sumsq_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct op_shape op = call->op;

    (void)first;
    pool_run(kernels->pool, ceil_div(op.out[SUMSQ_SUMS].cols, SUMSQ_BLOCKS_A_TILE),
             sumsq_tile[cpu_of(kernels)->isa], &op);
}

static void sum_run(void *context, int64_t tile, int thread)
{
    const struct op_shape *op = context;
    const double *x = op->in[SUM_RUNS_X].data;
    const int32_t *ends = op->in[SUM_RUNS_ENDS].data, *order = op->in[SUM_RUNS_ORDER].data;
    double sum = 0;

    (void)thread;
    for (int64_t i = tile ? ends[tile - 1] : 0; i < ends[tile]; i++)
        sum += x[order ? order[i] : i];
    ((double *)op->out[SUM_RUNS_Y].data)[tile] = sum;
}

static void sum_runs_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    pool_run(kernels->pool, call->op.out[SUM_RUNS_Y].cols, sum_run, (void *)(uintptr_t)&call->op);
}

static void gradient_norm_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const double *sums = op->in[GRADIENT_NORM_SUMS].data;
    const int32_t *order = op->in[GRADIENT_NORM_ORDER].data;
    int64_t n = order ? op->in[GRADIENT_NORM_ORDER].cols : op->in[GRADIENT_NORM_SUMS].cols;
    float scale = tensor_given(&op->in[GRADIENT_NORM_SCALE])
                      ? *(const float *)op->in[GRADIENT_NORM_SCALE].data
                      : 1.0f;
    double sum = 0, clip = op->attributes.clip, norm;

    (void)kernels;
    (void)first;
    for (int64_t i = 0; i < n; i++)
        sum += sums[order ? order[i] : i];
    norm = sqrt(sum) / (double)scale;
    *(double *)op->out[GRADIENT_NORM_NORM].data = norm;
    *(float *)op->out[GRADIENT_NORM_CLIP_FACTOR].data =
        (clip > 0 && norm > clip ? (float)(clip / norm) : 1.0f) / scale;
    *(int32_t *)op->out[GRADIENT_NORM_SKIP_UPDATE].data = !isfinite(norm);
}

void cpu_register_gradient_norm(struct kernels_backend *table)
{
    table->entries[OP_SUMSQ] = (struct kernel_entry){ .run = sumsq_run };
    table->entries[OP_SUM_RUNS] = (struct kernel_entry){ .run = sum_runs_run };
    table->entries[OP_GRADIENT_NORM] = (struct kernel_entry){ .run = gradient_norm_run };
}
