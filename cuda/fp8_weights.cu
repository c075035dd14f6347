/*
 * fp8_weights.cu - fp8_weight_amax, fp8_weight_codes: matrices in flat memory, or a shard of it, are
 * rounded to e4m3 (ops/fp8_recipe.h), once for all products that read them
 *
 * A block of threads measures a block of a matrix, of which the rank has what lies in its shard; or,
 * with one scale of each matrix, a norm block, and then a block each matrix. A norm block is rounded by
 * a block of threads, too. The bits are lib/kernels/cpu/fp8_weights.c's. Bound by memory: two bytes
 * of an element are read twice, one is written.
 */
#include "cuda/e4m3.cuh"

enum { SIDE = OPS_FP8_BLOCK, CHUNK = OPS_NORM_BLOCK, THREADS = 256 };

struct weight_rounding {
    const uint16_t *x;
    int64_t n;
    const int64_t *begin; /* NULL: 0 */
    const struct ops_fp8_matrix *matrices;
    int n_matrices;
    int has_one; /* scale of each matrix */
};

/* Blocks of so many rows, or columns. */
static __device__ __forceinline__ int64_t n_across(int64_t n)
{
    return (n + SIDE - 1) / SIDE;
}

/* Blocks of one of the matrices of a row of the table. */
static __device__ __forceinline__ int64_t blocks_of_one(const ops_fp8_matrix *m)
{
    return n_across(m->rows) * n_across(m->cols);
}

static __device__ __forceinline__ int64_t begin_of(const weight_rounding &r)
{
    return r.begin ? *r.begin : 0;
}

static __device__ __forceinline__ const ops_fp8_matrix *matrix_at(const weight_rounding &r,
                                                                  int64_t element)
{
    for (int i = 0; i < r.n_matrices; i++) {
        const ops_fp8_matrix *m = &r.matrices[i];

        if (element >= m->first && element < m->first + m->n * m->rows * m->cols)
            return m;
    }
    return NULL;
}

