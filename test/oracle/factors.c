/*
 * factors.c - what test/oracle/powersgd.py holds against PyTorch's powerSGD_hook: gradients through
 * the kernels of powersgd
 *
 *     factors RANK N_STEPS N_RANKS N [ROWS COLS]...
 *
 * The N elements are matrices one behind the other; those with one row travel as they are. Standard
 * input: the right factors that the first step begins with, fp32; then gradients, fp32 [N_STEPS x
 * N_RANKS x N]. In each step each rank adds what it has lost so far. Standard output, of each step:
 * of each rank what it has lost [N], then the sum of all [N].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "device/pool.h"
#include "kernels/kernels.h"

#define INPUT_MAX ((size_t)1 << 28)

struct play {
    int rank, n_parts, n_matrices;
    int64_t n_steps, n_ranks, n, n_left, n_right;
    struct ops_factored *parts;
    int32_t *left_parts, *right_parts;
    float *right, *right_basis, *left, *left_basis, *own, *lost, *sum;
    struct kernels *kernels;
};

static struct tensor row(void *data, int64_t n, enum dtype dtype)
{
    return (struct tensor){ .data = data, .rows = 1, .cols = n, .stride = n, .dtype = dtype };
}

static int run_op(const struct play *p, struct op_shape *op, struct err *err)
{
    op->attributes.rank = p->rank;
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

static int basis(const struct play *p, float *x, int32_t *parts, int64_t n, float *y, int fills,
                 struct err *err)
{
    struct op_shape op = { .kind = OP_LOW_RANK_BASIS, .attributes.fills = fills };

    op.in[LOW_RANK_BASIS_X] = row(x, n, DTYPE_F32);
    op.in[LOW_RANK_BASIS_PARTS] = row(parts, 2 * p->n_matrices, DTYPE_I32);
    op.out[LOW_RANK_BASIS_Y] = row(y, n, DTYPE_F32);
    return run_op(p, &op, err);
}

/* The sum over ranks of what the op makes of each one's x and of `other`. */
static int add_products(const struct play *p, enum op_kind kind, float *other, int64_t n_other,
                        float *sum, int64_t n, struct err *err)
{
    struct op_shape op = { .kind = kind };

    op.in[LOW_RANK_LEFT_PARTS] = row(p->parts, p->n_parts * (int64_t)OPS_FACTORED_WORDS, DTYPE_I32);
    op.in[LOW_RANK_LEFT_RIGHT] = row(other, n_other, DTYPE_F32);
    op.out[OPS_FIRST] = row(p->own, n, DTYPE_F32);
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t r = 0; r < p->n_ranks; r++) {
        op.in[OPS_FIRST] = row(p->lost + r * p->n, p->n, DTYPE_F32);
        if (run_op(p, &op, err) < 0)
            return -1;
        for (int64_t i = 0; i < n; i++)
            sum[i] += p->own[i];
    }
    return 0;
}

static int play_step(const struct play *p, const float *gradients, struct err *err)
{
    struct op_shape op = { .kind = OP_LOW_RANK_SUM };
    double sums[2];

    for (int64_t i = 0; i < p->n_ranks * p->n; i++)
        p->lost[i] += gradients[i];
    if (basis(p, p->right, p->right_parts, p->n_right, p->right_basis, 1, err) < 0 ||
        add_products(p, OP_LOW_RANK_LEFT, p->right_basis, p->n_right, p->left, p->n_left, err) <
            0 ||
        basis(p, p->left, p->left_parts, p->n_left, p->left_basis, 0, err) < 0 ||
        add_products(p, OP_LOW_RANK_RIGHT, p->left_basis, p->n_left, p->right, p->n_right, err) < 0)
        return -1;
    op.attributes.scale = 1.0 / (double)p->n_ranks;
    op.in[LOW_RANK_SUM_PARTS] = row(p->parts, p->n_parts * (int64_t)OPS_FACTORED_WORDS, DTYPE_I32);
    op.in[LOW_RANK_SUM_LEFT] = row(p->left_basis, p->n_left, DTYPE_F32);
    op.in[LOW_RANK_SUM_RIGHT] = row(p->right, p->n_right, DTYPE_F32);
    op.out[LOW_RANK_SUM_Y] = row(p->sum, p->n, DTYPE_F32);
    op.out[LOW_RANK_SUM_SUMS] = row(sums, 2, DTYPE_F64);
    for (int64_t r = 0; r < p->n_ranks; r++) {
        op.in[LOW_RANK_SUM_X] = row(p->lost + r * p->n, p->n, DTYPE_F32);
        if (run_op(p, &op, err) < 0)
            return -1;
    }
    fwrite(p->lost, sizeof *p->lost, (size_t)(p->n_ranks * p->n), stdout);
    fwrite(p->sum, sizeof *p->sum, (size_t)p->n, stdout);
    return 0;
}

