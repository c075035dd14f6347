/*
 * linear_fp8.cu - linear_fp8, linear_dx_fp8, linear_dw_fp8: operands are rounded to e4m3 by blocks
 * (ops/fp8_recipe.h), then multiplied by cuBLASLt
 *
 * The library multiplies operands whose lines lie along k, so each is written as it wants it:
 * transposed where lines are columns, padded with zeros along k to whole blocks. Codes and scales
 * have the bits of lib/kernels/cpu/linear_fp8.c; sums are the library's.
 *
 * A block of threads rounds a tile of 128 x 128, one line a thread, out of shared memory, whose
 * rows are a word longer than 128 numbers so that a column lies in as many banks as a row. Bound by
 * memory: two bytes are read of an element, one is written.
 */
#include "cuda/column_sums.cuh"
#include "cuda/e4m3.cuh"
#include "cuda/gemm.cuh"

enum { SIDE = OPS_FP8_BLOCK, STRIDE = SIDE + 2, COMBINE_THREADS = 256 };

/* Which block of 128 x 128 numbers has one scale, or each of its lines, or all blocks together. */
enum rounding_way { ROUND_LINES, ROUND_SQUARE, ROUND_BY_ONE };

struct rounding {
    const uint16_t *x;
    int64_t rows, cols, stride, n_across;
    int64_t lines, k; /* of codes; k is padded */
    uint8_t *codes;
    float *scales;
    uint32_t *most; /* of each tile: the bits of its largest |x| */
};

struct rounding_tile {
    int64_t row, col;
};

static __device__ __forceinline__ rounding_tile tile_of(const rounding &r)
{
    return { blockIdx.x / r.n_across * SIDE, blockIdx.x % r.n_across * SIDE };
}

/* Zeros where there is nothing. */
static __device__ __forceinline__ void load_tile(const rounding &r, rounding_tile t,
                                                 uint16_t (*x)[STRIDE])
{
    int64_t col = t.col + threadIdx.x;

    for (int row = 0; row < SIDE; row++)
        x[row][threadIdx.x] =
            t.row + row < r.rows && col < r.cols ? r.x[(t.row + row) * r.stride + col] : 0;
    __syncthreads();
}

/* The bits of the largest |x| of the thread's line. */
template <bool IS_TRANSPOSED>
static __device__ __forceinline__ uint32_t largest_of_line(const uint16_t (*x)[STRIDE])
{
    uint32_t most = 0;

    for (int i = 0; i < SIDE; i++) {
        uint32_t size = (IS_TRANSPOSED ? x[i][threadIdx.x] : x[threadIdx.x][i]) & 0x7fffu;

        most = size > most ? size : most;
    }
    return most << 16;
}

/* Of all threads' numbers. */
static __device__ __forceinline__ uint32_t largest_of_all(uint32_t own, uint32_t *shared)
{
    shared[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half && shared[threadIdx.x + half] > shared[threadIdx.x])
            shared[threadIdx.x] = shared[threadIdx.x + half];
        __syncthreads();
    }
    return shared[0];
}

template <bool IS_TRANSPOSED>
static __device__ __forceinline__ uint32_t word_of(const uint16_t (*x)[STRIDE], int at, float scale)
{
    uint32_t word = 0;

    for (int i = 0; i < 4; i++) {
        uint16_t bits = IS_TRANSPOSED ? x[at + i][threadIdx.x] : x[threadIdx.x][at + i];
        float quotient = __uint_as_float((uint32_t)bits << 16) / (scale > 0 ? scale : 1.0f);

        word |= (scale > 0 ? (uint32_t)e4m3_code(quotient) : 0u) << 8 * i;
    }
    return word;
}

template <bool IS_TRANSPOSED>
static __device__ __forceinline__ void write_line(const uint16_t (*x)[STRIDE], float scale,
                                                  uint8_t *codes)
{
    for (int at = 0; at < SIDE; at += 16)
        *(uint4 *)(codes + at) = { word_of<IS_TRANSPOSED>(x, at, scale),
                                   word_of<IS_TRANSPOSED>(x, at + 4, scale),
                                   word_of<IS_TRANSPOSED>(x, at + 8, scale),
                                   word_of<IS_TRANSPOSED>(x, at + 12, scale) };
}

