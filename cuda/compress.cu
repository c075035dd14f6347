/*
 * compress.cu - gradients in fewer bytes: blocks of codes with a scale each, and back
 *
 * With the bits of lib/kernels/cpu/compress.c, which says which IEEE operations in which order; but
 * the sums of squares are added in another one. A thread has an element of each block of codes: a
 * thread block of encode takes OPS_CODE_TILE_BLOCKS of them one after the other, one of decode takes
 * a block of all ranks. Bound by memory.
 */
#include "cuda/e4m3.cuh"
#include "cuda/rows.cuh"

enum { THREADS = OPS_CODE_BLOCK, WAITING_MAX = 24 };

#define ROUND_TO_INT 12582912.0f

/* ---- codes ---- */

static __device__ __forceinline__ uint8_t int8_code(float x)
{
    float code = x + ROUND_TO_INT - ROUND_TO_INT;

    code = code > OPS_INT8_MAX ? OPS_INT8_MAX : code < -OPS_INT8_MAX ? -OPS_INT8_MAX : code;
    return (uint8_t)(int8_t)(int)code;
}

template <bool IS_INT8> static __device__ __forceinline__ uint8_t code_of(float x)
{
    return IS_INT8 ? int8_code(x) : e4m3_code(x);
}

template <bool IS_INT8> static __device__ __forceinline__ float value_of(uint8_t code)
{
    return IS_INT8 ? (float)(int8_t)code : e4m3_value(code);
}

/* ---- encode ---- */

struct encoding {
    float *x;
    uint8_t *codes;
    double *sums; /* of each tile: of squares of x, of what is left */
    int64_t part, n_blocks, tiles_a_part, row_bytes;
};

/* Of all threads; the second is what is between calls. */
template <typename T, typename F> static __device__ __forceinline__ T join(T own, T *shared, F both)
{
    shared[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            shared[threadIdx.x] = both(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    T all = shared[0];
    __syncthreads();
    return all;
}

static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static __device__ __forceinline__ double sum(double a, double b)
{
    return a + b;
}

template <bool IS_INT8>
static __global__ void __launch_bounds__(THREADS) encode_kernel(struct encoding e)
{
    __shared__ uint32_t sizes[THREADS];
    __shared__ double squares[THREADS];
    int64_t row = blockIdx.x / e.tiles_a_part;
    int64_t first = blockIdx.x % e.tiles_a_part * OPS_CODE_TILE_BLOCKS;
    float *scales = (float *)(e.codes + row * e.row_bytes);
    uint8_t *codes = (uint8_t *)(scales + e.n_blocks);
    double of_x = 0, of_left = 0;

    for (int64_t b = first; b < first + OPS_CODE_TILE_BLOCKS && b < e.n_blocks; b++) {
        int64_t i = b * OPS_CODE_BLOCK + threadIdx.x;
        float x = i < e.part ? e.x[row * e.part + i] : 0;
        uint32_t most = join(__float_as_uint(x) & 0x7fffffffu, sizes, larger);
        float scale = most < 0x7f800000u
                          ? __uint_as_float(most) / (IS_INT8 ? OPS_INT8_MAX : OPS_E4M3_MAX)
                          : __uint_as_float(0x7fc00000u);
        uint8_t code = scale > 0 ? code_of<IS_INT8>(x / scale) : 0;
        float left = most < 0x7f800000u ? x - value_of<IS_INT8>(code) * scale : 0;

        if (threadIdx.x == 0)
            scales[b] = scale;
        if (i < e.part) {
            codes[i] = code;
            e.x[row * e.part + i] = left;
            of_x += (double)x * (double)x;
            of_left += (double)left * (double)left;
        } else if (i < (e.part + 3) / 4 * 4) {
            codes[i] = 0;
        }
    }
    of_x = join(of_x, squares, sum);
    of_left = join(of_left, squares, sum);
    if (threadIdx.x == 0) {
        e.sums[2 * blockIdx.x] = of_x;
        e.sums[2 * blockIdx.x + 1] = of_left;
    }
}

/* Two threads: each adds its own of all tiles, in order. */
static __global__ void add_tiles_kernel(const double *tiles, int64_t n, double *sums)
{
    double all = 0;

    for (int64_t i = 0; i < n; i++)
        all += tiles[2 * i + threadIdx.x];
    sums[threadIdx.x] = all;
}

static void encode_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *codes = &op->out[ENCODE_CODES];
    struct encoding e = {};

    (void)first;
    e.x = (float *)op->in[ENCODE_X].data;
    e.codes = (uint8_t *)codes->data;
    e.sums = (double *)call->scratch;
    e.part = op->in[ENCODE_X].cols / codes->rows;
    e.n_blocks = ops_code_blocks(e.part);
    e.tiles_a_part = ops_code_tiles(e.part);
    e.row_bytes = codes->stride;
    int64_t n_tiles = e.tiles_a_part * codes->rows;
    cuda_launch(kernels, call, cuda_shape_of(n_tiles, THREADS),
                op->attributes.codec == CODEC_INT8 ? encode_kernel<true> : encode_kernel<false>, e);
    cuda_launch(kernels, call, cuda_shape_of(1, 2), add_tiles_kernel, (const double *)e.sums,
                n_tiles, (double *)op->out[ENCODE_SUMS].data);
}

/* ---- decode ---- */

template <bool IS_INT8>
static __global__ void __launch_bounds__(THREADS)
    decode_kernel(const uint8_t *codes, int64_t n_rows, int64_t row_bytes, int64_t n, float *y)
{
    int64_t n_blocks = (n + OPS_CODE_BLOCK - 1) / OPS_CODE_BLOCK, block = blockIdx.x;
    int64_t i = block * OPS_CODE_BLOCK + threadIdx.x;
    float waiting[WAITING_MAX];
    int n_waiting = 0;

    if (i >= n)
        return;
    for (int64_t row = 0; row < n_rows; row++) {
        const float *scales = (const float *)(codes + row * row_bytes);

        waiting[n_waiting++] =
            value_of<IS_INT8>(((const uint8_t *)(scales + n_blocks))[i]) * scales[block];
        for (int64_t k = row + 1; k % 2 == 0; k /= 2, n_waiting--)
            waiting[n_waiting - 2] += waiting[n_waiting - 1];
    }
    for (; n_waiting > 1; n_waiting--)
        waiting[n_waiting - 2] += waiting[n_waiting - 1];
    y[i] = waiting[0];
}

static void decode_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *codes = &op->in[DECODE_CODES], *y = &op->out[DECODE_Y];

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(ops_code_blocks(y->cols), THREADS),
                op->attributes.codec == CODEC_INT8 ? decode_kernel<true> : decode_kernel<false>,
                (const uint8_t *)codes->data, codes->rows, codes->stride, y->cols,
                (float *)y->data);
}

