/*
 * experts_fp8.cu - expert_linear_fp8, expert_linear_dx_fp8, expert_linear_dw_fp8: operands are
 * rounded to e4m3 (ops/fp8_recipe.h), then multiplied expert by expert
 *
 * Where an expert's rows end is known on the device alone, and cuBLASLt wants shapes (its grouped
 * products with scales of blocks come with 13.4, TransformerEngine's cublaslt_grouped_gemm.cu
 * says). So the multipliers are used here. Rows are rounded into slots of 128 (expert_slots.cuh):
 * an expert has whole slots, with zeros behind its last row, and so blocks along tokens are an
 * expert's own, and every stage of a product is whole.
 *
 * A product's block has 128 x 128 of the result, a warp 64 x 32. A stage of shared memory is 128
 * of k, one block of the recipe: its sum is made from 0, then scaled and added in fp32, which takes
 * twice the registers of sums and so half the tile of gemm_own.cuh. Codes are copied and loaded as
 * that copies and loads pairs. Bound by the multipliers where experts have a hundred rows and more
 * each; those of sm_90 are fp16's here (mma.cuh).
 *
 * With the recipe `tensor` an expert's rows, and its weights, have one scale each: tiles find their
 * largest elements, a block an expert the largest of those. The product is that of blocks, all of
 * which have the same scales.
 */
#include "cuda/expert_slots.cuh"
#include "cuda/fp8_rounding.cuh"

static_assert((int)SIDE == (int)OWN_ROWS && 2 * OWN_K == SIDE,
              "slots, tiles and stages are blocks");

enum { TILE = 128, THREADS = 256, STAGE = (OWN_ROWS + TILE) * OWN_K }; /* pairs of codes */

struct experts {
    const int32_t *ends;
    int n_experts, begin, end; /* begin, end: of those that are meant */
};

/* Of the experts that the op is for. */
static __device__ __forceinline__ bool is_meant(const experts &e, int64_t expert)
{
    return expert >= e.begin && expert < e.end;
}

/* A slot's expert, its first row, and how many it has; 0: none. */
struct slot_rows {
    int expert;
    int64_t row;
    int n;
};

static __device__ __forceinline__ slot_rows rows_of_slot(const experts &e, int slot)
{
    int expert = find_expert(e.ends, e.n_experts, slot);
    int64_t row = begin_of(e.ends, expert) + (int64_t)(slot - slot_of(e.ends, expert)) * SIDE;
    int64_t n = is_meant(e, expert) ? e.ends[expert] - row : 0;

    return { expert, row, (int)(n < 0 ? 0 : n < SIDE ? n : (int64_t)SIDE) };
}

/* ---- rounding ---- */

/* r: of the slot's rows. */
static __device__ __forceinline__ void go_to_slot(rounding &r, const slot_rows &rows)
{
    r.x += rows.row * r.stride;
    r.rows = rows.n;
}

/* Tiles of all slots, one slot after the other. r: of all. WAY: ROUND_LINES, ROUND_BY_ONE. */
template <bool IS_TRANSPOSED, rounding_way WAY>
static __global__ void __launch_bounds__(SIDE) round_slots_kernel(rounding r, experts e)
{
    __shared__ rounding_shared shared;
    int64_t slot = blockIdx.x / r.n_across;
    slot_rows rows = rows_of_slot(e, (int)slot);

    if (rows.n == 0)
        return;
    go_to_slot(r, rows);
    r.codes += IS_TRANSPOSED ? slot * SIDE : slot * SIDE * r.k;
    r.scales += WAY == ROUND_BY_ONE ? rows.expert
                : IS_TRANSPOSED     ? slot * r.scale_stride
                                    : slot * SIDE;
    if (!IS_TRANSPOSED)
        r.lines = SIDE;
    round_tile<IS_TRANSPOSED, WAY>(r, tile_of(r, blockIdx.x % r.n_across), shared);
}

/* Weights: r is of the first expert, and others' come behind. Of codes, `most` has the largest
 * elements of blocks. */
struct expert_weights {
    int64_t n_tiles, n_scales; /* an expert's */
    const float *most;
};

