/*
 * compress.c - gradients in fewer bytes: blocks of codes with a scale each, and back
 *
 * ops/codec.h says what a code stands for. A tile is OPS_CODE_TILE_BLOCKS blocks of a part, bound
 * by memory: encode reads and writes x, decode reads all ranks' codes. The order of IEEE operations
 * is the contract with other backends:
 *
 *   scale = max / 127 (or 448), code = round(x / scale), decoded = code * scale, left = x - decoded,
 *   or 0 where scale is NaN
 *
 * Sums of squares are in double, of a tile in SUM_LANES lanes and of all tiles in order.
 */
#include "kernels/cpu/fp8_numbers_impl.h"
#include "kernels/cpu/rows_impl.h"

#define ROUND_TO_INT 12582912.0f /* 1.5 * 2^23: what is added to it is rounded to even */

/* ---- codes ---- */

CPU_INLINE uint8_t int8_code(float x)
{
    float code = x + ROUND_TO_INT - ROUND_TO_INT;

    code = code > OPS_INT8_MAX ? OPS_INT8_MAX : code < -OPS_INT8_MAX ? -OPS_INT8_MAX : code;
    return (uint8_t)(int8_t)(int)code;
}

CPU_INLINE uint8_t code_of(float x, enum codec codec)
{
    return codec == CODEC_INT8 ? int8_code(x) : e4m3_code(x);
}

CPU_INLINE float value_of(uint8_t code, enum codec codec)
{
    return codec == CODEC_INT8 ? (float)(int8_t)code : e4m3_value(code);
}

/* NaN where an element is not finite. */
CPU_INLINE float scale_of(const float *x, int64_t n, enum codec codec)
{
    uint32_t most = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t size = vec_to_bits(x[i]) & 0x7fffffffu;

        most = size > most ? size : most;
    }
    return most < 0x7f800000u
               ? vec_from_bits(most) / (codec == CODEC_INT8 ? OPS_INT8_MAX : OPS_E4M3_MAX)
               : NAN;
}

/* ---- encode ---- */

struct encoding {
    const struct op_shape *op;
    int64_t part, n_blocks, tiles_a_part;
    double *sums; /* of each tile: of squares of x, of what is left */
};

/* Squares go to lanes, and what is left to x. */
CPU_INLINE void encode_block(float *x, int64_t n, float *scale, uint8_t *codes, double *lanes,
                             enum codec codec)
{
    float s = scale_of(x, n, codec);
    bool is_coded = s > 0; /* nor NaN */

    *scale = s;
    for (int64_t i = 0; i < n; i++)
        codes[i] = is_coded ? code_of(x[i] / s, codec) : 0;
    for (int64_t i = 0; i < n; i++) {
        float left = isnan(s) ? 0 : x[i] - value_of(codes[i], codec) * s;

        lanes[i % SUM_LANES] += (double)x[i] * (double)x[i];
        lanes[SUM_LANES + i % SUM_LANES] += (double)left * (double)left;
        x[i] = left;
    }
}

CPU_INLINE double add_lanes(double *lanes)
{
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

CPU_INLINE void encode_blocks(const struct encoding *e, int64_t tile, enum codec codec)
{
    const struct op_shape *op = e->op;
    int64_t row = tile / e->tiles_a_part, first = tile % e->tiles_a_part * OPS_CODE_TILE_BLOCKS;
    float *x = (float *)op->in[ENCODE_X].data + row * e->part;
    float *scales = cpu_row(&op->out[ENCODE_CODES], row);
    uint8_t *codes = (uint8_t *)(scales + e->n_blocks);
    double lanes[2 * SUM_LANES] = { 0 };

    for (int64_t b = first; b < min_i64(first + OPS_CODE_TILE_BLOCKS, e->n_blocks); b++) {
        int64_t at = b * OPS_CODE_BLOCK, n = min_i64(OPS_CODE_BLOCK, e->part - at);

        encode_block(x + at, n, scales + b, codes + at, lanes, codec);
    }
    for (int64_t i = e->part; first + OPS_CODE_TILE_BLOCKS >= e->n_blocks && i % 4; i++)
        codes[i] = 0;
    e->sums[2 * tile] = add_lanes(lanes);
    e->sums[2 * tile + 1] = add_lanes(lanes + SUM_LANES);
}

CPU_INLINE void encode_tile_body(void *context, int64_t tile)
{
    const struct encoding *e = context;

    if (e->op->attributes.codec == CODEC_INT8)
        encode_blocks(e, tile, CODEC_INT8);
    else
        encode_blocks(e, tile, CODEC_FP8);
}

CPU_TILES(encode_tile);

static struct encoding encoding_of(const struct op_shape *op)
{
    struct encoding e = { .op = op, .part = op->in[ENCODE_X].cols / op->out[ENCODE_CODES].rows };

    e.n_blocks = ops_code_blocks(e.part);
    e.tiles_a_part = ops_code_tiles(e.part);
    return e;
}

static size_t encode_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return (size_t)(encoding_of(op).tiles_a_part * op->out[ENCODE_CODES].rows) * 2 * sizeof(double);
}

static void encode_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct encoding e = encoding_of(&call->op);
    int64_t n_tiles = e.tiles_a_part * call->op.out[ENCODE_CODES].rows;
    double *sums = call->op.out[ENCODE_SUMS].data;

    (void)first;
    e.sums = call->scratch;
    pool_run(kernels->pool, n_tiles, encode_tile[cpu_of(kernels)->isa], &e);
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < n_tiles; i++) {
        sums[0] += e.sums[2 * i];
        sums[1] += e.sums[2 * i + 1];
    }
}