/* ---- the error ---- */

static __global__ void __launch_bounds__(THREADS)
    add_error_kernel(const float *error, const float *scale, float *x, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        x[i] += error[i] * *scale;
}

static void add_error_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int64_t n = op->in[ADD_ERROR_X].cols;

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(ceil_div(n, THREADS), THREADS), add_error_kernel,
                (const float *)op->in[ADD_ERROR_ERROR].data,
                (const float *)op->in[ADD_ERROR_SCALE].data, (float *)op->in[ADD_ERROR_X].data, n);
}

static __global__ void __launch_bounds__(THREADS)
    keep_error_kernel(const float *left, const int32_t *skip, const float *scalars, float start,
                      const float *scale, float *error, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n && !*skip && (!scalars || scalars[SCALAR_UPDATE] > start))
        error[i] = scale ? left[i] * (1 / *scale) : left[i];
}

static void keep_error_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *left = &op->in[KEEP_ERROR_LEFT];

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(ceil_div(left->cols, THREADS), THREADS),
                keep_error_kernel, (const float *)left->data,
                (const int32_t *)op->in[KEEP_ERROR_SKIP_UPDATE].data,
                (const float *)op->in[KEEP_ERROR_SCALARS].data, (float)op->attributes.start,
                (const float *)op->in[KEEP_ERROR_SCALE].data,
                (float *)op->in[KEEP_ERROR_ERROR].data, left->cols);
}

void cuda_register_compress(struct kernels_backend *table)
{
    table->entries[OP_ENCODE].run = encode_run;
    table->entries[OP_DECODE].run = decode_run;
    table->entries[OP_ADD_ERROR].run = add_error_run;
    table->entries[OP_KEEP_ERROR].run = keep_error_run;
}