static __device__ __forceinline__ void go_to_expert(rounding &r, const expert_weights &w,
                                                    int64_t expert)
{
    r.x += expert * r.rows * r.stride;
    r.codes += expert * r.lines * r.k;
    r.scales += expert * w.n_scales;
}

/* WAY: ROUND_SQUARE, ROUND_BY_ONE. */
template <bool IS_TRANSPOSED, rounding_way WAY>
static __global__ void __launch_bounds__(SIDE)
    round_weights_kernel(rounding r, expert_weights w, experts e)
{
    __shared__ rounding_shared shared;
    int64_t expert = blockIdx.x / w.n_tiles;

    if (!is_meant(e, expert))
        return;
    go_to_expert(r, w, expert);
    round_tile<IS_TRANSPOSED, WAY>(r, tile_of(r, blockIdx.x % w.n_tiles), shared);
}

template <bool IS_TRANSPOSED, rounding_way WAY>
static __global__ void __launch_bounds__(SIDE)
    place_weights_kernel(rounding r, const uint8_t *given, expert_weights w, experts e)
{
    __shared__ placing_shared shared;
    int64_t expert = blockIdx.x / w.n_tiles;
    rounding_tile t = tile_of(r, blockIdx.x % w.n_tiles);

    if (!is_meant(e, expert))
        return;
    go_to_expert(r, w, expert);
    place_tile<IS_TRANSPOSED>(r, t, given + expert * r.rows * r.stride, shared);
    if (WAY == ROUND_SQUARE && threadIdx.x == 0)
        *square_scale<IS_TRANSPOSED>(r, t) = e4m3_scale(__float_as_uint(w.most[blockIdx.x]));
    if (WAY == ROUND_BY_ONE && threadIdx.x == 0 && blockIdx.x % w.n_tiles == 0)
        *r.scales = e4m3_scale(__float_as_uint(w.most[expert]));
}

/* ---- one scale an expert ---- */

static __global__ void __launch_bounds__(SIDE) measure_slots_kernel(rounding r, experts e)
{
    __shared__ rounding_shared shared;
    slot_rows rows = rows_of_slot(e, (int)(blockIdx.x / r.n_across));

    if (rows.n == 0)
        return;
    go_to_slot(r, rows);
    measure_tile(r, tile_of(r, blockIdx.x % r.n_across), shared);
}

static __global__ void __launch_bounds__(SIDE)
    measure_weights_kernel(rounding r, expert_weights w, experts e)
{
    __shared__ rounding_shared shared;
    int64_t expert = blockIdx.x / w.n_tiles;

    if (!is_meant(e, expert))
        return;
    go_to_expert(r, w, expert);
    measure_tile(r, tile_of(r, blockIdx.x % w.n_tiles), shared);
}

/* A block an expert that is meant. n_tiles: of its weights; 0: those of its rows' slots. */
static __global__ void __launch_bounds__(SIDE)
    combine_kernel(rounding r, int64_t n_tiles, experts e)
{
    __shared__ uint32_t sizes[SIDE];
    int expert = e.begin + blockIdx.x;
    int64_t first = expert * n_tiles, n = n_tiles;
    uint32_t own = 0;

    if (!n_tiles) {
        first = slot_of(e.ends, expert) * r.n_across;
        n = (e.ends[expert] - begin_of(e.ends, expert) + SIDE - 1) / SIDE * r.n_across;
    }
    for (int64_t i = threadIdx.x; i < n; i += SIDE)
        own = r.most[first + i] > own ? r.most[first + i] : own;
    uint32_t most = largest_of_all(own, sizes);
    if (threadIdx.x == 0)
        r.scales[expert] = e4m3_scale(most);
}

/* ---- products ---- */

/* Codes from the tile's first line and k on, and scales of its first block: of line i and block j
 * at[i * line_stride + j * k_stride]; line_stride 0: all lines have one. */
struct coded_lines {
    const uint8_t *codes;
    int64_t ld;
    const float *scales;
    int64_t line_stride, k_stride;
};

struct coded_tile {
    coded_lines a, b;
    int n_blocks, rows, cols;
};

