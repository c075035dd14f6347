/*
 * fp8_weights.c - fp8_weight_amax, fp8_weight_codes: matrices in flat memory, or a shard of it, are
 * rounded to e4m3 (ops/fp8_recipe.h), once for all products that read them
 *
 * Codes have the bits that linear_fp8.c finds: the same maxima, divisions and roundings. Work is
 * cut by blocks, of which each rank measures what it has, or by norm blocks, each of which lies in
 * one matrix. Both are bound by memory.
 */
#include "kernels/cpu/fp8_blocks_impl.h"

enum { SIDE = OPS_FP8_BLOCK, CHUNK = OPS_NORM_BLOCK };

struct weight_rounding {
    const uint16_t *x;
    int64_t n, begin; /* elements of x, and where the first one lies among all ranks' */
    const struct ops_fp8_matrix *matrices;
    int n_matrices;
    bool has_one;       /* scale of each matrix */
    float *most;        /* by block */
    uint16_t *of_chunk; /* with one scale: the largest |x| of each chunk */
    const float *scales;
    uint8_t *codes;
};

static struct weight_rounding rounding_of(const struct op_shape *op, int matrices)
{
    const struct tensor *x = &op->in[OPS_FIRST], *begin = &op->in[matrices + 1];

    return (struct weight_rounding){ .x = x->data,
                                     .n = tensor_elements(x),
                                     .begin =
                                         tensor_given(begin) ? *(const int64_t *)begin->data : 0,
                                     .matrices = op->in[matrices].data,
                                     .n_matrices = (int)op->in[matrices].rows,
                                     .has_one = op->attributes.fp8 == FP8_TENSOR };
}

/* That of the flat element, or NULL: none lies there. */
CPU_INLINE const struct ops_fp8_matrix *matrix_at(const struct weight_rounding *r, int64_t element)
{
    for (int i = 0; i < r->n_matrices; i++) {
        const struct ops_fp8_matrix *m = &r->matrices[i];

        if (element >= m->first && element < m->first + m->n * m->rows * m->cols)
            return m;
    }
    return NULL;
}

/* ---- the largest of each block ---- */

/* What x has of a block of 128 x 128. */
CPU_INLINE void measure_block_body(void *context, int64_t block)
{
    const struct weight_rounding *r = context;
    const struct ops_fp8_matrix *m = r->matrices;
    uint16_t most = 0;

    while (block >= m->first_block + ops_fp8_matrix_blocks(m, 0))
        m++;
    int64_t of_one = ops_fp8_blocks(m->rows, m->cols), number = block - m->first_block;
    int64_t first_row = number / of_one * m->rows, across = ceil_div(m->cols, SIDE);
    int64_t row = number % of_one / across * SIDE, col = number % of_one % across * SIDE;
    int64_t row_end = min_i64(row + SIDE, m->rows), width = min_i64(SIDE, m->cols - col);
    for (; row < row_end; row++) {
        int64_t at = m->first + (first_row + row) * m->cols + col - r->begin;
        int64_t first = max_i64(at, 0), end = min_i64(at + width, r->n);

        most = first < end ? fp8_larger(most, r->x + first, end - first) : most;
    }
    r->most[block] = vec_from_bits((uint32_t)most << 16);
}

CPU_TILES(measure_block);

CPU_INLINE void measure_chunk_body(void *context, int64_t chunk)
{
    const struct weight_rounding *r = context;
    int64_t first = chunk * CHUNK;

    r->of_chunk[chunk] = fp8_larger(0, r->x + first, min_i64(CHUNK, r->n - first));
}

CPU_TILES(measure_chunk);

/* Of the elements from first to end: by chunks, and one by one where a chunk has others, too. */
static uint16_t largest_from(const struct weight_rounding *r, int64_t first, int64_t end)
{
    int64_t whole = min_i64(round_up(first, CHUNK), end),
            rest = max_i64(whole, end / CHUNK * CHUNK);
    uint16_t most = fp8_larger(0, r->x + first, whole - first);

    for (int64_t chunk = whole / CHUNK; chunk < rest / CHUNK; chunk++)
        most = r->of_chunk[chunk] > most ? r->of_chunk[chunk] : most;
    return fp8_larger(most, r->x + rest, end - rest);
}

