/*
 * linear_fp8.c - linear_fp8, linear_dx_fp8, linear_dw_fp8: operands are rounded to e4m3 by blocks
 * (ops/fp8_recipe.h), then multiplied by gemm.c
 *
 * A number of e4m3, or e5m2, is one of bf16, so codes lie in scratch as bf16 and gemm.c needs to
 * know of scales alone. A tile of the rounding is 128 x 128 elements, whatever the blocks are: it
 * has a scale for each row, for each column, or one; with one scale of the whole operand, and
 * unless the largest elements of its parts are given, a first round of tiles finds the largest. The
 * order of IEEE operations is compress.c's, and the contract with other backends: scale = max / 448
 * (of e5m2, 57344), code = round(x / scale).
 */
#include "kernels/cpu/fp8_blocks_impl.h"
#include "kernels/cpu/linear_impl.h"

#define SIDE OPS_FP8_BLOCK
#define SIDE_SHIFT 7
_Static_assert(SIDE == 1 << SIDE_SHIFT, "a power of two");

/* What has a scale. */
enum blocks { BLOCKS_IN_ROWS, BLOCKS_IN_COLUMNS, BLOCKS_SQUARE, BLOCKS_ONE };

struct fp8_rounding {
    const struct tensor *x;
    enum blocks blocks;
    bool is_e5m2;
    uint16_t *codes;            /* dense */
    float *scales;              /* of blocks, in order of rows; of columns [blocks x columns] */
    uint16_t *most;             /* of each tile its largest |x|, for BLOCKS_ONE */
    const struct tensor *parts; /* of each part of the tensor its largest |x|, or NULL */
    int64_t n_across;
};

/* ---- tiles ---- */

struct rounding_tile {
    int64_t row, col;
    int n_rows, n_cols;
};

static struct rounding_tile tile_at(const struct fp8_rounding *r, int64_t number)
{
    int64_t row = number / r->n_across * SIDE, col = number % r->n_across * SIDE;

    return (struct rounding_tile){ row, col, (int)min_i64(SIDE, r->x->rows - row),
                                   (int)min_i64(SIDE, r->x->cols - col) };
}

static const uint16_t *elements(const struct fp8_rounding *r, const struct rounding_tile *t,
                                int row)
{
    return (const uint16_t *)cpu_row(r->x, t->row + row) + t->col;
}

/* Of each column, with the rows before; bits of |x|, which are ordered as they are. */
CPU_INLINE void fold_row(uint16_t most[SIDE], const uint16_t *x, int n)
{
    for (int i = 0; i < n; i++) {
        uint16_t size = x[i] & 0x7fffu;

        most[i] = size > most[i] ? size : most[i];
    }
}

/* With one scale. */
CPU_INLINE void round_row_e5m2(uint16_t *codes, const uint16_t *x, float scale, int n)
{
    float divisor = scale > 0 ? scale : 1.0f; /* nor NaN */

    for (int i = 0; i < n; i++) {
        float code = e5m2_value(e5m2_code(vec_from_bf16(x[i]) / divisor));

        codes[i] = scale > 0 ? (uint16_t)(vec_to_bits(code) >> 16) : 0;
    }
}

CPU_INLINE void round_row(uint16_t *codes, const uint16_t *x, const float *scales, int n)
{
    for (int i = 0; i < n; i++) {
        float scale = scales[i], quotient = vec_from_bf16(x[i]) / (scale > 0 ? scale : 1.0f);
        uint32_t bits = vec_to_bits(e4m3_value(e4m3_code(quotient)));

        codes[i] = scale > 0 ? (uint16_t)(bits >> 16) : 0;
    }
}

CPU_INLINE void fill(float scales[SIDE], float scale)
{
    for (int i = 0; i < SIDE; i++)
        scales[i] = scale;
}

CPU_INLINE float scale_of(uint16_t most)
{
    return e4m3_scale((uint32_t)most << 16);
}

