/*
 * linear_fp8.cu - linear_fp8, linear_dx_fp8, linear_dw_fp8: operands are rounded to e4m3 by blocks
 * (ops/fp8_recipe.h), then multiplied by cuBLASLt
 *
 * The library multiplies operands whose lines lie along k, so each is written as it wants it
 * (fp8_rounding.cuh). Codes and scales have the bits of lib/kernels/cpu/linear_fp8.c; sums are the
 * library's. Of lines with scales of their own it wants a multiple of 8 (gemm.cuh): where tokens
 * are none, the product has some more rows, is made in scratch, and copied.
 */
#include "cuda/column_sums.cuh"
#include "cuda/fp8_rounding.cuh"
#include "cuda/gemm.cuh"

enum { COMBINE_THREADS = 256, COPY_THREADS = 256 };

template <bool IS_TRANSPOSED, rounding_way WAY>
static __global__ void __launch_bounds__(SIDE) round_kernel(rounding r)
{
    __shared__ rounding_shared shared;

    round_tile<IS_TRANSPOSED, WAY>(r, tile_of(r, blockIdx.x), shared);
}

/* Codes that are there, and what their scales are made of. */
template <bool IS_TRANSPOSED, rounding_way WAY>
static __global__ void __launch_bounds__(SIDE)
    place_kernel(rounding r, const uint8_t *given, const float *most)
{
    __shared__ placing_shared shared;
    rounding_tile t = tile_of(r, blockIdx.x);

    place_tile<IS_TRANSPOSED>(r, t, given, shared);
    if (WAY == ROUND_SQUARE && threadIdx.x == 0)
        *square_scale<IS_TRANSPOSED>(r, t) = e4m3_scale(__float_as_uint(most[blockIdx.x]));
    if (WAY == ROUND_BY_ONE && threadIdx.x == 0 && blockIdx.x == 0)
        *r.scales = e4m3_scale(__float_as_uint(*most));
}

/* Of lines that are the rows of `most` [rows x blocks], and of those behind them, which are zeros. */
static __global__ void __launch_bounds__(COPY_THREADS)
    line_scales_kernel(rounding r, const float *most, int64_t stride)
{
    int64_t i = (int64_t)blockIdx.x * COPY_THREADS + threadIdx.x;
    int64_t block = i / r.scale_stride, line = i - block * r.scale_stride;

    if (block * SIDE >= r.k)
        return;
    r.scales[i] = line < r.rows ? e4m3_scale(__float_as_uint(most[line * stride + block])) : 0.0f;
}

static __global__ void __launch_bounds__(SIDE) measure_kernel(rounding r)
{
    __shared__ rounding_shared shared;

    measure_tile(r, tile_of(r, blockIdx.x), shared);
}

/* The bits of |x|, as many as there are tiles, or parts of a tensor. */
struct found_sizes {
    const uint32_t *sizes;
    int64_t n, stride;
};

/* What is made of the largest. */
enum combine_to { COMBINE_LARGEST, COMBINE_E4M3_SCALE, COMBINE_E5M2_SCALE };

template <combine_to TO>
static __global__ void __launch_bounds__(COMBINE_THREADS) combine_kernel(found_sizes f, float *out)
{
    __shared__ uint32_t sizes[COMBINE_THREADS];
    uint32_t own = 0;

    for (int64_t i = threadIdx.x; i < f.n; i += COMBINE_THREADS)
        own = f.sizes[i * f.stride] > own ? f.sizes[i * f.stride] : own;
    uint32_t most = largest_of_all(own, sizes);
    if (threadIdx.x == 0)
        *out = TO == COMBINE_E4M3_SCALE   ? e4m3_scale(most)
               : TO == COMBINE_E5M2_SCALE ? e5m2_scale(most)
                                          : __uint_as_float(most);
}

/* ---- launching ---- */

static int64_t n_tiles(const struct tensor *x)
{
    return ceil_div(x->rows, (int64_t)SIDE) * ceil_div(x->cols, (int64_t)SIDE);
}

static bool is_e5m2(const struct op_shape *op, int input)
{
    return op->attributes.e5m2_dy && op->kind != OP_LINEAR_FP8 && input == LINEAR_DX_DY;
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
    r.codes = o.is_there ? (uint8_t *)x->data : (uint8_t *)scratch;
    r.scales = (float *)(scratch + o.code_bytes);
    r.scale_stride = o.is_square ? round_up(o.k / SIDE, (int64_t)4) : o.lines;
    r.most = (uint32_t *)(scratch + o.code_bytes + o.scale_bytes);
    r.is_e5m2 = is_e5m2(op, input);
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
    cuda_launch(kernels, call, cuda_shape_of(1, COMBINE_THREADS),
                r.is_e5m2 ? combine_kernel<COMBINE_E5M2_SCALE> : combine_kernel<COMBINE_E4M3_SCALE>,
                found, r.scales);
}

