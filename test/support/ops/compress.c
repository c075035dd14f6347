/*
 * compress.c - facts of gradients in fewer bytes
 *
 * References are in fp32: what a code is hangs on how a quotient is rounded.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/e4m3.h"
#include "support/op_case.h"
#include "support/ops/op_family.h"

static uint8_t code_of(float x, enum codec codec)
{
    if (codec == CODEC_INT8)
        return (uint8_t)(int8_t)fmin(fmax(nearbyint((double)x), -127), 127);
    return (uint8_t)(e4m3_nearest(fabs((double)x)) | (signbit(x) ? 0x80 : 0));
}

static float value_of(uint8_t code, enum codec codec)
{
    if (codec == CODEC_INT8)
        return (float)(int8_t)code;
    return (float)(code & 0x80 ? -e4m3_number(code & 0x7f) : e4m3_number(code & 0x7f));
}

static float *scale_at(const struct tensor *codes, int64_t row, int64_t block)
{
    return (float *)(void *)((uint8_t *)codes->data + row * codes->cols) + block;
}

static uint8_t *code_at(const struct tensor *codes, int64_t row, int64_t n, int64_t i)
{
    return (uint8_t *)scale_at(codes, row, ops_code_blocks(n)) + i;
}

static void encode_block(const struct op_shape *op, int64_t row, int64_t part, int64_t block)
{
    enum codec codec = op->attributes.codec;
    int64_t begin = block * OPS_CODE_BLOCK, end = min_i64(part, begin + OPS_CODE_BLOCK);
    float most = 0, scale;

    for (int64_t i = begin; i < end; i++) {
        float x = fabsf((float)IN(ENCODE_X, 0, row * part + i));

        most = isfinite(x) && !(x <= most) ? x : isfinite(x) ? most : NAN;
        if (isnan(most))
            break;
    }
    scale = most / (codec == CODEC_INT8 ? OPS_INT8_MAX : OPS_E4M3_MAX);
    *scale_at(&op->out[ENCODE_CODES], row, block) = scale;
    for (int64_t i = begin; i < end; i++) {
        double *x = at(&op->in[ENCODE_X], 0, row * part + i);
        uint8_t code = scale > 0 ? code_of((float)*x / scale, codec) : 0;
        float left = isnan(scale) ? 0 : (float)*x - value_of(code, codec) * scale;

        *code_at(&op->out[ENCODE_CODES], row, part, i) = code;
        OUT(ENCODE_SUMS, 0, 0) += *x * *x;
        OUT(ENCODE_SUMS, 0, 1) += (double)left * (double)left;
        *x = (double)left;
    }
}

static void encode(const struct op_shape *op)
{
    int64_t n_rows = op->out[ENCODE_CODES].rows, part = op->in[ENCODE_X].cols / n_rows;

    start(&op->out[ENCODE_SUMS]);
    memset(op->out[ENCODE_CODES].data, 0, (size_t)tensor_elements(&op->out[ENCODE_CODES]));
    for (int64_t row = 0; row < n_rows; row++)
        for (int64_t block = 0; block < ops_code_blocks(part); block++)
            encode_block(op, row, part, block);
}

/* Of rows first .. first + n - 1: the tree of comm/reduce.h. */
static float sum_of_rows(const struct op_shape *op, int64_t first, int64_t n, int64_t i)
{
    const struct tensor *codes = &op->in[DECODE_CODES];
    int64_t cols = op->out[DECODE_Y].cols, half = 1;

    if (n == 1)
        return value_of(*code_at(codes, first, cols, i), op->attributes.codec) *
               *scale_at(codes, first, i / OPS_CODE_BLOCK);
    while (2 * half < n)
        half *= 2;
    return sum_of_rows(op, first, half, i) + sum_of_rows(op, first + half, n - half, i);
}

static void decode(const struct op_shape *op)
{
    for (int64_t i = 0; i < op->out[DECODE_Y].cols; i++)
        OUT(DECODE_Y, 0, i) = (double)sum_of_rows(op, 0, op->in[DECODE_CODES].rows, i);
}

/* Larger, or equal and earlier. */
static int comes_first(const double *x, int64_t a, int64_t b)
{
    double u = isnan(x[a]) ? INFINITY : fabs(x[a]), v = isnan(x[b]) ? INFINITY : fabs(x[b]);

    return u != v ? u > v : a < b;
}