/* Each row is a block. */
CPU_INLINE void round_rows(const struct fp8_rounding *r, const struct rounding_tile *t)
{
    for (int row = 0; row < t->n_rows; row++) {
        const uint16_t *x = elements(r, t, row);
        float *scale = r->scales + (t->row + row) * r->n_across + t->col / SIDE, scales[SIDE];

        *scale = scale_of(fp8_larger(0, x, t->n_cols));
        fill(scales, *scale);
        round_row(r->codes + (t->row + row) * r->x->cols + t->col, x, scales, t->n_cols);
    }
}

CPU_INLINE void fold_tile(const struct fp8_rounding *r, const struct rounding_tile *t,
                          uint16_t most[SIDE])
{
    memset(most, 0, SIDE * sizeof *most);
    for (int row = 0; row < t->n_rows; row++)
        fold_row(most, elements(r, t, row), t->n_cols);
}

CPU_INLINE void round_others(const struct fp8_rounding *r, const struct rounding_tile *t)
{
    int64_t block = t->row / SIDE;
    float scales[SIDE] = { 0 };
    uint16_t most[SIDE];

    if (r->blocks != BLOCKS_ONE)
        fold_tile(r, t, most);
    if (r->blocks == BLOCKS_ONE) {
        fill(scales, *r->scales);
    } else if (r->blocks == BLOCKS_SQUARE) {
        fill(scales, scale_of(fp8_larger(0, most, SIDE)));
        r->scales[block * r->n_across + t->col / SIDE] = *scales;
    } else {
        for (int col = 0; col < t->n_cols; col++)
            scales[col] = scale_of(most[col]);
        memcpy(r->scales + block * r->x->cols + t->col, scales, (size_t)t->n_cols * sizeof *scales);
    }
    for (int row = 0; row < t->n_rows; row++) {
        uint16_t *codes = r->codes + (t->row + row) * r->x->cols + t->col;

        if (r->is_e5m2)
            round_row_e5m2(codes, elements(r, t, row), *scales, t->n_cols);
        else
            round_row(codes, elements(r, t, row), scales, t->n_cols);
    }
}

CPU_INLINE void round_tile_body(void *context, int64_t number)
{
    const struct fp8_rounding *r = context;
    struct rounding_tile t = tile_at(r, number);

    if (r->blocks == BLOCKS_IN_ROWS)
        round_rows(r, &t);
    else
        round_others(r, &t);
}

CPU_TILES(round_tile);

CPU_INLINE void measure_tile_body(void *context, int64_t number)
{
    const struct fp8_rounding *r = context;
    struct rounding_tile t = tile_at(r, number);
    uint16_t most[SIDE];

    fold_tile(r, &t, most);
    r->most[number] = fp8_larger(0, most, SIDE);
}

CPU_TILES(measure_tile);

static int64_t n_tiles(const struct tensor *x)
{
    return ceil_div(x->rows, SIDE) * ceil_div(x->cols, SIDE);
}

/* Codes that are there, as bf16. */
CPU_INLINE void widen_tile_body(void *context, int64_t number)
{
    const struct fp8_rounding *r = context;
    struct rounding_tile t = tile_at(r, number);

    for (int row = 0; row < t.n_rows; row++) {
        const uint8_t *x = (const uint8_t *)cpu_row(r->x, t.row + row) + t.col;
        uint16_t *codes = r->codes + (t.row + row) * r->x->cols + t.col;

        for (int i = 0; i < t.n_cols; i++)
            codes[i] = (uint16_t)(vec_to_bits(e4m3_value(x[i])) >> 16);
    }
}

CPU_TILES(widen_tile);

static uint16_t measure(struct kernels *kernels, struct fp8_rounding *r)
{
    pool_run(kernels->pool, n_tiles(r->x), measure_tile[cpu_of(kernels)->isa], r);
    return fp8_larger(0, r->most, n_tiles(r->x));
}