static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Of all threads' numbers. */
static __device__ __forceinline__ uint32_t largest_of_all(uint32_t own, uint32_t *shared)
{
    shared[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            shared[threadIdx.x] = larger(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    return shared[0];
}

static __global__ void __launch_bounds__(THREADS)
    measure_blocks_kernel(weight_rounding r, float *most)
{
    __shared__ uint32_t sizes[THREADS];
    const ops_fp8_matrix *m = r.matrices;
    int64_t block = blockIdx.x, begin = begin_of(r);
    uint32_t own = 0;

    while (block >= m->first_block + m->n * blocks_of_one(m))
        m++;
    int64_t across = n_across(m->cols), number = block - m->first_block;
    int64_t first_row = number / blocks_of_one(m) * m->rows;
    int64_t row = number % blocks_of_one(m) / across * SIDE, col = number % across * SIDE;
    for (int64_t i = threadIdx.x; i < SIDE * SIDE; i += THREADS) {
        int64_t at = m->first + (first_row + row + i / SIDE) * m->cols + col + i % SIDE - begin;
        bool is_in = row + i / SIDE < m->rows && col + i % SIDE < m->cols && at >= 0 && at < r.n;

        own = larger(own, is_in ? (uint32_t)(r.x[at] & 0x7fffu) << 16 : 0);
    }
    uint32_t all = largest_of_all(own, sizes);
    if (threadIdx.x == 0)
        most[block] = __uint_as_float(all);
}

static __global__ void __launch_bounds__(THREADS)
    measure_chunks_kernel(weight_rounding r, uint32_t *of_chunk)
{
    __shared__ uint32_t sizes[THREADS];
    int64_t first = (int64_t)blockIdx.x * CHUNK;
    uint32_t own = 0;

    for (int64_t i = first + threadIdx.x; i < first + CHUNK && i < r.n; i += THREADS)
        own = larger(own, (uint32_t)(r.x[i] & 0x7fffu) << 16);
    uint32_t all = largest_of_all(own, sizes);
    if (threadIdx.x == 0)
        of_chunk[blockIdx.x] = all;
}

/* A block a matrix, of what the rank has of it: norm blocks, and elements one by one where a norm
 * block has others, too. */
static __global__ void __launch_bounds__(THREADS)
    join_chunks_kernel(weight_rounding r, const uint32_t *of_chunk, float *most)
{
    __shared__ uint32_t sizes[THREADS];
    const ops_fp8_matrix *m = r.matrices;
    uint32_t own = 0;

    while (blockIdx.x >= m->first_block + m->n)
        m++;
    int64_t n = m->rows * m->cols, at = m->first + (blockIdx.x - m->first_block) * n - begin_of(r);
    int64_t first = at > 0 ? at : 0, end = at + n < r.n ? at + n : r.n;
    int64_t whole = (first + CHUNK - 1) / CHUNK, rest = end / CHUNK;
    for (int64_t i = first + threadIdx.x; i < end && i < whole * CHUNK; i += THREADS)
        own = larger(own, (uint32_t)(r.x[i] & 0x7fffu) << 16);
    for (int64_t i = whole + threadIdx.x; i < rest; i += THREADS)
        own = larger(own, of_chunk[i]);
    for (int64_t i = (rest > whole ? rest : whole) * CHUNK + threadIdx.x; i < end; i += THREADS)
        own = larger(own, (uint32_t)(r.x[i] & 0x7fffu) << 16);
    uint32_t all = largest_of_all(own, sizes);
    if (threadIdx.x == 0)
        most[blockIdx.x] = __uint_as_float(all);
}

static __global__ void __launch_bounds__(THREADS)
    join_parts_kernel(const float *parts, int64_t n_parts, int64_t stride, int64_t n, float *joined)
{
    int64_t block = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    uint32_t most = 0;

    if (block >= n)
        return;
    for (int64_t i = 0; i < n_parts; i++)
        most = larger(most, __float_as_uint(parts[i * stride + block]));
    joined[block] = __uint_as_float(most);
}

static __global__ void __launch_bounds__(THREADS)
    round_chunks_kernel(weight_rounding r, const float *joined, uint8_t *codes)
{
    int64_t first = (int64_t)blockIdx.x * CHUNK, begin = begin_of(r);
    const ops_fp8_matrix *m = matrix_at(r, begin + first);

    for (int64_t i = first + threadIdx.x; i < first + CHUNK && i < r.n; i += THREADS) {
        int64_t element = m ? begin + i - m->first : 0;
        uint8_t code = 0;

        if (m && element < m->n * m->rows * m->cols) {
            int64_t row = element / m->cols, across = n_across(m->cols);
            int64_t block = row / m->rows * blocks_of_one(m) + row % m->rows / SIDE * across +
                            element % m->cols / SIDE;
            int64_t found = m->first_block + (r.has_one ? row / m->rows : block);
            float scale = e4m3_scale(__float_as_uint(joined[found]));
            float x = __uint_as_float((uint32_t)r.x[i] << 16);

            code = scale > 0 ? e4m3_code(x / scale) : 0;
        }
        codes[i] = code;
    }
}

/* ---- launching ---- */

static weight_rounding rounding_of(const struct op_shape *op, int matrices)
{
    const struct tensor *x = &op->in[OPS_FIRST], *begin = &op->in[matrices + 1];
    weight_rounding r = {};

    r.x = (const uint16_t *)x->data;
    r.n = tensor_elements(x);
    r.begin = tensor_given(begin) ? (const int64_t *)begin->data : NULL;
    r.matrices = (const struct ops_fp8_matrix *)op->in[matrices].data;
    r.n_matrices = (int)op->in[matrices].rows;
    r.has_one = op->attributes.fp8 == FP8_TENSOR;
    return r;
}

static void amax_run(struct kernels *kernels, const struct kernel_call *call, int)
{
    weight_rounding r = rounding_of(&call->op, FP8_WEIGHT_AMAX_MATRICES);
    const struct tensor *most = &call->op.out[FP8_WEIGHT_AMAX_MOST];
    uint32_t *of_chunk = (uint32_t *)call->scratch;

    if (!r.has_one) {
        cuda_launch(kernels, call, cuda_shape_of(most->cols, THREADS), measure_blocks_kernel, r,
                    (float *)most->data);
        return;
    }
    cuda_launch(kernels, call, cuda_shape_of(ceil_div(r.n, (int64_t)CHUNK), THREADS),
                measure_chunks_kernel, r, of_chunk);
    cuda_launch(kernels, call, cuda_shape_of(most->cols, THREADS), join_chunks_kernel, r,
                (const uint32_t *)of_chunk, (float *)most->data);
}

static void codes_run(struct kernels *kernels, const struct kernel_call *call, int)
{
    weight_rounding r = rounding_of(&call->op, FP8_WEIGHT_CODES_MATRICES);
    const struct tensor *parts = &call->op.in[FP8_WEIGHT_CODES_MOST];
    float *joined = (float *)call->op.out[FP8_WEIGHT_CODES_JOINED].data;

    cuda_launch(kernels, call, cuda_shape_of(ceil_div(parts->cols, (int64_t)THREADS), THREADS),
                join_parts_kernel, (const float *)parts->data, parts->rows, parts->stride,
                parts->cols, joined);
    cuda_launch(kernels, call, cuda_shape_of(ceil_div(r.n, (int64_t)CHUNK), THREADS),
                round_chunks_kernel, r, (const float *)joined,
                (uint8_t *)call->op.out[FP8_WEIGHT_CODES_CODES].data);
}

void cuda_register_fp8_weights(struct kernels_backend *table)
{
    struct kernel_entry entry = {};

    entry.run = amax_run;
    table->entries[OP_FP8_WEIGHT_AMAX] = entry;
    entry.run = codes_run;
    table->entries[OP_FP8_WEIGHT_CODES] = entry;
}