template <bool IS_TRANSPOSED, rounding_way WAY>
static __global__ void __launch_bounds__(SIDE) round_kernel(rounding r)
{
    __shared__ uint16_t x[SIDE][STRIDE];
    __shared__ uint32_t sizes[SIDE];
    rounding_tile t = tile_of(r);
    int64_t first = IS_TRANSPOSED ? t.col : t.row, k = IS_TRANSPOSED ? t.row : t.col;
    int64_t line = first + threadIdx.x, n_blocks = r.k / SIDE, block = k / SIDE;
    float scale;

    load_tile(r, t, x);
    if (WAY == ROUND_BY_ONE) {
        scale = *r.scales;
    } else if (WAY == ROUND_SQUARE) {
        scale = e4m3_scale(largest_of_all(largest_of_line<IS_TRANSPOSED>(x), sizes));
        if (threadIdx.x == 0)
            r.scales[first / SIDE * ((n_blocks + 3) / 4 * 4) + block] = scale;
    } else {
        scale = e4m3_scale(largest_of_line<IS_TRANSPOSED>(x));
        if (line < r.lines)
            r.scales[block * r.lines + line] = scale;
    }
    if (line < r.lines)
        write_line<IS_TRANSPOSED>(x, scale, r.codes + line * r.k + k);
}

/* Codes that are there: as the library wants them. */
template <bool IS_TRANSPOSED>
static __device__ __forceinline__ uint32_t codes_of(const uint8_t (*x)[SIDE + 4], int at)
{
    uint32_t word = 0;

    for (int i = 0; i < 4; i++)
        word |= (uint32_t)(IS_TRANSPOSED ? x[at + i][threadIdx.x] : x[threadIdx.x][at + i])
                << 8 * i;
    return word;
}

template <bool IS_TRANSPOSED, rounding_way WAY>
static __global__ void __launch_bounds__(SIDE)
    place_kernel(rounding r, const uint8_t *given, const float *most)
{
    __shared__ uint8_t x[SIDE][SIDE + 4];
    rounding_tile t = tile_of(r);
    int64_t first = IS_TRANSPOSED ? t.col : t.row, k = IS_TRANSPOSED ? t.row : t.col;
    int64_t line = first + threadIdx.x, col = t.col + threadIdx.x, n_blocks = r.k / SIDE;

    for (int row = 0; row < SIDE; row++)
        x[row][threadIdx.x] =
            t.row + row < r.rows && col < r.cols ? given[(t.row + row) * r.stride + col] : 0;
    __syncthreads();
    if (WAY == ROUND_SQUARE && threadIdx.x == 0)
        r.scales[first / SIDE * ((n_blocks + 3) / 4 * 4) + k / SIDE] =
            e4m3_scale(__float_as_uint(most[blockIdx.x]));
    if (WAY == ROUND_BY_ONE && threadIdx.x == 0 && blockIdx.x == 0)
        *r.scales = e4m3_scale(__float_as_uint(*most));
    for (int at = 0; at < SIDE && line < r.lines; at += 16)
        *(uint4 *)(r.codes + line * r.k + k + at) = { codes_of<IS_TRANSPOSED>(x, at),
                                                      codes_of<IS_TRANSPOSED>(x, at + 4),
                                                      codes_of<IS_TRANSPOSED>(x, at + 8),
                                                      codes_of<IS_TRANSPOSED>(x, at + 12) };
}

static __global__ void __launch_bounds__(SIDE) measure_kernel(rounding r)
{
    __shared__ uint16_t x[SIDE][STRIDE];
    __shared__ uint32_t sizes[SIDE];

    load_tile(r, tile_of(r), x);
    uint32_t most = largest_of_all(largest_of_line<true>(x), sizes);
    if (threadIdx.x == 0)
        r.most[blockIdx.x] = most;
}

/* The bits of |x|, as many as there are tiles, or parts of a tensor. */
struct found_sizes {
    const uint32_t *sizes;
    int64_t n, stride;
};

/* The largest, or the scale that it makes. */
template <bool IS_SCALE>
static __global__ void __launch_bounds__(COMBINE_THREADS) combine_kernel(found_sizes f, float *out)
{
    __shared__ uint32_t sizes[COMBINE_THREADS];
    uint32_t own = 0;

    for (int64_t i = threadIdx.x; i < f.n; i += COMBINE_THREADS)
        own = f.sizes[i * f.stride] > own ? f.sizes[i * f.stride] : own;
    uint32_t most = largest_of_all(own, sizes);
    if (threadIdx.x == 0)
        *out = IS_SCALE ? e4m3_scale(most) : __uint_as_float(most);
}

/* ---- launching ---- */

static int64_t n_tiles(const struct tensor *x)
{
    return ceil_div(x->rows, (int64_t)SIDE) * ceil_div(x->cols, (int64_t)SIDE);
}

static rounding rounding_of(const struct op_shape *op, int input, char *scratch)
{
    const struct tensor *x = &op->in[input];
    struct gpu_fp8_operand o = gpu_fp8_operand_of(op, input);
    rounding r = {};

    r.x = (const uint16_t *)x->data;
    r.rows = x->rows;
    r.cols = x->cols;
    r.stride = x->stride;
    r.n_across = ceil_div(x->cols, (int64_t)SIDE);
    r.lines = o.lines;
    r.k = o.k;
    r.codes = (uint8_t *)scratch;
    r.scales = (float *)(scratch + o.code_bytes);
    r.most = (uint32_t *)(scratch + o.code_bytes + o.scale_bytes);
    return r;
}