static float one_scale(struct kernels *kernels, struct fp8_rounding *r)
{
    uint32_t most =
        r->parts ? fp8_largest_of_parts(r->parts, 0) : (uint32_t)measure(kernels, r) << 16;

    return r->is_e5m2 ? e5m2_scale(most) : e4m3_scale(most);
}

static void round_operand(struct kernels *kernels, struct fp8_rounding *r)
{
    if (r->x->dtype == DTYPE_U8) {
        const float *most = r->parts->data;

        int64_t n = r->parts->cols;

        for (int64_t i = 0; i < r->parts->rows * n; i++)
            r->scales[i] = e4m3_scale(vec_to_bits(most[i / n * r->parts->stride + i % n]));
        pool_run(kernels->pool, n_tiles(r->x), widen_tile[cpu_of(kernels)->isa], r);
        return;
    }
    if (r->blocks == BLOCKS_ONE)
        *r->scales = one_scale(kernels, r);
    pool_run(kernels->pool, n_tiles(r->x), round_tile[cpu_of(kernels)->isa], r);
}

/* ---- products ---- */

static enum blocks blocks_of(const struct op_shape *op, int input)
{
    if (op->attributes.fp8 == FP8_TENSOR)
        return BLOCKS_ONE;
    if (op->kind == OP_LINEAR_DW_FP8)
        return BLOCKS_IN_COLUMNS;
    return input == LINEAR_W ? BLOCKS_SQUARE : BLOCKS_IN_ROWS;
}

static int64_t n_scales(const struct tensor *x, enum blocks blocks)
{
    switch (blocks) {
    case BLOCKS_IN_ROWS:
        return x->rows * ceil_div(x->cols, SIDE);
    case BLOCKS_IN_COLUMNS:
        return ceil_div(x->rows, SIDE) * x->cols;
    case BLOCKS_SQUARE:
        return n_tiles(x);
    default:
        return 1;
    }
}

/* Its codes, scales, and what tiles have found. */
static size_t operand_bytes(const struct op_shape *op, int input)
{
    const struct tensor *x = &op->in[input];
    enum blocks blocks = blocks_of(op, input);
    size_t most = blocks == BLOCKS_ONE ? (size_t)n_tiles(x) * sizeof(uint16_t) : 0;

    return align_up((size_t)tensor_elements(x) * sizeof(uint16_t), 64) +
           align_up((size_t)n_scales(x, blocks) * sizeof(float), 64) + align_up(most, 64);
}

static struct fp8_rounding rounding_of(const struct op_shape *op, int input, char *scratch)
{
    const struct tensor *x = &op->in[input];
    const struct tensor *parts = &op->in[ops_fp8_most(op->kind, input)];
    struct fp8_rounding r = { .x = x,
                              .parts = tensor_given(parts) ? parts : NULL,
                              .blocks = blocks_of(op, input),
                              .is_e5m2 = op->attributes.e5m2_dy && input == LINEAR_DX_DY &&
                                         op->kind != OP_LINEAR_FP8,
                              .codes = (uint16_t *)(void *)scratch,
                              .n_across = ceil_div(x->cols, SIDE) };

    scratch += align_up((size_t)tensor_elements(x) * sizeof(uint16_t), 64);
    r.scales = (float *)(void *)scratch;
    scratch += align_up((size_t)n_scales(x, r.blocks) * sizeof(float), 64);
    r.most = (uint16_t *)(void *)scratch;
    return r;
}

static struct cpu_gemm_shape product_shape(const struct op_shape *op)
{
    struct cpu_gemm_shape shape = cpu_linear_shape(op);

    shape.in = DTYPE_BF16;
    shape.lda = op->in[LINEAR_X].cols;
    shape.ldb = op->in[LINEAR_W].cols;
    shape.scaled_k = op->attributes.fp8 == FP8_TENSOR ? max_i64(shape.k, 2) : SIDE;
    return shape;
}