static __device__ __forceinline__ void bring_stage(const coded_tile &t, bf16 *stage, int block)
{
    if (block < t.n_blocks) {
        const bf16 *a = (const bf16 *)(t.a.codes + (int64_t)block * SIDE);
        const bf16 *b = (const bf16 *)(t.b.codes + (int64_t)block * SIDE);

        own_bring<bf16, OWN_ROWS, 1, 1, THREADS>(stage, a, t.a.ld / 2, t.rows, OWN_K);
        own_bring<bf16, TILE, 1, 1, THREADS>(stage + OWN_ROWS * OWN_K, b, t.b.ld / 2, t.cols,
                                             OWN_K);
    }
    copy_async_commit(); /* also of nothing: groups are counted */
}

/* sum = the products of a block; of 64 x 32 a warp. */
static __device__ __forceinline__ void multiply_stage(const bf16 *stage, int m, int n,
                                                      float sum[4][4][4])
{
#pragma unroll 1 /* all registers are taken: more at a time spill */
    for (int k = 0; k < OWN_K; k += 16) {
        uint32_t a[4][4], b[2][4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            own_load_a<bf16, 1>(a[i], stage, m + i * 16, k);
#pragma unroll
        for (int i = 0; i < 2; i++)
            own_load_b<bf16, TILE, 1>(b[i], stage + OWN_ROWS * OWN_K, n + i * 16, k);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_e4m3(sum[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
}

static __device__ __forceinline__ float scale_at(const coded_lines &c, int line, int n_lines,
                                                 int block)
{
    return line < n_lines ? c.scales[line * c.line_stride + block * c.k_stride] : 0.0f;
}

/* all += scales of a times those of b times sum. */
static __device__ __forceinline__ void add_block(const coded_tile &t, int m, int n, int block,
                                                 const float sum[4][4][4], float all[4][4][4])
{
    int lane = (int)threadIdx.x % 32, row = m + lane / 4, col = n + lane % 4 * 2;
    float b[4][2];

#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            b[j][i] = scale_at(t.b, col + j * 8 + i, t.cols, block);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float a = scale_at(t.a, row + i * 16 + half * 8, t.rows, block);

#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    int at = half * 2 + k;

                    all[i][j][at] = fmaf(a * b[j][k], sum[i][j][at], all[i][j][at]);
                }
        }
}

/* A warp's result: packs of 8 of 16 bits, or pairs in fp32. */
template <typename O, int WIDE>
static __device__ __forceinline__ void put_tile(const own_tile<bf16> &t, const own_out<O> &out,
                                                float all[4][4][4], int m, int n)
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int eight = 0; eight < 8; eight++) {
        int row = m + lane / 4 + eight * 8, half = eight % 2 * 2;

        if constexpr (sizeof(O) == 2) {
            packed<O, 8> addend = {};
            float v[8];

#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[2 * j] = all[eight / 2][j][half];
                v[2 * j + 1] = all[eight / 2][j][half + 1];
            }
            own_turn(v);
            own_put<bf16, O, 8, WIDE>(t, out, row, n + lane % 4 * 8, addend, v);
        } else {
            packed<O, 2> addends[4];

#pragma unroll
            for (int j = 0; j < 4; j++)
                own_get<bf16, O, 2, WIDE>(t, out, row, n + lane % 4 * 2 + j * 8, &addends[j]);
#pragma unroll
            for (int j = 0; j < 4; j++)
                own_put<bf16, O, 2, WIDE>(t, out, row, n + lane % 4 * 2 + j * 8, addends[j],
                                          all[eight / 2][j] + half);
        }
    }
}

