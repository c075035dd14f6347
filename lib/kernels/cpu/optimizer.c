/*
 * optimizer.c - the gradient's norm, and AdamW on states of fp32 and bf16 (others:
 * optimizer_blocks.c)
 *
 * One pass over memory each, bound by it: AdamW reads 16 and writes 12 bytes an element, and 2 more
 * for a 16-bit weight. The order of IEEE operations is the contract with other backends:
 *
 *   once a call, in double then rounded to float:
 *     decay = 1 - lr * weight_decay (or of each block's), one_minus_beta1 = 1 - beta1, one_minus_beta2 = 1 - beta2,
 *     step = lr / bias1, sqrt_bias2 = sqrt(bias2)
 *   an element, in float, each operation rounded, none fused:
 *     g = gradient * factor
 *     p = master * decay
 *     m = m + one_minus_beta1 * (g - m)
 *     v = v * beta2 + one_minus_beta2 * g * g           ((one_minus_beta2 * g) * g)
 *     p = p - step * (m / (sqrt(v) / sqrt_bias2 + eps))
 *
 * Of states in bf16 these are the numbers before they are rounded (ops/ops.h says how), m and v of
 * the element's own line included. An element then takes 8 to 16 bytes. Where a master is in two
 * operands (base/halves.h) it is one float between them, and an element takes 28 bytes as well.
 */
#include "kernels/cpu/optimizer_impl.h"

#include <math.h>

/* ---- the norm ----------------------------------------------------------------------------------
 */

#define SUMSQ_BLOCKS_A_TILE 4
#define SUMSQ_LANES 16 /* element i of a block in lane i % 16; lanes are added as a tree */

CPU_INLINE double square(const void *row, int64_t i, int bf16)
{
    double x = (double)act_get(row, i, bf16 ? DTYPE_BF16 : DTYPE_F32);

    return x * x;
}