/* Lines of the operand that are its rows lie along its columns, and the other way round. */
static struct cpu_gemm_scales scales_of(const struct fp8_rounding *r, bool lines_are_rows)
{
    switch (r->blocks) {
    case BLOCKS_IN_ROWS:
        return (struct cpu_gemm_scales){ r->scales, 0, r->n_across, 1 };
    case BLOCKS_IN_COLUMNS:
        return (struct cpu_gemm_scales){ r->scales, 0, 1, r->x->cols };
    case BLOCKS_SQUARE:
        return (struct cpu_gemm_scales){ r->scales, SIDE_SHIFT, lines_are_rows ? r->n_across : 1,
                                         lines_are_rows ? 1 : r->n_across };
    default:
        return (struct cpu_gemm_scales){ r->scales, 0, 0, 0 };
    }
}

static size_t fp8_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    struct cpu_gemm_shape shape = product_shape(op);

    return operand_bytes(op, LINEAR_X) + operand_bytes(op, LINEAR_W) +
           cpu_gemm_scratch_bytes(cpu_of(kernels), &shape);
}

size_t cpu_linear_fp8_scratch_most(struct kernels *kernels, const struct op_shape *op)
{
    struct cpu_gemm_shape shape = product_shape(op);

    return operand_bytes(op, LINEAR_X) + operand_bytes(op, LINEAR_W) +
           cpu_gemm_scratch_most(cpu_of(kernels), &shape);
}

void cpu_linear_fp8(struct kernels *kernels, const struct op_shape *op, char *scratch, int first)
{
    struct cpu_gemm_shape shape = product_shape(op);
    struct fp8_rounding a = rounding_of(op, LINEAR_X, scratch);
    struct fp8_rounding b = rounding_of(op, LINEAR_W, scratch + operand_bytes(op, LINEAR_X));

    round_operand(kernels, &a);
    round_operand(kernels, &b);
    struct cpu_gemm_operands operands = { .a = a.codes,
                                          .b = b.codes,
                                          .c = op->out[LINEAR_Y].data,
                                          .first = first,
                                          .a_scales = scales_of(&a, !shape.a_transposed),
                                          .b_scales = scales_of(&b, shape.b_transposed) };
    if (op->kind == OP_LINEAR_FP8)
        operands.bias = op->in[LINEAR_B].data;
    cpu_gemm_run(cpu_of(kernels), &shape, &operands,
                 scratch + operand_bytes(op, LINEAR_X) + operand_bytes(op, LINEAR_W));
}

static void fp8_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    cpu_linear_fp8(kernels, &call->op, call->scratch, first);
}

static void dw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;

    fp8_run(kernels, call, first);
    if (tensor_given(&op->out[LINEAR_DW_DB]))
        cpu_linear_db(kernels, &op->in[LINEAR_DW_DY], &op->out[LINEAR_DW_DB], first);
}

/* ---- the largest element ---- */

static size_t amax_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return (size_t)n_tiles(&op->in[FP8_AMAX_X]) * sizeof(uint16_t);
}

static void amax_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *x = &call->op.in[FP8_AMAX_X];
    struct fp8_rounding r = { .x = x, .most = call->scratch, .n_across = ceil_div(x->cols, SIDE) };
    uint32_t most = (uint32_t)measure(kernels, &r) << 16;

    (void)first;
    *(float *)call->op.out[FP8_AMAX_MOST].data = vec_from_bits(most);
}

void cpu_register_linear_fp8(struct kernels_backend *table)
{
    struct kernel_entry entry = { .run = fp8_run, .scratch_bytes = fp8_scratch_bytes };

    table->entries[OP_LINEAR_FP8] = entry;
    table->entries[OP_LINEAR_DX_FP8] = entry;
    entry.run = dw_run;
    table->entries[OP_LINEAR_DW_FP8] = entry;
    table->entries[OP_FP8_AMAX] =
        (struct kernel_entry){ .run = amax_run, .scratch_bytes = amax_scratch_bytes };
}