template <typename O, int WIDE>
static __device__ __forceinline__ void run_tile(const coded_tile &t, const own_out<O> &out,
                                                bf16 *shared)
{
    int warp = (int)threadIdx.x / 32, m = warp % 2 * 64, n = warp / 2 * 32;
    own_tile<bf16> extent = { NULL, NULL, 0, 0, 0, t.rows, t.cols };
    float all[4][4][4] = {};

#pragma unroll
    for (int s = 0; s < OWN_STAGES - 1; s++)
        bring_stage(t, shared + s * STAGE, s);
    for (int block = 0; block < t.n_blocks; block++) {
        float sum[4][4][4] = {};

        own_next_stage(); /* what this turn brings is what the turn before has read */
        bring_stage(t, shared + (block + OWN_STAGES - 1) % OWN_STAGES * STAGE,
                    block + OWN_STAGES - 1);
        multiply_stage(shared + block % OWN_STAGES * STAGE, m, n, sum);
        add_block(t, m, n, block, sum, all);
    }
    put_tile<O, WIDE>(extent, out, all, m, n);
}

template <typename O> struct coded_experts {
    experts e;
    coded_lines a, b;          /* of all */
    int64_t n_rows, n_cols;    /* of the result; of dw, of one expert's */
    int64_t b_codes, b_scales; /* of an expert's weights */
    int64_t n_col_tiles;
    int n_blocks; /* not of dw */
    O *out;
    int64_t ld_out;
    int first;
};

/* Forward and dx: a slot's rows, and 128 columns. HAS_ONE: scale an expert, of a and of b. */
template <int WIDE, bool HAS_ONE>
static __global__ void __launch_bounds__(THREADS) rows_kernel(coded_experts<bf16> p)
{
    CUDA_SHARED(bf16, shared);
    int64_t slot = blockIdx.x / p.n_col_tiles, col = blockIdx.x % p.n_col_tiles * TILE;
    slot_rows rows = rows_of_slot(p.e, (int)slot);

    if (rows.n == 0)
        return;
    coded_tile t = { p.a, p.b, p.n_blocks, rows.n, (int)(p.n_cols - col) };
    t.a.codes += slot * SIDE * p.a.ld;
    t.a.scales += HAS_ONE ? rows.expert : slot * SIDE;
    t.b.codes += rows.expert * p.b_codes + col * p.b.ld;
    t.b.scales += rows.expert * p.b_scales + (HAS_ONE ? 0 : col / SIDE * p.n_blocks);
    own_out<bf16> out = { p.out + rows.row * p.ld_out + col, NULL, p.ld_out, 0 };
    run_tile<bf16, WIDE>(t, out, shared);
}

/* 128 x 128 of an expert's dw, whose k are its slots. */
template <int WIDE, bool HAS_ONE>
static __global__ void __launch_bounds__(THREADS) dw_kernel(coded_experts<float> p)
{
    CUDA_SHARED(bf16, shared);
    int64_t n_row_tiles = (p.n_rows + OWN_ROWS - 1) / OWN_ROWS, number = blockIdx.x;
    int expert = (int)(number / (n_row_tiles * p.n_col_tiles));
    int64_t col = number % p.n_col_tiles * TILE;
    int64_t row = number / p.n_col_tiles % n_row_tiles * OWN_ROWS;
    int begin = begin_of(p.e.ends, expert), end = p.e.ends[expert];
    int64_t slot = slot_of(p.e.ends, expert);

    if (begin == end && !p.first)
        return;
    coded_tile t = { p.a, p.b, (end - begin + SIDE - 1) / SIDE, (int)(p.n_rows - row),
                     (int)(p.n_cols - col) };
    t.a.codes += row * p.a.ld + slot * SIDE;
    t.a.scales += HAS_ONE ? expert : row + slot * p.a.k_stride;
    t.b.codes += col * p.b.ld + slot * SIDE;
    t.b.scales += HAS_ONE ? expert : col + slot * p.b.k_stride;
    float *dw = p.out + (expert * p.n_rows + row) * p.ld_out + col;
    own_out<float> out = { dw, p.first ? NULL : dw, p.ld_out, p.ld_out };
    run_tile<float, WIDE>(t, out, shared);
}

/* ---- launching ---- */

static bool is_dw(const struct op_shape *op)
{
    return op->kind == OP_EXPERT_LINEAR_DW_FP8;
}

static bool has_one_scale(const struct op_shape *op)
{
    return op->attributes.fp8 == FP8_TENSOR;
}