/* The k first of a part, which become pairs from first_pair on. */
static void choose(const struct op_shape *op, int64_t begin, int64_t end, int64_t k,
                   int64_t first_pair)
{
    int32_t *numbers = op->out[TOP_K_PAIRS].data;
    int64_t n_pairs = op->out[TOP_K_PAIRS].cols / 2, to = first_pair;
    double *x = op->in[TOP_K_X].data;

    for (int64_t i = begin; i < end; i++) {
        int64_t before = 0;

        for (int64_t j = begin; j < end; j++)
            before += j != i && comes_first(x, j, i);
        if (before < k)
            numbers[to++] = (int32_t)i;
    }
    for (int64_t i = first_pair; i < to; i++) {
        float value = (float)x[numbers[i]];

        memcpy(&numbers[n_pairs + i], &value, sizeof value);
        x[numbers[i]] = 0;
    }
}

static void top_k(const struct op_shape *op)
{
    const int32_t *parts = op->in[TOP_K_PARTS].data;
    const double *x = op->in[TOP_K_X].data;
    int64_t first_pair = 0;

    start(&op->out[TOP_K_SUMS]);
    for (int64_t p = 0; p < op->in[TOP_K_PARTS].cols / 2; p++) {
        int64_t begin = parts[2 * p], end = begin + parts[2 * p + 1];
        int64_t k = ops_top_k(op->attributes.ratio, end - begin);

        for (int64_t i = begin; i < end; i++)
            OUT(TOP_K_SUMS, 0, 0) += x[i] * x[i];
        choose(op, begin, end, k, first_pair);
        for (int64_t i = begin; i < end; i++)
            OUT(TOP_K_SUMS, 0, 1) += x[i] * x[i];
        first_pair += k;
    }
}

static float pair_of(const struct tensor *pairs, int64_t row, int64_t number)
{
    const int32_t *numbers = (const int32_t *)pairs->data + row * pairs->cols;
    float value = 0;

    for (int64_t i = 0; i < pairs->cols / 2; i++)
        if (numbers[i] == number)
            memcpy(&value, &numbers[pairs->cols / 2 + i], sizeof value);
    return value;
}

static float sum_of_pairs(const struct tensor *pairs, int64_t first, int64_t n, int64_t number)
{
    int64_t half = 1;

    if (n == 1)
        return pair_of(pairs, first, number);
    while (2 * half < n)
        half *= 2;
    return sum_of_pairs(pairs, first, half, number) +
           sum_of_pairs(pairs, first + half, n - half, number);
}

static void add_pairs(const struct op_shape *op)
{
    const struct tensor *pairs = &op->in[ADD_PAIRS_PAIRS];

    for (int64_t i = 0; i < op->out[ADD_PAIRS_Y].cols; i++)
        OUT(ADD_PAIRS_Y, 0, i) = (double)sum_of_pairs(pairs, 0, pairs->rows, i);
}

static void add_error(const struct op_shape *op)
{
    for (int64_t i = 0; i < op->in[ADD_ERROR_X].cols; i++)
        *at(&op->in[ADD_ERROR_X], 0, i) += IN(ADD_ERROR_ERROR, 0, i) * IN(ADD_ERROR_SCALE, 0, 0);
}

static void keep_error(const struct op_shape *op)
{
    double scale = tensor_given(&op->in[KEEP_ERROR_SCALE]) ? IN(KEEP_ERROR_SCALE, 0, 0) : 1;

    for (int64_t i = 0; i < op->in[KEEP_ERROR_LEFT].cols; i++)
        if (!int_at(&op->in[KEEP_ERROR_SKIP_UPDATE], 0) &&
            !(tensor_given(&op->in[KEEP_ERROR_SCALARS]) &&
              IN(KEEP_ERROR_SCALARS, 0, SCALAR_UPDATE) <= (double)op->attributes.start))
            *at(&op->in[KEEP_ERROR_ERROR], 0, i) = IN(KEEP_ERROR_LEFT, 0, i) / scale;
}

/* ---- kernels ---- */