static void find_one_scale(struct kernels *kernels, const struct kernel_call *call, int input,
                           const rounding &r)
{
    const struct tensor *x = &call->op.in[input],
                        *parts = &call->op.in[ops_fp8_most(call->op.kind, input)];
    found_sizes found = { (const uint32_t *)parts->data, parts->rows, parts->stride };

    if (!tensor_given(parts)) {
        cuda_launch(kernels, call, cuda_shape_of(n_tiles(x), SIDE), measure_kernel, r);
        found = { r.most, n_tiles(x), 1 };
    }
    cuda_launch(kernels, call, cuda_shape_of(1, COMBINE_THREADS), combine_kernel<true>, found,
                r.scales);
}

template <bool IS_TRANSPOSED>
static void place_codes(struct kernels *kernels, const struct kernel_call *call, int input,
                        const rounding &r)
{
    const struct tensor *x = &call->op.in[input];
    const float *most = (const float *)call->op.in[ops_fp8_most(call->op.kind, input)].data;
    const uint8_t *codes = (const uint8_t *)x->data;
    struct cuda_shape shape = cuda_shape_of(n_tiles(x), SIDE);

    if (call->op.attributes.fp8 == FP8_TENSOR)
        cuda_launch(kernels, call, shape, place_kernel<IS_TRANSPOSED, ROUND_BY_ONE>, r, codes,
                    most);
    else
        cuda_launch(kernels, call, shape, place_kernel<IS_TRANSPOSED, ROUND_SQUARE>, r, codes,
                    most);
}

template <bool IS_TRANSPOSED>
static void round_lines(struct kernels *kernels, const struct kernel_call *call, int input,
                        const rounding &r)
{
    const struct tensor *x = &call->op.in[input];
    struct cuda_shape shape = cuda_shape_of(n_tiles(x), SIDE);

    if (x->dtype == DTYPE_U8) {
        place_codes<IS_TRANSPOSED>(kernels, call, input, r);
    } else if (call->op.attributes.fp8 == FP8_TENSOR) {
        find_one_scale(kernels, call, input, r);
        cuda_launch(kernels, call, shape, round_kernel<IS_TRANSPOSED, ROUND_BY_ONE>, r);
    } else if (gpu_fp8_operand_of(&call->op, input).is_square) {
        cuda_launch(kernels, call, shape, round_kernel<IS_TRANSPOSED, ROUND_SQUARE>, r);
    } else {
        cuda_launch(kernels, call, shape, round_kernel<IS_TRANSPOSED, ROUND_LINES>, r);
    }
}

static void round_operand(struct kernels *kernels, const struct kernel_call *call, int input,
                          const rounding &r)
{
    if (gpu_fp8_operand_of(&call->op, input).is_transposed)
        round_lines<true>(kernels, call, input, r);
    else
        round_lines<false>(kernels, call, input, r);
}

/* ---- products ---- */

static enum cuda_gemm_scales scales_of(const struct op_shape *op, int input)
{
    return op->attributes.fp8 == FP8_TENSOR          ? GEMM_SCALES_ONE
           : gpu_fp8_operand_of(op, input).is_square ? GEMM_SCALES_SQUARES
                                                     : GEMM_SCALES_LINES;
}

static struct cuda_gemm_shape product_shape(const struct op_shape *op)
{
    const struct tensor *c = &op->out[LINEAR_Y];
    struct cuda_gemm_shape shape = {};

    shape.m = c->rows;
    shape.n = c->cols;
    shape.k = gpu_fp8_operand_of(op, LINEAR_X).k;
    shape.in = DTYPE_U8;
    shape.out = c->dtype;
    shape.a_scales = scales_of(op, LINEAR_X);
    shape.b_scales = scales_of(op, LINEAR_W);
    shape.b_transposed = 1;
    shape.lda = shape.ldb = shape.k;
    shape.ldc = c->stride;
    shape.biased = op->kind == OP_LINEAR_FP8 && tensor_given(&op->in[LINEAR_B]);
    return shape;
}

/* Where things lie in scratch. */
struct fp8_scratch {
    char *a, *b, *product;
};

static fp8_scratch scratch_of(const struct kernel_call *call)
{
    char *base = (char *)align_up((size_t)(uintptr_t)call->scratch, GPU_PRODUCT_ALIGNMENT);
    fp8_scratch s = { base, base + gpu_fp8_operand_of(&call->op, LINEAR_X).all_bytes, NULL };

    s.product = s.b + gpu_fp8_operand_of(&call->op, LINEAR_W).all_bytes;
    return s;
}