/* Rows that what made them has rounded. */
static void place_rows(struct kernels *kernels, const struct kernel_call *call, int input,
                       const rounding &r)
{
    const struct tensor *x = &call->op.in[input],
                        *most = &call->op.in[ops_fp8_most(call->op.kind, input)];
    int64_t n_scales = r.k / SIDE * r.scale_stride;

    if (!gpu_fp8_operand_of(&call->op, input).is_there)
        cuda_launch(kernels, call, cuda_shape_of(n_tiles(x), SIDE),
                    place_kernel<false, ROUND_LINES>, r, (const uint8_t *)x->data,
                    (const float *)NULL);
    cuda_launch(kernels, call, cuda_shape_of(ceil_div(n_scales, COPY_THREADS), COPY_THREADS),
                line_scales_kernel, r, (const float *)most->data, most->stride);
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

    if (x->dtype == DTYPE_U8 && input != LINEAR_W) {
        place_rows(kernels, call, input, r);
    } else if (x->dtype == DTYPE_U8) {
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

    shape.m = gpu_fp8_padded_bytes(op) ? gpu_fp8_operand_of(op, LINEAR_X).lines : c->rows;
    shape.n = c->cols;
    shape.k = gpu_fp8_operand_of(op, LINEAR_X).k;
    shape.in = DTYPE_U8;
    shape.a_is_e5m2 = is_e5m2(op, LINEAR_X);
    shape.out = c->dtype;
    shape.a_scales = scales_of(op, LINEAR_X);
    shape.b_scales = scales_of(op, LINEAR_W);
    shape.b_transposed = 1;
    shape.lda = shape.ldb = shape.k;
    shape.ldc = gpu_fp8_padded_bytes(op) ? c->cols : c->stride;
    shape.biased = op->kind == OP_LINEAR_FP8 && tensor_given(&op->in[LINEAR_B]);
    return shape;
}

/* Where things lie in scratch. */
struct fp8_scratch {
    char *a, *b, *padded, *product; /* padded: the result, or NULL */
};

static fp8_scratch scratch_of(const struct kernel_call *call)
{
    char *base = (char *)align_up((size_t)(uintptr_t)call->scratch, GPU_PRODUCT_ALIGNMENT);
    fp8_scratch s = { base, base + gpu_fp8_operand_of(&call->op, LINEAR_X).all_bytes, NULL, NULL };
    size_t padded = gpu_fp8_padded_bytes(&call->op);

    s.product = s.b + gpu_fp8_operand_of(&call->op, LINEAR_W).all_bytes;
    if (padded)
        s.padded = s.product;
    s.product += padded;
    return s;
}

static struct cuda_gemm_operands product_operands(const struct kernel_call *call,
                                                  const fp8_scratch &s, const rounding &a,
                                                  const rounding &b, int add)
{
    struct cuda_gemm_operands operands = {};

    operands.a = a.codes;
    operands.b = b.codes;
    operands.a_scales = a.scales;
    operands.b_scales = b.scales;
    operands.c = s.padded ? s.padded : call->op.out[LINEAR_Y].data;
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
    CHECK(call->op.kind != OP_LINEAR_DW_FP8 || !gpu_fp8_padded_bytes(&call->op));
    foreseen.scratch = (void *)((uintptr_t)1 << 40);
    fp8_scratch s = scratch_of(&foreseen);
    struct cuda_gemm_shape shape = product_shape(&call->op);
    struct cuda_gemm_operands operands = product_operands(
        call, s, rounding_of(&call->op, LINEAR_X, s.a), rounding_of(&call->op, LINEAR_W, s.b), 0);
    if (cuda_gemm_prepare(kernels, &shape, &operands, &gemm, err))
        return err_add(err, "%s", op_info(call->op.kind)->name);
    call->state = (void *)gemm; /* the instance's: nothing to release */
    return 0;
}

/* A row a block, from a dense result. */
static __global__ void __launch_bounds__(COPY_THREADS)
    copy_rows_kernel(const uint16_t *from, uint16_t *to, int64_t n_cols, int64_t stride)
{
    for (int64_t i = threadIdx.x; i < n_cols; i += COPY_THREADS)
        to[blockIdx.x * stride + i] = from[blockIdx.x * n_cols + i];
}

static void copy_result(struct kernels *kernels, const struct kernel_call *call, const char *from)
{
    const struct tensor *y = &call->op.out[LINEAR_Y];

    cuda_launch(kernels, call, cuda_shape_of(y->rows, COPY_THREADS), copy_rows_kernel,
                (const uint16_t *)from, (uint16_t *)y->data, y->cols, y->stride);
}

static void fp8_multiply(struct kernels *kernels, const struct kernel_call *call, int add)
{
    fp8_scratch s = scratch_of(call);
    rounding a = rounding_of(&call->op, LINEAR_X, s.a), b = rounding_of(&call->op, LINEAR_W, s.b);
    struct cuda_gemm_operands operands = product_operands(call, s, a, b, add);

    round_operand(kernels, call, LINEAR_X, a);
    round_operand(kernels, call, LINEAR_W, b);
    cuda_gemm_run(kernels, op_info(call->op.kind)->name, (const struct cuda_gemm *)call->state,
                  &operands, s.product);
    if (s.padded)
        copy_result(kernels, call, s.padded);
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
    cuda_launch(kernels, call, cuda_shape_of(1, COMBINE_THREADS), combine_kernel<COMBINE_LARGEST>,
                found, (float *)call->op.out[FP8_AMAX_MOST].data);
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