static experts experts_of(const struct op_shape *op)
{
    int input = is_dw(op) ? (int)EXPERT_LINEAR_DW_ENDS : (int)EXPERT_LINEAR_ENDS;
    const struct tensor *ends = &op->in[input];
    int first = (int)op->attributes.first, n = (int)ends->cols;

    return { (const int32_t *)ends->data, n, first,
             op->attributes.experts ? first + op->attributes.experts : n };
}

static const struct tensor *operand_of(const struct op_shape *op, int operand)
{
    return &op->in[operand && !is_dw(op) ? (int)EXPERT_LINEAR_W : operand];
}

static rounding rounding_of(const struct op_shape *op, int operand, char *scratch)
{
    struct gpu_experts_operand o = gpu_experts_operand_of(op, operand);
    const struct tensor *x = operand_of(op, operand);
    rounding r = {};

    r.x = (const uint16_t *)x->data;
    r.rows = o.is_weight ? x->rows / experts_of(op).n_experts : x->rows;
    r.cols = x->cols;
    r.stride = x->stride;
    r.n_across = ceil_div(x->cols, (int64_t)SIDE);
    r.lines = o.lines;
    r.k = o.k;
    r.codes = (uint8_t *)scratch;
    r.scales = (float *)(scratch + o.code_bytes);
    r.most = (uint32_t *)(scratch + o.code_bytes + o.scale_bytes);
    r.scale_stride = o.is_weight ? o.k / SIDE : o.lines;
    return r;
}

static void combine(struct kernels *kernels, const struct kernel_call *call, const rounding &r,
                    int64_t n_tiles, const experts &e)
{
    cuda_launch(kernels, call, cuda_shape_of(e.end - e.begin, SIDE), combine_kernel, r, n_tiles, e);
}

template <bool IS_TRANSPOSED>
static void round_rows(struct kernels *kernels, const struct kernel_call *call, const rounding &r)
{
    experts e = experts_of(&call->op);
    struct cuda_shape shape =
        cuda_shape_of(gpu_expert_slots(r.rows, e.n_experts) * r.n_across, SIDE);

    if (!has_one_scale(&call->op)) {
        cuda_launch(kernels, call, shape, round_slots_kernel<IS_TRANSPOSED, ROUND_LINES>, r, e);
        return;
    }
    cuda_launch(kernels, call, shape, measure_slots_kernel, r, e);
    combine(kernels, call, r, 0, e);
    cuda_launch(kernels, call, shape, round_slots_kernel<IS_TRANSPOSED, ROUND_BY_ONE>, r, e);
}

template <bool IS_TRANSPOSED>
static void round_weights(struct kernels *kernels, const struct kernel_call *call,
                          const rounding &r)
{
    const struct tensor *w = &call->op.in[EXPERT_LINEAR_W];
    experts e = experts_of(&call->op);
    expert_weights of = { ceil_div(r.rows, (int64_t)SIDE) * r.n_across,
                          gpu_experts_operand_of(&call->op, 1).n_scales,
                          (const float *)call->op.in[EXPERT_LINEAR_FP8_W_MOST].data };
    struct cuda_shape shape = cuda_shape_of(e.n_experts * of.n_tiles, SIDE);
    bool has_one = has_one_scale(&call->op);

    if (w->dtype == DTYPE_U8) {
        cuda_launch(kernels, call, shape,
                    has_one ? place_weights_kernel<IS_TRANSPOSED, ROUND_BY_ONE>
                            : place_weights_kernel<IS_TRANSPOSED, ROUND_SQUARE>,
                    r, (const uint8_t *)w->data, of, e);
        return;
    }
    if (has_one) {
        cuda_launch(kernels, call, shape, measure_weights_kernel, r, of, e);
        combine(kernels, call, r, of.n_tiles, e);
    }
    cuda_launch(kernels, call, shape,
                has_one ? round_weights_kernel<IS_TRANSPOSED, ROUND_BY_ONE>
                        : round_weights_kernel<IS_TRANSPOSED, ROUND_SQUARE>,
                r, of, e);
}

static coded_lines lines_of(const struct op_shape *op, int operand, const rounding &r)
{
    bool is_weight = gpu_experts_operand_of(op, operand).is_weight;

    if (has_one_scale(op))
        return { r.codes, r.k, r.scales, 0, 0 };
    return { r.codes, r.k, r.scales, is_weight ? 0 : 1, is_weight ? 1 : r.scale_stride };
}

