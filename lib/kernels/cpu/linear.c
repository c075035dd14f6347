/*
 * linear.c - linear, linear_dx, linear_dw: products by gemm.c, and the bias' gradient, which is
 * bias_grad too
 *
 * gemm.c divides the product into panels and tasks of the pool. Bound by FLOPs for T of a hundred
 * and more, by reading w below.
 *
 * db is the column sums of dy: each tile takes DB_COLS columns and adds their rows in order in
 * fp64, so that a sum over any number of tokens is exact to its one rounding to fp32.
 */
#include "base/num.h"
#include "kernels/cpu/linear_impl.h"
#include "kernels/cpu/vec_math.h"

#define DB_COLS 64

/* Of operands as they lie, in runs of rows or not. */
struct cpu_gemm_shape cpu_linear_shape(const struct op_shape *given)
{
    const struct op_shape in_rows = op_in_rows(given), *op = &in_rows;
    const struct tensor *a = &op->in[LINEAR_X], *b = &op->in[LINEAR_W], *c = &op->out[LINEAR_Y];
    bool is_dw = op->kind == OP_LINEAR_DW || op->kind == OP_LINEAR_DW_FP8;

    return (struct cpu_gemm_shape){
        .m = c->rows,
        .n = c->cols,
        .k = is_dw ? a->rows : a->cols,
        .in = a->dtype,
        .out = c->dtype,
        .a_transposed = is_dw,
        .b_transposed = op->kind == OP_LINEAR || op->kind == OP_LINEAR_FP8,
        .lda = a->stride,
        .ldb = b->stride,
        .ldc = c->stride,
        .run_rows = given->out[LINEAR_Y].rows > 1 ? given->attributes.run_rows : 0,
        .run_lda = given->in[LINEAR_X].stride,
        .run_ldc = given->out[LINEAR_Y].stride,
        .accumulate = is_dw
    };
}

static size_t linear_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    struct cpu_gemm_shape shape = cpu_linear_shape(op);

    return cpu_gemm_scratch_bytes(cpu_of(kernels), &shape);
}

static void linear_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    struct cpu_gemm_shape shape = cpu_linear_shape(op);
    struct cpu_gemm_operands operands = { .a = op->in[LINEAR_X].data,
                                          .b = op->in[LINEAR_W].data,
                                          .c = op->out[LINEAR_Y].data,
                                          .first = first };

    if (op->kind == OP_LINEAR)
        operands.bias = op->in[LINEAR_B].data;
    cpu_gemm_run(cpu_of(kernels), &shape, &operands, call->scratch);
}

/* ---- the bias' gradient ---- */

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
    else if (dtype == DTYPE_F16)
        for (int64_t i = 0; i < n; i++)
            sums[i] += (double)vec_from_fp16(((const uint16_t *)row)[i]);
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

void cpu_linear_db(struct kernels *kernels, const struct tensor *dy, const struct tensor *db,
                   int first)
{
    struct db_run run = { cpu_of(kernels), dy, db->data, first };

    pool_run(kernels->pool, ceil_div(dy->cols, DB_COLS), db_tile, &run);
}

static void linear_dw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;

    linear_run(kernels, call, first);
    if (tensor_given(&op->out[LINEAR_DW_DB]))
        cpu_linear_db(kernels, &op->in[LINEAR_DW_DY], &op->out[LINEAR_DW_DB], first);
}

static void bias_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    cpu_linear_db(kernels, &call->op.in[BIAS_GRAD_DY], &call->op.out[BIAS_GRAD_DB], first);
}

void cpu_register_linear(struct kernels_backend *table)
{
    struct kernel_entry entry = { .run = linear_run, .scratch_bytes = linear_scratch_bytes };

    table->entries[OP_LINEAR] = entry;
    table->entries[OP_LINEAR_DX] = entry;
    entry.run = linear_dw_run;
    table->entries[OP_LINEAR_DW] = entry;
    table->entries[OP_BIAS_GRAD] = (struct kernel_entry){ .run = bias_grad_run };
}