static int parse(struct play *p, int argc, char **argv)
{
    int64_t at = 0;

    p->rank = (int)strtol(argv[1], NULL, 10);
    p->n_steps = strtol(argv[2], NULL, 10);
    p->n_ranks = strtol(argv[3], NULL, 10);
    p->n = strtol(argv[4], NULL, 10);
    p->n_parts = (argc - 5) / 2;
    p->parts = calloc((size_t)argc, sizeof *p->parts);
    p->left_parts = calloc((size_t)argc, sizeof *p->left_parts);
    p->right_parts = calloc((size_t)argc, sizeof *p->right_parts);
    CHECK(p->parts && p->left_parts && p->right_parts);
    for (int i = 0; i < p->n_parts; i++) {
        int32_t rows = (int32_t)strtol(argv[5 + 2 * i], NULL, 10);
        int32_t cols = (int32_t)strtol(argv[6 + 2 * i], NULL, 10);
        int m = 2 * p->n_matrices;

        p->parts[i] = (struct ops_factored){ (int32_t)at, rows, cols, (int32_t)p->n_left,
                                             rows == 1 ? -1 : (int32_t)p->n_right };
        at += (int64_t)rows * cols;
        if (rows > 1) {
            p->left_parts[m] = (int32_t)p->n_left;
            p->left_parts[m + 1] = rows;
            p->right_parts[m] = (int32_t)p->n_right;
            p->right_parts[m + 1] = cols;
            p->n_matrices++;
        }
        p->n_left += rows == 1 ? cols : (int64_t)rows * p->rank;
        p->n_right += rows == 1 ? 0 : (int64_t)cols * p->rank;
    }
    return at == p->n && p->n_matrices && p->n_ranks > 0 ? 0 : -1;
}

static float *floats(int64_t n)
{
    float *data = calloc((size_t)n, sizeof *data);

    CHECK(data);
    return data;
}

static int play(struct play *p, struct err *err)
{
    int64_t n_gradients = p->n_ranks * p->n;
    size_t n_bytes;
    int status = 0;
    char *data;

    if (file_read("/dev/stdin", INPUT_MAX, ERR_DATA, &data, &n_bytes, err) < 0)
        return -1;
    CHECK(n_bytes == (size_t)(p->n_right + p->n_steps * n_gradients) * sizeof(float));
    memcpy(p->right, data, (size_t)p->n_right * sizeof(float));
    const float *gradients = (const float *)(void *)data + p->n_right;
    for (int64_t step = 0; step < p->n_steps && !status; step++)
        status = play_step(p, gradients + step * n_gradients, err);
    free(data);
    return status;
}

int main(int argc, char **argv)
{
    struct play p = { 0 };
    struct pool *pool = NULL;
    struct err err;

    if (argc < 7 || parse(&p, argc, argv) < 0) {
        fprintf(stderr, "usage: factors RANK N_STEPS N_RANKS N [ROWS COLS]...\n");
        return 2;
    }
    p.right = floats(p.n_right);
    p.right_basis = floats(p.n_right);
    p.left = floats(p.n_left);
    p.left_basis = floats(p.n_left);
    p.own = floats(p.n_left + p.n_right);
    p.lost = floats(p.n_ranks * p.n);
    p.sum = floats(p.n);
    int status = pool_create(&pool, 2, NULL, &err) < 0 ||
                 kernels_cpu_create(&p.kernels, pool, NULL, &err) < 0 || play(&p, &err) < 0;
    if (status)
        fprintf(stderr, "factors: %s\n", err.text);
    kernels_destroy(p.kernels);
    pool_destroy(pool);
    float *all[] = { p.right, p.right_basis, p.left, p.left_basis, p.own, p.lost, p.sum };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(p.parts);
    free(p.left_parts);
    free(p.right_parts);
    return status || fflush(stdout) != 0;
}