template <typename O>
static coded_experts<O> product_of(const struct op_shape *op, const rounding &a, const rounding &b)
{
    const struct tensor *out = &op->out[EXPERT_LINEAR_Y];
    coded_experts<O> p = {};

    p.e = experts_of(op);
    p.a = lines_of(op, 0, a);
    p.b = lines_of(op, 1, b);
    p.n_rows = is_dw(op) ? op->in[EXPERT_LINEAR_DW_DY].cols : out->rows;
    p.n_cols = out->cols;
    p.b_codes = b.lines * b.k;
    p.b_scales = gpu_experts_operand_of(op, 1).n_scales;
    p.n_col_tiles = ceil_div(p.n_cols, (int64_t)TILE);
    p.n_blocks = (int)(a.k / SIDE);
    p.out = (O *)out->data;
    p.ld_out = out->stride;
    return p;
}

template <typename O>
static void launch(struct kernels *kernels, const struct kernel_call *call, int64_t n_blocks,
                   void (*kernel)(coded_experts<O>), const coded_experts<O> &p)
{
    CHECK(n_blocks <= INT32_MAX);
    cuda_launch(kernels, call, cuda_shape_of(n_blocks, THREADS, OWN_STAGES * STAGE * sizeof(bf16)),
                kernel, p);
}

static void experts_fp8_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    char *scratch = (char *)align_up((size_t)(uintptr_t)call->scratch, GPU_PRODUCT_ALIGNMENT);
    rounding a = rounding_of(op, 0, scratch);
    rounding b = rounding_of(op, 1, scratch + gpu_experts_operand_of(op, 0).all_bytes);
    bool is_wide = cuda_is_aligned(&op->out[EXPERT_LINEAR_Y], 16), has_one = has_one_scale(op);

    if (is_dw(op)) {
        coded_experts<float> p = product_of<float>(op, a, b);

        p.first = first & 1;
        round_rows<true>(kernels, call, a);
        round_rows<true>(kernels, call, b);
        launch(kernels, call, p.e.n_experts * ceil_div(p.n_rows, (int64_t)OWN_ROWS) * p.n_col_tiles,
               is_wide   ? has_one ? dw_kernel<1, true> : dw_kernel<1, false>
                 : has_one ? dw_kernel<0, true>
                         : dw_kernel<0, false>,
               p);
        return;
    }
    coded_experts<bf16> p = product_of<bf16>(op, a, b);
    round_rows<false>(kernels, call, a);
    if (op->kind == OP_EXPERT_LINEAR_DX_FP8)
        round_weights<true>(kernels, call, b);
    else
        round_weights<false>(kernels, call, b);
    launch(kernels, call, gpu_expert_slots(p.n_rows, p.e.n_experts) * p.n_col_tiles,
           is_wide   ? has_one ? rows_kernel<1, true> : rows_kernel<1, false>
             : has_one ? rows_kernel<0, true>
                     : rows_kernel<0, false>,
           p);
}

static int experts_fp8_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    const struct cudaDeviceProp *p = &cuda_of(kernels)->device->properties;

    if (10 * p->major + p->minor < 89)
        return err_set(err, ERR_DEVICE,
                       "%s: %s (sm_%d%d) has no products of e4m3, which come with sm_89 (hint: "
                       "train.fp8_experts: bf16)",
                       op_info(call->op.kind)->name, p->name, p->major, p->minor);
    return is_dw(&call->op) ? cuda_want_fp32(call, 0, err) : 0;
}

void cuda_register_experts_fp8(struct kernels_backend *table)
{
    struct kernel_entry entry = {};

    entry.run = experts_fp8_run;
    entry.prepare = experts_fp8_prepare;
    table->entries[OP_EXPERT_LINEAR_FP8] = entry;
    table->entries[OP_EXPERT_LINEAR_DX_FP8] = entry;
    table->entries[OP_EXPERT_LINEAR_DW_FP8] = entry;
}
