/*
 * fp8.c - what test/oracle/fp8.py holds against PyTorch: products of e4m3 by their kernels
 *
 *     fp8 KIND RECIPE T K N
 *
 * KIND is linear, dx or dw, RECIPE blockwise, tensor, or e5m2: tensor with dy of e5m2. Standard
 * input: the op's two inputs, of bf16, x [T x K] and w [N x K], dy [T x N] and w, or dy and x.
 * Standard output: what it writes, of bf16, dw of fp32.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/pool.h"
#include "kernels/kernels.h"

static struct tensor make(int64_t rows, int64_t cols, enum dtype dtype)
{
    void *data = calloc((size_t)(rows * cols), dtype_bytes(dtype));

    CHECK(data);
    return (
        struct tensor){ .data = data, .rows = rows, .cols = cols, .stride = cols, .dtype = dtype };
}

static size_t bytes_of(const struct tensor *t)
{
    return (size_t)tensor_elements(t) * dtype_bytes(t->dtype);
}

static int parse(struct op_shape *op, char **argv)
{
    static const struct {
        const char *name;
        enum op_kind kind;
    } kinds[] = { { "linear", OP_LINEAR_FP8 },
                  { "dx", OP_LINEAR_DX_FP8 },
                  { "dw", OP_LINEAR_DW_FP8 } };
    int64_t t = strtol(argv[3], NULL, 10), k = strtol(argv[4], NULL, 10);
    int64_t n = strtol(argv[5], NULL, 10);
    int i = 0;

    while (i < 3 && strcmp(argv[1], kinds[i].name) != 0)
        i++;
    if (i == 3 || t < 1 || k < 1 || n < 1)
        return -1;
    *op = (struct op_shape){ .kind = kinds[i].kind };
    op->attributes.fp8 = strcmp(argv[2], "blockwise") ? FP8_TENSOR : FP8_BLOCKWISE;
    op->attributes.e5m2_dy = !strcmp(argv[2], "e5m2");
    op->in[0] = make(t, i == 0 ? k : n, DTYPE_BF16);
    op->in[1] = make(i == 2 ? t : n, k, DTYPE_BF16);
    op->out[0] = i == 2   ? make(n, k, DTYPE_F32)
                 : i == 1 ? make(t, k, DTYPE_BF16)
                          : make(t, n, DTYPE_BF16);
    return 0;
}

static int run(const struct op_shape *op, struct err *err)
{
    struct kernel_call call = { .op = *op };
    struct kernels *kernels = NULL;
    struct pool *pool = NULL;
    int status = pool_create(&pool, 2, NULL, err) < 0 ||
                 kernels_cpu_create(&kernels, pool, NULL, err) < 0 ||
                 kernels_prepare(kernels, &call, err) < 0;

    if (!status) {
        call.scratch = aligned_alloc(64, (kernels_scratch_bytes(kernels, op) + 64) / 64 * 64);
        CHECK(call.scratch);
        kernels_run(kernels, &call, KERNELS_FIRST);
        free(call.scratch);
        kernels_release(kernels, &call);
    }
    kernels_destroy(kernels);
    pool_destroy(pool);
    return status ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct err err = { 0 };
    struct op_shape op;

    if (argc != 6 || parse(&op, argv) < 0) {
        fprintf(stderr, "usage: fp8 linear|dx|dw blockwise|tensor|e5m2 T K N\n");
        return 2;
    }
    for (int i = 0; i < 2; i++)
        if (fread(op.in[i].data, 1, bytes_of(&op.in[i]), stdin) != bytes_of(&op.in[i]))
            return 2;
    if (run(&op, &err) < 0) {
        fprintf(stderr, "fp8: %s\n", err.text);
        return 1;
    }
    fwrite(op.out[0].data, 1, bytes_of(&op.out[0]), stdout);
    free(op.in[0].data);
    free(op.in[1].data);
    free(op.out[0].data);
    return 0;
}
