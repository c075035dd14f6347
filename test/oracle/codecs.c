/*
 * codecs.c - what test/oracle/compress.py holds against numpy: gradients through a codec's kernels
 *
 *     codecs CODEC RATIO N_STEPS N_RANKS N [BEGIN LENGTH]...
 *
 * CODEC is int8, fp8 or topk; the pairs are topk's parts of the N elements. Standard input:
 * gradients, fp32 [N_STEPS x N_RANKS x N]. In each step each rank adds what it has lost so far,
 * encodes that, and all ranks' codes are decoded and added. Standard output, of each step: of each
 * rank its codes (rows of a part of each rank, or pairs), what is lost [N] and the two sums of
 * squares (fp64); then the sum of all ranks [N].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "device/pool.h"
#include "kernels/kernels.h"

#define INPUT_MAX ((size_t)1 << 28)

struct play {
    enum codec codec;
    double ratio;
    int64_t n_steps, n_ranks, n, n_pairs;
    int n_parts;
    int32_t *parts;    /* [2 n_parts] */
    size_t code_bytes; /* of a rank */
    float *left;       /* [n_ranks x n] */
    uint8_t *sent;     /* [n_ranks] of code_bytes each */
    uint8_t *received;
    struct kernels *kernels;
};

static struct tensor dense(void *data, int64_t rows, int64_t cols, enum dtype dtype)
{
    return (
        struct tensor){ .data = data, .rows = rows, .cols = cols, .stride = cols, .dtype = dtype };
}

static int run_op(const struct play *p, const struct op_shape *op, struct err *err)
{
    struct kernel_call call = { .op = *op };
    size_t n_bytes = kernels_scratch_bytes(p->kernels, op);

    if (kernels_prepare(p->kernels, &call, err) < 0)
        return -1;
    call.scratch = aligned_alloc(64, (n_bytes + 64) / 64 * 64);
    CHECK(call.scratch);
    kernels_run(p->kernels, &call, KERNELS_FIRST);
    free(call.scratch);
    kernels_release(p->kernels, &call);
    return 0;
}

static int encode(const struct play *p, float *x, uint8_t *codes, double *sums, struct err *err)
{
    struct op_shape op = { .kind = OP_ENCODE, .attributes.codec = p->codec };

    if (p->codec == CODEC_TOP_K) {
        op = (struct op_shape){ .kind = OP_TOP_K, .attributes.ratio = p->ratio };
        op.in[TOP_K_PARTS] = dense(p->parts, 1, 2 * p->n_parts, DTYPE_I32);
        op.out[TOP_K_PAIRS] = dense(codes, 1, 2 * p->n_pairs, DTYPE_I32);
        op.out[TOP_K_SUMS] = dense(sums, 1, 2, DTYPE_F64);
        op.in[TOP_K_X] = dense(x, 1, p->n, DTYPE_F32);
        return run_op(p, &op, err);
    }
    int64_t row = ops_code_bytes(p->n / p->n_ranks);
    op.in[ENCODE_X] = dense(x, 1, p->n, DTYPE_F32);
    op.out[ENCODE_CODES] = dense(codes, p->n_ranks, row, DTYPE_U8);
    op.out[ENCODE_SUMS] = dense(sums, 1, 2, DTYPE_F64);
    return run_op(p, &op, err);
}

/* Rank by rank, as each owner of a part does; of pairs all at once. */
static int decode(const struct play *p, float *sum, struct err *err)
{
    size_t row = p->code_bytes / (size_t)p->n_ranks;
    int64_t part = p->n / p->n_ranks;

    if (p->codec == CODEC_TOP_K) {
        struct op_shape op = { .kind = OP_ADD_PAIRS };

        op.in[ADD_PAIRS_PAIRS] = dense(p->sent, p->n_ranks, 2 * p->n_pairs, DTYPE_I32);
        op.out[ADD_PAIRS_Y] = dense(sum, 1, p->n, DTYPE_F32);
        return run_op(p, &op, err);
    }
    for (int64_t owner = 0; owner < p->n_ranks; owner++) {
        struct op_shape op = { .kind = OP_DECODE, .attributes.codec = p->codec };

        for (size_t r = 0; r < (size_t)p->n_ranks; r++)
            memcpy(p->received + r * row, p->sent + r * p->code_bytes + (size_t)owner * row, row);
        op.in[DECODE_CODES] = dense(p->received, p->n_ranks, (int64_t)row, DTYPE_U8);
        op.out[DECODE_Y] = dense(sum + owner * part, 1, part, DTYPE_F32);
        if (run_op(p, &op, err) < 0)
            return -1;
    }
    return 0;
}

