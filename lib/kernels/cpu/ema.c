/*
 * ema.c - the moving average of a parameter
 *
 * One pass over memory, bound by it: 8 bytes read and 4 written an element. The order of IEEE
 * operations is the contract with other backends; an element, in float, each rounded, none fused:
 *
 *     average = average + rate * (x - average)
 *
 * which is torch's lerp. The first update's average is x.
 */
#include "base/halves.h"
#include "kernels/cpu/rows_impl.h"

struct ema {
    const struct op_shape *op;
    struct tiling tiling;
    float rate;
    int copies;
};

#define JOINED_ELEMENTS 256 /* at a time: they stay in the first cache */

CPU_INLINE void average_floats(float *average, const float *x, int64_t n, float rate, int copies)
{
    if (copies) {
        memcpy(average, x, (size_t)n * sizeof *x);
        return;
    }
    INDEPENDENT_TURNS
    for (int64_t i = 0; i < n; i++)
        average[i] = average[i] + rate * (x[i] - average[i]);
}

/* What is bf16, with the lower words or without, becomes fp32 first. */
CPU_INLINE void average_words(float *average, const uint16_t *x, const uint16_t *low, int64_t n,
                              float rate, int copies)
{
    float whole[JOINED_ELEMENTS];

    for (int64_t at = 0; at < n; at += JOINED_ELEMENTS) {
        int64_t some = min_i64(n - at, JOINED_ELEMENTS);

        if (low) {
            INDEPENDENT_TURNS
            for (int64_t i = 0; i < some; i++)
                whole[i] = halves_join(x[at + i], low[at + i]);
        } else {
            INDEPENDENT_TURNS
            for (int64_t i = 0; i < some; i++)
                whole[i] = vec_from_bf16(x[at + i]);
        }
        average_floats(average + at, whole, some, rate, copies);
    }
}

CPU_INLINE void ema_tile_body(void *context, int64_t tile)
{
    const struct ema *e = context;
    const struct tensor *x = &e->op->in[EMA_X], *low = &e->op->in[EMA_LOW];
    struct tile_bounds r = tiling_at(&e->tiling, tile);

    for (int64_t row = r.row; row < r.row_end; row++) {
        float *average = float_row_mut(&e->op->in[EMA_AVERAGE], row) + r.col;
        int64_t n = r.col_end - r.col;

        if (x->dtype == DTYPE_F32)
            average_floats(average, float_row(x, row) + r.col, n, e->rate, e->copies);
        else
            average_words(average, (const uint16_t *)cpu_row(x, row) + r.col,
                          tensor_given(low) ? (const uint16_t *)cpu_row(low, row) + r.col : NULL, n,
                          e->rate, e->copies);
    }
}

CPU_TILES(ema_tile);

static void ema_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const float *scalars = op->in[EMA_SCALARS].data;
    struct ema e = { .op = op,
                     .tiling = tiling_of(op->in[EMA_X].rows, op->in[EMA_X].cols),
                     .rate = (float)op->attributes.rate,
                     .copies = scalars[SCALAR_UPDATE] <= 1 };

    (void)first;
    if (*(const int32_t *)op->in[EMA_SKIP_UPDATE].data)
        return;
    pool_run(kernels->pool, e.tiling.n_tiles, ema_tile[cpu_of(kernels)->isa], &e);
}

void cpu_register_ema(struct kernels_backend *table)
{
    table->entries[OP_EMA] = (struct kernel_entry){ .run = ema_run };
}