/* Of each matrix what x has of it. */
static void join_chunks(const struct weight_rounding *r)
{
    for (int i = 0; i < r->n_matrices; i++) {
        const struct ops_fp8_matrix *m = &r->matrices[i];
        int64_t n = m->rows * m->cols;

        for (int64_t one = 0; one < m->n; one++) {
            int64_t at = m->first + one * n - r->begin;
            int64_t first = max_i64(at, 0), end = min_i64(at + n, r->n);
            uint16_t most = first < end ? largest_from(r, first, end) : 0;

            r->most[m->first_block + one] = vec_from_bits((uint32_t)most << 16);
        }
    }
}

static size_t amax_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return op->attributes.fp8 == FP8_TENSOR
               ? (size_t)ceil_div(tensor_elements(&op->in[OPS_FIRST]), CHUNK) * sizeof(uint16_t)
               : 0;
}

static void amax_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct weight_rounding r = rounding_of(&call->op, FP8_WEIGHT_AMAX_MATRICES);
    enum cpu_isa isa = cpu_of(kernels)->isa;

    (void)first;
    r.most = call->op.out[FP8_WEIGHT_AMAX_MOST].data;
    r.of_chunk = call->scratch;
    if (r.has_one) {
        pool_run(kernels->pool, ceil_div(r.n, CHUNK), measure_chunk[isa], &r);
        join_chunks(&r);
    } else {
        pool_run(kernels->pool, call->op.out[FP8_WEIGHT_AMAX_MOST].cols, measure_block[isa], &r);
    }
}

/* ---- codes ---- */

/* Span by span of a row and a block. */
CPU_INLINE void round_chunk_body(void *context, int64_t chunk)
{
    const struct weight_rounding *r = context;
    int64_t at = chunk * CHUNK, end = min_i64(at + CHUNK, r->n);
    const struct ops_fp8_matrix *m = matrix_at(r, r->begin + at);
    int64_t last = m ? min_i64(end, m->first + m->n * m->rows * m->cols - r->begin) : at;

    memset(r->codes + last, 0, (size_t)(end - last));
    while (at < last) {
        int64_t element = r->begin + at - m->first, row = element / m->cols;
        int64_t col = element % m->cols, across = ceil_div(m->cols, SIDE);
        int64_t n = min_i64(min_i64(SIDE - col % SIDE, m->cols - col), last - at);
        int64_t block = r->has_one ? row / m->rows
                                   : row / m->rows * ops_fp8_blocks(m->rows, m->cols) +
                                         row % m->rows / SIDE * across + col / SIDE;

        fp8_codes(r->codes + at, r->x + at, r->scales[m->first_block + block], n);
        at += n;
    }
}

CPU_TILES(round_chunk);

static size_t codes_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return (size_t)op->in[FP8_WEIGHT_CODES_MOST].cols * sizeof(float);
}

static void codes_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct weight_rounding r = rounding_of(&call->op, FP8_WEIGHT_CODES_MATRICES);
    const struct tensor *parts = &call->op.in[FP8_WEIGHT_CODES_MOST];
    float *joined = call->op.out[FP8_WEIGHT_CODES_JOINED].data, *scales = call->scratch;

    (void)first;
    for (int64_t block = 0; block < parts->cols; block++) {
        uint32_t most = fp8_largest_of_parts(parts, block);

        joined[block] = vec_from_bits(most);
        scales[block] = e4m3_scale(most);
    }
    r.scales = scales;
    r.codes = call->op.out[FP8_WEIGHT_CODES_CODES].data;
    pool_run(kernels->pool, ceil_div(r.n, CHUNK), round_chunk[cpu_of(kernels)->isa], &r);
}

void cpu_register_fp8_weights(struct kernels_backend *table)
{
    table->entries[OP_FP8_WEIGHT_AMAX] =
        (struct kernel_entry){ .run = amax_run, .scratch_bytes = amax_scratch_bytes };
    table->entries[OP_FP8_WEIGHT_CODES] =
        (struct kernel_entry){ .run = codes_run, .scratch_bytes = codes_scratch_bytes };
}