static int play_step(const struct play *p, const float *gradients, float *sum, struct err *err)
{
    for (int64_t r = 0; r < p->n_ranks; r++) {
        float *left = p->left + r * p->n;
        uint8_t *codes = p->sent + (size_t)r * p->code_bytes;
        double sums[2];

        for (int64_t i = 0; i < p->n; i++)
            left[i] += gradients[r * p->n + i];
        if (encode(p, left, codes, sums, err) < 0)
            return -1;
        fwrite(codes, 1, p->code_bytes, stdout);
        fwrite(left, sizeof *left, (size_t)p->n, stdout);
        fwrite(sums, sizeof *sums, 2, stdout);
    }
    if (decode(p, sum, err) < 0)
        return -1;
    fwrite(sum, sizeof *sum, (size_t)p->n, stdout);
    return 0;
}

static int parse(struct play *p, int argc, char **argv)
{
    static const char *const names[] = { "none", "int8", "fp8", "topk" };

    while (p->codec <= CODEC_TOP_K && strcmp(argv[1], names[p->codec]) != 0)
        p->codec++;
    p->ratio = strtod(argv[2], NULL);
    p->n_steps = strtol(argv[3], NULL, 10);
    p->n_ranks = strtol(argv[4], NULL, 10);
    p->n = strtol(argv[5], NULL, 10);
    p->n_parts = (argc - 6) / 2;
    p->parts = calloc((size_t)argc, sizeof *p->parts);
    CHECK(p->parts);
    for (int i = 0; i < 2 * p->n_parts; i++)
        p->parts[i] = (int32_t)strtol(argv[6 + i], NULL, 10);
    for (int i = 0; i < p->n_parts; i++)
        p->n_pairs += ops_top_k(p->ratio, p->parts[2 * i + 1]);
    if (p->codec == CODEC_NONE || p->codec > CODEC_TOP_K || p->n_ranks < 1 || p->n < p->n_ranks ||
        p->n % p->n_ranks || (p->codec == CODEC_TOP_K) != (p->n_parts > 0))
        return -1;
    p->code_bytes = p->codec == CODEC_TOP_K
                        ? (size_t)p->n_pairs * 8
                        : (size_t)(p->n_ranks * ops_code_bytes(p->n / p->n_ranks));
    return 0;
}

static int play(struct play *p, struct err *err)
{
    size_t n = (size_t)(p->n_ranks * p->n), n_bytes;
    float *sum = calloc((size_t)p->n, sizeof *sum);
    int status = 0;

    p->left = calloc(n, sizeof *p->left);
    p->sent = calloc((size_t)p->n_ranks, p->code_bytes);
    p->received = calloc((size_t)p->n_ranks, p->code_bytes);
    CHECK(sum && p->left && p->sent && p->received);
    char *data;
    if (file_read("/dev/stdin", INPUT_MAX, ERR_DATA, &data, &n_bytes, err) < 0)
        return -1;
    CHECK(n_bytes == (size_t)p->n_steps * n * sizeof *p->left);
    for (int64_t step = 0; step < p->n_steps && !status; step++)
        status = play_step(p, (const float *)(void *)data + (size_t)step * n, sum, err);
    free(data);
    free(sum);
    return status;
}

int main(int argc, char **argv)
{
    struct play p = { 0 };
    struct pool *pool = NULL;
    struct err err;

    if (argc < 6 || parse(&p, argc, argv) < 0) {
        fprintf(stderr, "usage: codecs CODEC RATIO N_STEPS N_RANKS N [BEGIN LENGTH]...\n");
        return 2;
    }
    int status = pool_create(&pool, 2, NULL, &err) < 0 ||
                 kernels_cpu_create(&p.kernels, pool, NULL, &err) < 0 || play(&p, &err) < 0;
    if (status)
        fprintf(stderr, "codecs: %s\n", err.text);
    kernels_destroy(p.kernels);
    pool_destroy(pool);
    free(p.parts);
    free(p.left);
    free(p.sent);
    free(p.received);
    return status || fflush(stdout) != 0;
}