/* ---- decode ---- */

/* Sums of 1, 2, 4, ... rows wait for as many more: the tree of comm/reduce.h, row by row. */
#define WAITING_MAX 24

CPU_INLINE void decode_block(const struct tensor *codes, int64_t block, int64_t n_blocks, int64_t n,
                             float *y, enum codec codec)
{
    float waiting[WAITING_MAX][OPS_CODE_BLOCK];
    int n_waiting = 0;

    for (int64_t row = 0; row < codes->rows; row++) {
        const float *scales = cpu_row(codes, row);
        const uint8_t *code = (const uint8_t *)(scales + n_blocks) + block * OPS_CODE_BLOCK;
        float *to = waiting[n_waiting++];

        for (int64_t i = 0; i < n; i++)
            to[i] = value_of(code[i], codec) * scales[block];
        for (int64_t k = row + 1; k % 2 == 0; k /= 2, n_waiting--)
            for (int64_t i = 0; i < n; i++)
                waiting[n_waiting - 2][i] += waiting[n_waiting - 1][i];
    }
    for (; n_waiting > 1; n_waiting--)
        for (int64_t i = 0; i < n; i++)
            waiting[n_waiting - 2][i] += waiting[n_waiting - 1][i];
    memcpy(y, waiting[0], (size_t)n * sizeof *y);
}

CPU_INLINE void decode_tile_body(void *context, int64_t tile)
{
    const struct op_shape *op = context;
    const struct tensor *codes = &op->in[DECODE_CODES];
    int64_t n = op->out[DECODE_Y].cols, n_blocks = ops_code_blocks(n);

    for (int64_t b = tile * OPS_CODE_TILE_BLOCKS;
         b < min_i64((tile + 1) * OPS_CODE_TILE_BLOCKS, n_blocks); b++) {
        int64_t at = b * OPS_CODE_BLOCK, here = min_i64(OPS_CODE_BLOCK, n - at);
        float *y = (float *)op->out[DECODE_Y].data + at;

        if (op->attributes.codec == CODEC_INT8)
            decode_block(codes, b, n_blocks, here, y, CODEC_INT8);
        else
            decode_block(codes, b, n_blocks, here, y, CODEC_FP8);
    }
}

CPU_TILES(decode_tile);

static void decode_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct op_shape op = call->op;

    (void)first;
    CHECK(op.in[DECODE_CODES].rows < (int64_t)1 << (WAITING_MAX - 1));
    pool_run(kernels->pool, ops_code_tiles(op.out[DECODE_Y].cols),
             decode_tile[cpu_of(kernels)->isa], &op);
}

/* ---- the error ---- */

/* What is multiplied by a power of two loses nothing. */
static void add_tile(void *context, int64_t tile, int thread)
{
    const struct op_shape *op = context;
    int64_t at = tile * ELEMENTS_A_TILE;
    int64_t n = min_i64(ELEMENTS_A_TILE, op->in[ADD_ERROR_X].cols - at);
    const float *error = (const float *)op->in[ADD_ERROR_ERROR].data + at;
    float *x = (float *)op->in[ADD_ERROR_X].data + at;
    float scale = *(const float *)op->in[ADD_ERROR_SCALE].data;

    (void)thread;
    for (int64_t i = 0; i < n; i++)
        x[i] += error[i] * scale;
}

static void add_error_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct op_shape op = call->op;

    (void)first;
    pool_run(kernels->pool, ceil_div(op.in[ADD_ERROR_X].cols, ELEMENTS_A_TILE), add_tile, &op);
}

static void keep_tile(void *context, int64_t tile, int thread)
{
    const struct op_shape *op = context;
    int64_t at = tile * ELEMENTS_A_TILE;
    int64_t n = min_i64(ELEMENTS_A_TILE, op->in[KEEP_ERROR_LEFT].cols - at);
    const float *left = (const float *)op->in[KEEP_ERROR_LEFT].data + at;
    float *error = (float *)op->in[KEEP_ERROR_ERROR].data + at;
    float inverse =
        op->in[KEEP_ERROR_SCALE].data ? 1 / *(const float *)op->in[KEEP_ERROR_SCALE].data : 1;

    (void)thread;
    for (int64_t i = 0; i < n; i++)
        error[i] = left[i] * inverse;
}

static void keep_error_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct op_shape op = call->op;

    (void)first;
    const float *scalars = op.in[KEEP_ERROR_SCALARS].data;
    if (scalars && scalars[SCALAR_UPDATE] <= (float)op.attributes.start)
        return;
    if (!*(const int32_t *)op.in[KEEP_ERROR_SKIP_UPDATE].data)
        pool_run(kernels->pool, ceil_div(op.in[KEEP_ERROR_LEFT].cols, ELEMENTS_A_TILE), keep_tile,
                 &op);
}

void cpu_register_compress(struct kernels_backend *table)
{
    table->entries[OP_ENCODE] =
        (struct kernel_entry){ .run = encode_run, .scratch_bytes = encode_scratch_bytes };
    table->entries[OP_DECODE] = (struct kernel_entry){ .run = decode_run };
    table->entries[OP_ADD_ERROR] = (struct kernel_entry){ .run = add_error_run };
    table->entries[OP_KEEP_ERROR] = (struct kernel_entry){ .run = keep_error_run };
}
