/*
 * linear.c - linear, linear_dx, linear_dw: products by gemm.c, and the bias' gradient
 *
 * Bound by the multipliers for T of a hundred and more, by reading w below. Where the CPU
 * does not multiply bf16, both operands are widened as a whole into scratch first: that costs one
 * pass over each, against T passes' worth of arithmetic.
 *
 * db is the column sums of dy: each tile takes DB_COLS columns and adds their rows in order in
 * fp64, so that a sum over any number of tokens is exact to its one rounding to fp32.
 */
#include <stdlib.h>

#include "base/num.h"
#include "kernels/cpu/gemm_impl.h"
#include "kernels/cpu/vec_math.h"

#define DB_COLS 64

/* The product behind an op: which operands are a, b, c, and how they lie. */
struct product {
    const struct tensor *a, *b, *bias, *c;
    struct cpu_gemm_shape shape;
    int widen;
    size_t widened_a_bytes, widened_b_bytes; /* 0 unless widen */
};

static void find_product(const struct cpu_kernels *cpu, const struct op_shape *op,
                         struct product *p)
{
    *p = (struct product){ .a = &op->in[0], .b = &op->in[1], .c = &op->out[0] };
    p->shape = (struct cpu_gemm_shape){
        .m = p->c->rows,
        .n = p->c->cols,
        .in = p->a->dtype,
        .out = p->c->dtype,
        .lda = p->a->stride,
        .ldb = p->b->stride,
        .ldc = p->c->stride,
    };
    switch (op->kind) {
    case OP_LINEAR:
        p->shape.k = p->a->cols;
        p->shape.b_transposed = 1;
        p->bias = tensor_given(&op->in[2]) ? &op->in[2] : NULL;
        p->shape.bias = p->bias != NULL;
        break;
    case OP_LINEAR_DX:
        p->shape.k = p->a->cols;
        break;
    default:
        p->shape.k = p->a->rows;
        p->shape.a_transposed = 1;
        p->shape.accumulate = 1;
    }
    p->widen = cpu_must_widen(cpu, p->shape.in);
    if (p->widen) {
        p->widened_a_bytes = cpu_widen_bytes(p->a);
        p->widened_b_bytes = cpu_widen_bytes(p->b);
        p->shape.in = DTYPE_F32;
        p->shape.lda = p->a->cols;
        p->shape.ldb = p->b->cols;
    }
}

static size_t linear_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    struct product p;

    find_product(cpu_of(kernels), op, &p);
    return p.widened_a_bytes + p.widened_b_bytes +
           cpu_gemm_scratch_bytes(cpu_of(kernels), &p.shape);
}

static int linear_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    struct cpu_gemm *gemm;
    struct product p;

    find_product(cpu_of(kernels), &call->op, &p);
    if (cpu_gemm_create(&gemm, cpu_of(kernels), &p.shape, err))
        return err_add(err, "%s", op_info(call->op.kind)->name);
    call->state = gemm;
    return 0;
}

static void linear_release(struct kernels *kernels, void *state)
{
    (void)kernels;
    cpu_gemm_destroy(state);
}

static void linear_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct cpu_kernels *cpu = cpu_of(kernels);
    struct cpu_gemm_operands operands;
    char *scratch = call->scratch;
    struct product p;

    find_product(cpu, &call->op, &p);
    operands = (struct cpu_gemm_operands){
        .a = p.a->data,
        .b = p.b->data,
        .bias = p.bias ? p.bias->data : NULL,
        .c = p.c->data,
        .first = first,
    };
    if (p.widen) {
        operands.a = scratch;
        operands.b = scratch + p.widened_a_bytes;
        cpu_widen(cpu, p.a, (float *)scratch);
        cpu_widen(cpu, p.b, (float *)(scratch + p.widened_a_bytes));
        scratch += p.widened_a_bytes + p.widened_b_bytes;
    }
    cpu_gemm_run(call->state, &operands, scratch);
}

/* ---- the bias' gradient -------------------------------------------------------------------- */

struct db_run {
    const struct cpu_kernels *cpu;
    const struct tensor *dy;
    float *db;
    int first;
};

CPU_INLINE void add_columns_body(double *sums, const void *row, enum dtype dtype, int64_t n)
{
    if (dtype == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            sums[i] += (double)vec_from_bf16(((const uint16_t *)row)[i]);
    else
        for (int64_t i = 0; i < n; i++)
            sums[i] += (double)((const float *)row)[i];
}

CPU_VARIANTS(add_columns, (double *sums, const void *row, enum dtype dtype, int64_t n),
             (sums, row, dtype, n));

static void db_tile(void *context, int64_t tile, int thread)
{
    const struct db_run *run = context;
    const struct tensor *dy = run->dy;
    int64_t col = tile * DB_COLS;
    int64_t n = min_i64(DB_COLS, dy->cols - col);
    double sums[DB_COLS] = { 0 };

    (void)thread;
    for (int64_t row = 0; row < dy->rows; row++)
        add_columns[run->cpu->isa](
            sums, (const char *)cpu_row(dy, row) + (size_t)col * dtype_bytes(dy->dtype), dy->dtype,
            n);
    for (int64_t i = 0; i < n; i++)
        run->db[col + i] = (run->first ? 0.0f : run->db[col + i]) + (float)sums[i];
}

static void linear_dw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct db_run run = { cpu_of(kernels), &call->op.in[0], call->op.out[1].data, first };

    linear_run(kernels, call, first);
    if (tensor_given(&call->op.out[1]))
        pool_run(kernels->pool, ceil_div(run.dy->cols, DB_COLS), db_tile, &run);
}

void cpu_register_linear(struct kernels_backend *table, const struct cpu_kernels *cpu)
{
    struct kernel_entry entry = { .run = linear_run,
                                  .scratch_bytes = linear_scratch_bytes,
                                  .prepare = linear_prepare,
                                  .release = linear_release };

    (void)cpu;
    table->entries[OP_LINEAR] = entry;
    table->entries[OP_LINEAR_DX] = entry;
    entry.run = linear_dw_run;
    table->entries[OP_LINEAR_DW] = entry;
}