/* Ranks, and elements of a part: whole blocks, a short last one, several tiles. */
static const struct {
    int ranks, part;
} cases[] = {
    { 1, 256 }, { 2, 4096 }, { 3, 260 }, { 4, 4 }, { 5, 9000 }, { 8, 1024 }, { 2, 8448 }
};

enum { N_CASES = sizeof cases / sizeof *cases };

static void encode_kernels(void)
{
    for (int i = 0; i < 2 * N_CASES; i++) {
        struct op_attributes a = { .codec = i % 2 ? CODEC_FP8 : CODEC_INT8 };
        struct op_case *c = op_case_create(OP_ENCODE, &a);
        int ranks = cases[i / 2].ranks, part = cases[i / 2].part;

        c->dense = true;
        op_case_input(c, ENCODE_X, 1, ranks * part, DTYPE_F32, 1e-3);
        op_case_output(c, ENCODE_CODES, ranks, ops_code_bytes(part), DTYPE_U8);
        op_case_output(c, ENCODE_SUMS, 1, 2, DTYPE_F64);
        op_case_check(c, 1e-12);
        op_case_destroy(c);
    }
}

static void decode_kernels(void)
{
    for (int i = 0; i < 2 * N_CASES; i++) {
        struct op_attributes a = { .codec = i % 2 ? CODEC_FP8 : CODEC_INT8 };
        struct op_case *c = op_case_create(OP_DECODE, &a);
        int ranks = cases[i / 2].ranks, part = cases[i / 2].part;

        c->dense = true;
        op_case_input(c, DECODE_CODES, ranks, ops_code_bytes(part), DTYPE_U8, 0);
        op_case_output(c, DECODE_Y, 1, part, DTYPE_F32);
        for (int row = 0; row < ranks; row++) {
            for (int b = 0; b < ops_code_blocks(part); b++)
                *scale_at(&c->op.in[DECODE_CODES], row, b) = 1e-3f * (float)(1 + row + b % 5);
            for (int k = 0; k < part; k++)
                *code_at(&c->op.in[DECODE_CODES], row, part, k) = (uint8_t)(7 * k + row) % 127;
        }
        op_case_check(c, 0);
        op_case_destroy(c);
    }
}

/* Parts with gaps between them; ties, zeros, and all of a part. */
static void top_k_kernels(void)
{
    static const double ratios[] = { 0.01, 0.3, 1 };
    static const int32_t parts[] = { 0, 3, 16, 1000, 1024, 300, 1400, 1 };

    for (int i = 0; i < 6; i++) {
        struct op_attributes a = { .ratio = ratios[i / 2] };
        struct op_case *c = op_case_create(OP_TOP_K, &a);
        int64_t n_pairs = 0;

        for (int k = 0; k < 4; k++)
            n_pairs += ops_top_k(a.ratio, parts[2 * k + 1]);
        c->dense = true;
        op_case_input(c, TOP_K_X, 1, 1500, DTYPE_F32, 1);
        op_case_input(c, TOP_K_PARTS, 1, 8, DTYPE_I32, 0);
        op_case_output(c, TOP_K_PAIRS, 1, 2 * n_pairs, DTYPE_I32);
        op_case_output(c, TOP_K_SUMS, 1, 2, DTYPE_F64);
        memcpy(c->op.in[TOP_K_PARTS].data, parts, sizeof parts);
        for (int k = 0; k < 1500 && i % 2; k++)
            ((float *)c->op.in[TOP_K_X].data)[k] = k < 1200 ? (float)(k % 7 - 3) : 0;
        op_case_check(c, 1e-12);
        op_case_destroy(c);
    }
}

static void add_pairs_kernels(void)
{
    for (int rows = 1; rows < 7; rows++) {
        struct op_case *c = op_case_create(OP_ADD_PAIRS, &(struct op_attributes){ 0 });

        c->dense = true;
        op_case_input(c, ADD_PAIRS_PAIRS, rows, 2 * 90, DTYPE_I32, 0);
        op_case_output(c, ADD_PAIRS_Y, 1, 1300, DTYPE_F32);
        for (int row = 0; row < rows; row++)
            for (int k = 0; k < 90; k++) {
                int32_t *numbers = (int32_t *)c->op.in[ADD_PAIRS_PAIRS].data + row * 180;
                float value = 0.1f * (float)(k + row + 1);

                numbers[k] = k < 40 ? k + row : 7 * k + 3 * row;
                memcpy(&numbers[90 + k], &value, sizeof value);
            }
        op_case_check(c, 0);
        op_case_destroy(c);
    }
}