/* Element i of the logical tensor in row-major order; blocks run over row edges. */
CPU_INLINE double block_squares(const struct tensor *x, int64_t start, int64_t end, int bf16)
{
    double lanes[SUMSQ_LANES] = { 0 };
    int64_t i = start;
    int lane = 0;

    while (i < end) {
        int64_t row = i / x->cols, col = i % x->cols;
        int64_t n = min_i64(end - i, x->cols - col);
        const void *p = cpu_row(x, row);
        int64_t k = col;

        for (; k < col + n && lane; k++, lane = (lane + 1) % SUMSQ_LANES)
            lanes[lane] += square(p, k, bf16);
        for (; k + SUMSQ_LANES <= col + n; k += SUMSQ_LANES)
            for (int l = 0; l < SUMSQ_LANES; l++)
                lanes[l] += square(p, k + l, bf16);
        for (; k < col + n; k++, lane = (lane + 1) % SUMSQ_LANES)
            lanes[lane] += square(p, k, bf16);
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
    double *sums = op->out[SUMSQ_SUMS].data;
    int64_t end = min_i64((tile + 1) * SUMSQ_BLOCKS_A_TILE, op->out[SUMSQ_SUMS].cols);

    for (int64_t block = tile * SUMSQ_BLOCKS_A_TILE; block < end; block++) {
        int64_t begin = block * OPS_NORM_BLOCK;
        int64_t last = min_i64(begin + OPS_NORM_BLOCK, tensor_elements(&op->in[SUMSQ_X]));

        sums[block] = is_bf16(&op->in[SUMSQ_X]) ? block_squares(&op->in[SUMSQ_X], begin, last, 1)
                                                : block_squares(&op->in[SUMSQ_X], begin, last, 0);
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

/* ---- AdamW -------------------------------------------------------------------------------------
 */

CPU_INLINE void adamw_exact(const struct update_call *a, const struct row_range *s, float *master,
                            float decay, int gradient16)
{
    const void *gradient = cpu_row(&a->op->in[OPTIMIZER_GRADIENT], s->row);
    float *m = float_row_mut(&a->op->in[OPTIMIZER_M], s->row) + s->col;
    float *v = float_row_mut(&a->op->in[OPTIMIZER_V], s->row) + s->col;
    float factor = a->factor, one_minus_beta1 = a->one_minus_beta1,
          one_minus_beta2 = a->one_minus_beta2;
    float beta2 = a->beta2, step = a->step, sqrt_bias2 = a->sqrt_bias2, eps = a->eps;

    INDEPENDENT_TURNS
    for (int64_t i = 0; i < s->n; i++) {
        float g = act_get(gradient, s->col + i, gradient16 ? DTYPE_BF16 : DTYPE_F32) * factor,
              p = master[i] * decay;
        float mean = m[i] + one_minus_beta1 * (g - m[i]);
        float square = v[i] * beta2 + one_minus_beta2 * g * g;

        m[i] = mean;
        v[i] = square;
        master[i] = p - step * (mean / (sqrtf(square) / sqrt_bias2 + eps));
    }
}

CPU_INLINE void adamw_of_masters(const struct update_call *a, const struct row_range *s,
                                 float *master, float decay)
{
    if (is_bf16(&a->op->in[OPTIMIZER_GRADIENT]))
        adamw_exact(a, s, master, decay, 1);
    else
        adamw_exact(a, s, master, decay, 0);
}

#define HALVES_ELEMENTS 256 /* joined at a time: they and the operands stay in the first cache */

static inline uint16_t *word_row(const struct tensor *t, const struct row_range *s)
{
    return (uint16_t *)t->data + s->row * t->stride + s->col;
}

/* Of masters in two operands: joined, updated as others are, and taken apart again. */
CPU_INLINE void adamw_halves(const struct update_call *a, const struct row_range *s, float decay)
{
    uint16_t *upper = word_row(&a->op->in[OPTIMIZER_MASTER], s);
    uint16_t *lower = word_row(&a->op->in[OPTIMIZER_LOW], s);
    float master[HALVES_ELEMENTS];

    for (int64_t at = 0; at < s->n; at += HALVES_ELEMENTS) {
        struct row_range some = { s->row, s->col + at, min_i64(s->n - at, HALVES_ELEMENTS) };

        INDEPENDENT_TURNS
        for (int64_t i = 0; i < some.n; i++)
            master[i] = halves_join(upper[at + i], lower[at + i]);
        adamw_of_masters(a, &some, master, decay);
        INDEPENDENT_TURNS
        for (int64_t i = 0; i < some.n; i++) {
            upper[at + i] = halves_upper(master[i]);
            lower[at + i] = halves_lower(master[i]);
        }
    }
}

CPU_INLINE void adamw_stretch(const struct update_call *a, const struct row_range *s, float decay)
{
    if (tensor_given(&a->op->in[OPTIMIZER_LOW]))
        adamw_halves(a, s, decay);
    else
        adamw_of_masters(a, s, float_row_mut(&a->op->in[OPTIMIZER_MASTER], s->row) + s->col, decay);
}

/* ---- of states in bf16 ---- */

/* At most NOISE_ELEMENTS; noise: of the first element. master16: it is bf16, too. */
CPU_INLINE void adamw_rounded(const struct update_call *a, const struct row_range *s, float decay,
                              const struct noise *noise, int64_t skip, int master16, int gradient16)
{
    const void *gradient = cpu_row(&a->op->in[OPTIMIZER_GRADIENT], s->row);
    float *master = float_row_mut(&a->op->in[OPTIMIZER_MASTER], s->row) + (master16 ? 0 : s->col);
    uint16_t *weight =
        (uint16_t *)a->op->in[OPTIMIZER_MASTER].data + s->row * a->op->in[OPTIMIZER_MASTER].stride;
    uint16_t *m =
        (uint16_t *)a->op->in[OPTIMIZER_M].data + s->row * a->op->in[OPTIMIZER_M].stride + s->col;
    uint16_t *v =
        (uint16_t *)a->op->in[OPTIMIZER_V].data + s->row * a->op->in[OPTIMIZER_V].stride + s->col;
    float factor = a->factor, one_minus_beta1 = a->one_minus_beta1,
          one_minus_beta2 = a->one_minus_beta2;
    float beta2 = a->beta2, step = a->step, sqrt_bias2 = a->sqrt_bias2, eps = a->eps;

    weight += s->col;
    INDEPENDENT_TURNS
    for (int64_t i = 0; i < s->n; i++) {
        float old = vec_from_bf16(m[i]), before = master16 ? vec_from_bf16(weight[i]) : master[i];
        float g = act_get(gradient, s->col + i, gradient16 ? DTYPE_BF16 : DTYPE_F32) * factor,
              p = before * decay;
        float mean = old + one_minus_beta1 * (g - old);
        float square = vec_from_bf16(v[i]) * beta2 + one_minus_beta2 * g * g;
        float after = p - step * (mean / (sqrtf(square) / sqrt_bias2 + eps));

        m[i] = round_by(mean, noise->m[skip + i]);
        v[i] = round_by(square, noise->v[skip + i]);
        if (master16)
            weight[i] = round_by(after, noise->master[skip + i]);
        else
            master[i] = after;
    }
}

/* Within a block of OPS_NORM_BLOCK elements, whose element `first` is the stretch's first. */
CPU_INLINE void adamw_of_block(const struct update_call *a, const struct row_range *s, float decay,
                               uint64_t place, int64_t first)
{
    struct noise noise;

    for (int64_t at = 0; at < s->n;) {
        int64_t skip = (first + at) % 2, n = min_i64(s->n - at, NOISE_ELEMENTS - skip);
        struct row_range some = { s->row, s->col + at, n };

        make_noise(&noise, a->key, a->high, ops_rounding_low(place, first + at));
        if (is_bf16(&a->op->in[OPTIMIZER_MASTER]) && is_bf16(&a->op->in[OPTIMIZER_GRADIENT]))
            adamw_rounded(a, &some, decay, &noise, skip, 1, 1);
        else if (is_bf16(&a->op->in[OPTIMIZER_MASTER]))
            adamw_rounded(a, &some, decay, &noise, skip, 1, 0);
        else
            adamw_rounded(a, &some, decay, &noise, skip, 0,
                          is_bf16(&a->op->in[OPTIMIZER_GRADIENT]));
        at += n;
    }
}

/* ---- pieces ---- */

/* Where each block of elements has its own decay, or place, block by block. */
CPU_INLINE void adamw_blocks(const struct update_call *a, const struct row_range *s)
{
    const double *decays = a->op->in[OPTIMIZER_DECAY].data,
                 *places = a->op->in[OPTIMIZER_RNG_SITE].data;
    int64_t start = s->row * a->op->in[OPTIMIZER_GRADIENT].cols, last = start + s->col + s->n;

    for (int64_t at = start + s->col, end; at < last; at = end) {
        int64_t block = at / OPS_NORM_BLOCK;
        float decay = decays ? (float)(1.0 - a->lr * decays[block]) : a->decay;

        end = min_i64((block + 1) * OPS_NORM_BLOCK, last);
        struct row_range piece = { s->row, at - start, end - at };
        if (a->op->in[OPTIMIZER_M].dtype == DTYPE_BF16)
            adamw_of_block(a, &piece, decay,
                           places ? (uint64_t)places[block]
                                  : a->op->attributes.rng_site + (uint64_t)block,
                           at - block * OPS_NORM_BLOCK);
        else
            adamw_stretch(a, &piece, decay);
    }
}

CPU_INLINE void weight_stretch(const struct update_call *a, const struct row_range *s)
{
    const float *master = float_row(&a->op->in[OPTIMIZER_MASTER], s->row);
    void *weight = cpu_row(&a->op->out[OPTIMIZER_WEIGHT], s->row);

    if (a->op->attributes.half_away && is_bf16(&a->op->out[OPTIMIZER_WEIGHT])) {
        for (int64_t i = s->col; i < s->col + s->n; i++)
            ((uint16_t *)weight)[i] = halves_upper(master[i]);
        return;
    }
    WITH_ACT(a->op->out[OPTIMIZER_WEIGHT].dtype,
             for (int64_t i = s->col; i < s->col + s->n; i++) act_put(weight, i, master[i], act));
}

CPU_INLINE void adamw_tile_body(void *context, int64_t tile)
{
    const struct update_call *a = context;
    struct tile_bounds r = tiling_at(&a->tiling, tile);

    for (int64_t row = r.row; row < r.row_end; row++) {
        struct row_range s = { row, r.col, r.col_end - r.col };

        if (tensor_given(&a->op->in[OPTIMIZER_DECAY]) || a->op->in[OPTIMIZER_M].dtype == DTYPE_BF16)
            adamw_blocks(a, &s);
        else
            adamw_stretch(a, &s, a->decay);
        if (tensor_given(&a->op->out[OPTIMIZER_WEIGHT]))
            weight_stretch(a, &s);
    }
}

CPU_TILES(adamw_tile);

struct update_call update_call_of(const struct op_shape *op)
{
    const struct op_attributes *at = &op->attributes;
    const float *scalars = op->in[OPTIMIZER_SCALARS].data;
    const int32_t *part = op->in[OPTIMIZER_PART].data;
    double lr = scalars[SCALAR_LR];

    return (struct update_call){
        .op = op,
        .lr = lr,
        .factor = *(const float *)op->in[OPTIMIZER_CLIP_FACTOR].data,
        .decay = (float)(1.0 - lr * at->weight_decay),
        .one_minus_beta1 = (float)(1.0 - at->beta1),
        .one_minus_beta2 = (float)(1.0 - at->beta2),
        .beta1 = (float)at->beta1,
        .beta2 = (float)at->beta2,
        .step = (float)(lr / (double)scalars[SCALAR_BIAS1]),
        .sqrt_bias2 = (float)sqrt((double)scalars[SCALAR_BIAS2]),
        .eps = (float)at->eps,
        .key = rng_key(at->seed, RNG_ROUNDING),
        .high = ops_rounding_high((uint64_t)scalars[SCALAR_UPDATE], part ? (uint64_t)*part : 0),
    };
}

static void adamw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;

    (void)first;
    if (*(const int32_t *)op->in[OPTIMIZER_SKIP_UPDATE].data)
        return;
    if (optimizer_is_scaled(op->in[OPTIMIZER_M].dtype)) {
        update_by_blocks(kernels, op);
        return;
    }

    struct update_call a = update_call_of(op);
    a.tiling = tiling_of(op->in[OPTIMIZER_GRADIENT].rows, op->in[OPTIMIZER_GRADIENT].cols);
    pool_run(kernels->pool, a.tiling.n_tiles, adamw_tile[cpu_of(kernels)->isa], &a);
}

static void by_blocks_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    if (!*(const int32_t *)call->op.in[OPTIMIZER_SKIP_UPDATE].data)
        update_by_blocks(kernels, &call->op);
}

void cpu_register_optimizer(struct kernels_backend *table)
{
    table->entries[OP_SUMSQ] = (struct kernel_entry){ .run = sumsq_run };
    table->entries[OP_SUM_RUNS] = (struct kernel_entry){ .run = sum_runs_run };
    table->entries[OP_GRADIENT_NORM] = (struct kernel_entry){ .run = gradient_norm_run };
    table->entries[OP_ADAMW] = (struct kernel_entry){ .run = adamw_run };
    table->entries[OP_LION] = (struct kernel_entry){ .run = by_blocks_run };
    table->entries[OP_SGD] = (struct kernel_entry){ .run = by_blocks_run };
    table->entries[OP_CADAM] = (struct kernel_entry){ .run = by_blocks_run };
}