static struct cuda_gemm_operands product_operands(const struct kernel_call *call, const rounding &a,
                                                  const rounding &b, int add)
{
    struct cuda_gemm_operands operands = {};

    operands.a = a.codes;
    operands.b = b.codes;
    operands.a_scales = a.scales;
    operands.b_scales = b.scales;
    operands.c = call->op.out[LINEAR_Y].data;
    operands.add = add;
    operands.beside = call->beside;
    if (call->op.kind == OP_LINEAR_FP8)
        operands.bias = (const float *)call->op.in[LINEAR_B].data;
    return operands;
}

/* Scratch may not lie anywhere yet: any address will do, of its alignment. */
static int fp8_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    const struct cudaDeviceProp *p = &cuda_of(kernels)->device->properties;
    struct kernel_call foreseen = *call;
    const struct cuda_gemm *gemm;

    if (10 * p->major + p->minor < 89)
        return err_set(err, ERR_DEVICE,
                       "%s: %s (sm_%d%d) has no products of e4m3, which come with sm_89 (hint: "
                       "train.fp8: none)",
                       op_info(call->op.kind)->name, p->name, p->major, p->minor);
    if (call->op.attributes.fp8 == FP8_BLOCKWISE && p->major != 9)
        return err_set(
            err, ERR_DEVICE,
            "%s: %s (sm_%d%d): cuBLASLt has products with scales of 128 numbers on sm_90 "
            "alone (hint: train.fp8: tensor)",
            op_info(call->op.kind)->name, p->name, p->major, p->minor);
    foreseen.scratch = (void *)((uintptr_t)1 << 40);
    fp8_scratch s = scratch_of(&foreseen);
    struct cuda_gemm_shape shape = product_shape(&call->op);
    struct cuda_gemm_operands operands = product_operands(
        call, rounding_of(&call->op, LINEAR_X, s.a), rounding_of(&call->op, LINEAR_W, s.b), 0);
    if (cuda_gemm_prepare(kernels, &shape, &operands, &gemm, err))
        return err_add(err, "%s", op_info(call->op.kind)->name);
    call->state = (void *)gemm; /* the instance's: nothing to release */
    return 0;
}

static void fp8_multiply(struct kernels *kernels, const struct kernel_call *call, int add)
{
    fp8_scratch s = scratch_of(call);
    rounding a = rounding_of(&call->op, LINEAR_X, s.a), b = rounding_of(&call->op, LINEAR_W, s.b);
    struct cuda_gemm_operands operands = product_operands(call, a, b, add);

    round_operand(kernels, call, LINEAR_X, a);
    round_operand(kernels, call, LINEAR_W, b);
    cuda_gemm_run(kernels, op_info(call->op.kind)->name, (const struct cuda_gemm *)call->state,
                  &operands, s.product);
}

static void fp8_run(struct kernels *kernels, const struct kernel_call *call, int)
{
    fp8_multiply(kernels, call, 0);
}

static void dw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    fp8_multiply(kernels, call, !(first & 1));
    if (tensor_given(&call->op.out[LINEAR_DW_DB]))
        cuda_column_sums(kernels, call, &call->op.in[LINEAR_DW_DY], &call->op.out[LINEAR_DW_DB],
                         call->scratch, first >> 1 & 1);
}

/* ---- the largest element ---- */

static void amax_run(struct kernels *kernels, const struct kernel_call *call, int)
{
    const struct tensor *x = &call->op.in[FP8_AMAX_X];
    rounding r = {};

    r.x = (const uint16_t *)x->data;
    r.rows = x->rows;
    r.cols = x->cols;
    r.stride = x->stride;
    r.n_across = ceil_div(x->cols, (int64_t)SIDE);
    r.most = (uint32_t *)call->scratch;
    found_sizes found = { r.most, n_tiles(x), 1 };
    cuda_launch(kernels, call, cuda_shape_of(n_tiles(x), SIDE), measure_kernel, r);
    cuda_launch(kernels, call, cuda_shape_of(1, COMBINE_THREADS), combine_kernel<false>, found,
                (float *)call->op.out[FP8_AMAX_MOST].data);
}

void cuda_register_linear_fp8(struct kernels_backend *table)
{
    struct kernel_entry entry = {};

    entry.run = fp8_run;
    entry.prepare = fp8_prepare;
    table->entries[OP_LINEAR_FP8] = entry;
    table->entries[OP_LINEAR_DX_FP8] = entry;
    entry.run = dw_run;
    table->entries[OP_LINEAR_DW_FP8] = entry;
    entry = {};
    entry.run = amax_run;
    table->entries[OP_FP8_AMAX] = entry;
}