static void add_error_kernels(void)
{
    for (int i = 0; i < 6; i++) {
        struct op_case *c = op_case_create(OP_ADD_ERROR, &(struct op_attributes){ 0 });
        int n = (int[]){ 4, 4096, 50000 }[i / 2];

        c->dense = true;
        op_case_input(c, ADD_ERROR_ERROR, 1, n, DTYPE_F32, 1);
        op_case_input(c, ADD_ERROR_SCALE, 1, 1, DTYPE_F32, 0);
        op_case_input(c, ADD_ERROR_X, 1, n, DTYPE_F32, 1);
        tensor_set(&c->op.in[ADD_ERROR_SCALE], 0, 0, i % 2 ? 65536 : 1);
        op_case_check(c, 1e-7);
        op_case_destroy(c);
    }
}

static void keep_error_kernels(void)
{
    for (int i = 0; i < 18; i++) {
        struct op_attributes a = { .start = i / 6 == 1 ? 5 : 0 };
        struct op_case *c = op_case_create(OP_KEEP_ERROR, &a);
        int n = (int[]){ 4, 4096, 50000 }[i % 6 / 2];

        c->dense = true;
        op_case_input(c, KEEP_ERROR_LEFT, 1, n, DTYPE_F32, 1);
        op_case_input(c, KEEP_ERROR_SKIP_UPDATE, 1, 1, DTYPE_I32, 0);
        op_case_input(c, KEEP_ERROR_ERROR, 1, n, DTYPE_F32, 1);
        *(int32_t *)c->op.in[KEEP_ERROR_SKIP_UPDATE].data = i % 2;
        if (i / 6 == 1) {
            op_case_input(c, KEEP_ERROR_SCALARS, 1, OPS_N_SCALARS, DTYPE_F32, 1);
            tensor_set(&c->op.in[KEEP_ERROR_SCALARS], 0, SCALAR_UPDATE, i % 6 < 3 ? 5 : 6);
        }
        if (i / 6 == 2) {
            op_case_input(c, KEEP_ERROR_SCALE, 1, 1, DTYPE_F32, 0);
            tensor_set(&c->op.in[KEEP_ERROR_SCALE], 0, 0, i % 4 < 2 ? 1024 : 0.5);
        }
        op_case_check(c, 0);
        op_case_destroy(c);
    }
}

const struct op_facts compress_facts[N_OP_KINDS] = {
    [OP_ENCODE] = {
        .example = "encode 1x512 fp32 : 2x260 u8, 1x2 fp64",
        .spreads = "s > sp; r > rp; c > cp; p > pp",
        .reference = encode,
        .kernels = encode_kernels,
    },
    [OP_DECODE] = {
        .example = "decode *3x260 u8 : 1x256 fp32",
        .spreads = "s > s; c > c; p > p",
        .reference = decode,
        .kernels = decode_kernels,
    },
    [OP_TOP_K] = {
        .example = "top_k 1x*512 fp32, 1x4 i32 : 1x8 i32, 1x2 fp64",
        .spreads = "ss > sp; rs > rp; cs > cp; ps > pp",
        .reference = top_k,
        .kernels = top_k_kernels,
    },
    [OP_ADD_PAIRS] = {
        .example = "add_pairs *3x8 i32 : 1x*256 fp32",
        .spreads = "s > s; c > c; p > p",
        .reference = add_pairs,
        .kernels = add_pairs_kernels,
    },
    [OP_ADD_ERROR] = {
        .example = "add_error 1x512 fp32, 1x1 fp32, 1x512 fp32 :",
        .spreads = "sss >; csc >; psp >",
        .reference = add_error,
        .kernels = add_error_kernels,
    },
    [OP_KEEP_ERROR] = {
        .example = "keep_error 1x512 fp32, 1x1 i32, 1x512 fp32, 1x4 fp32, 1x1 fp32 :",
        .spreads = "sssss >; cscss >; pspss >",
        .reference = keep_error,
        .kernels = keep_error_kernels,
    },
};
