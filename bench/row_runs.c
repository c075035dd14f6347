/*
 * row_runs.c - what a product costs whose rows lie in runs (ops.h, run_rows), beside products of
 * one run each, and one of rows that lie together
 *
 * `build/bench/row_runs [ROWS]`: of ROWS (512) rows in all, in 2, 4 and 8 runs that lie four times
 * as far apart as they are long, on one thread, as a rank has them of a slice (program/slice.c).
 * All ways take turns; a row has the lower quartile of 31 turns' processor time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "kernels/kernels.h"

enum { N_TURNS = 31, N_CUTS = 4, APART = 4, N_WAYS = 2 * N_CUTS };

static const int n_runs[N_CUTS] = { 1, 2, 4, 8 };

/* Way i < N_CUTS: a product for each run; else one of all of them. */
struct way {
    struct kernel_call call;
    int n_times;
    size_t in_step, out_step; /* bytes from a run to the next */
    double seconds[N_TURNS];
};

static void *memory_for(int64_t n_elements, enum dtype dtype)
{
    size_t n_bytes = align_up((size_t)n_elements * dtype_bytes(dtype), 64);
    void *memory = aligned_alloc(64, n_bytes);

    CHECK(memory);
    memset(memory, 0x3c, n_bytes);
    return memory;
}

static struct tensor runs_of(void *data, int64_t n, int64_t rows, int64_t cols, enum dtype dtype)
{
    return n > 1 ? (struct tensor){ data, n, rows * cols, APART * rows * cols, dtype }
                 : (struct tensor){ data, rows, cols, cols, dtype };
}

static void prepare(struct way *way, struct kernels *kernels, int i, int64_t all_rows)
{
    struct op_shape *op = &way->call.op;
    struct tensor *w = &op->in[LINEAR_W];
    int n = n_runs[i % N_CUTS], n_joined = i < N_CUTS ? 1 : n;
    int64_t rows = all_rows / n, in = op->kind == OP_LINEAR ? w->cols : w->rows;
    int64_t out = op->kind == OP_LINEAR ? w->rows : w->cols;
    struct err err;

    op->attributes.run_rows = n_joined > 1 ? rows : 0;
    op->in[LINEAR_X] = runs_of(op->in[LINEAR_X].data, n_joined, rows, in, w->dtype);
    op->out[LINEAR_Y] = runs_of(op->out[LINEAR_Y].data, n_joined, rows, out, w->dtype);
    way->n_times = n / n_joined;
    way->in_step = (size_t)(APART * rows * in) * dtype_bytes(w->dtype);
    way->out_step = (size_t)(APART * rows * out) * dtype_bytes(w->dtype);
    way->call.scratch = memory_for((int64_t)kernels_scratch_bytes(kernels, op), DTYPE_U8);
    if (kernels_prepare(kernels, &way->call, &err) < 0) {
        fprintf(stderr, "row_runs: %s\n", err.text);
        exit(1);
    }
}

static double seconds_of(const struct way *way, struct kernels *kernels)
{
    struct kernel_call call = way->call;
    double begin = pool_cpu_seconds(kernels->pool);

    for (int i = 0; i < way->n_times; i++) {
        kernels_run(kernels, &call, KERNELS_FIRST);
        call.op.in[LINEAR_X].data = (char *)call.op.in[LINEAR_X].data + way->in_step;
        call.op.out[LINEAR_Y].data = (char *)call.op.out[LINEAR_Y].data + way->out_step;
    }
    return pool_cpu_seconds(kernels->pool) - begin;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(struct kernels *kernels, const struct op_shape *op, int64_t rows)
{
    static struct way ways[N_WAYS];
    const struct tensor *w = &op->in[LINEAR_W];

    for (int i = 0; i < N_WAYS; i++) {
        ways[i] = (struct way){ .call = { .op = *op } };
        prepare(&ways[i], kernels, i, rows);
    }
    for (int turn = 0; turn < N_TURNS; turn++)
        for (int i = 0; i < N_WAYS; i++)
            ways[i].seconds[turn] = seconds_of(&ways[i], kernels);
    for (int i = 0; i < N_WAYS; i++) {
        qsort(ways[i].seconds, N_TURNS, sizeof(double), compare);
        free(ways[i].call.scratch);
    }
    double together = ways[0].seconds[N_TURNS / 4];
    printf("| %s %s | %lld x %lld | %.2f |", op_name(op->kind), dtype_name(w->dtype),
           (long long)w->rows, (long long)w->cols, 1e3 * together);
    for (int i = 1; i < N_CUTS; i++)
        printf(" %.2f | %.2f |", ways[i].seconds[N_TURNS / 4] / together,
               ways[N_CUTS + i].seconds[N_TURNS / 4] / together);
    printf("\n");
}

int main(int argc, char **argv)
{
    static const int64_t weights[][2] = {
        { 1024, 1024 }, { 4096, 1024 }, { 2048, 2048 }, { 1024, 4096 }
    };
    int64_t rows = argc > 1 ? strtoll(argv[1], NULL, 10) : 512;
    struct kernels *kernels;
    struct pool *pool;
    struct err err;

    if (rows < 8 || rows % 8) {
        fprintf(stderr, "row_runs: %s rows, wanted a multiple of 8\n", argv[1]);
        return 2;
    }
    CHECK(pool_create(&pool, 1, NULL, &err) == 0);
    CHECK(kernels_cpu_create(&kernels, pool, NULL, &err) == 0);
    printf(
        "| op | weight | together, ms | 2 products | 2 runs | 4 products | 4 runs | 8 products | "
        "8 runs |\n|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < 16; i++) {
        enum dtype dtype = i < 8 ? DTYPE_BF16 : DTYPE_F32;
        const int64_t *shape = weights[i % 4];
        int64_t widest = max_i64(shape[0], shape[1]);
        struct op_shape op = { .kind = i / 4 % 2 ? OP_LINEAR_DX : OP_LINEAR };

        op.in[LINEAR_X].data = memory_for(APART * rows * widest, dtype);
        op.out[LINEAR_Y].data = memory_for(APART * rows * widest, dtype);
        op.in[LINEAR_W] = (struct tensor){ memory_for(shape[0] * shape[1], dtype), shape[0],
                                           shape[1], shape[1], dtype };
        measure(kernels, &op, rows);
        free(op.in[LINEAR_X].data);
        free(op.out[LINEAR_Y].data);
        free(op.in[LINEAR_W].data);
    }
    kernels_destroy(kernels);
    pool_destroy(pool);
    return 0;
}
