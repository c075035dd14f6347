/*
 * expert_linear.c - expert_linear, expert_linear_dx, expert_linear_dw: a product for each expert
 *
 * Rows come sorted by expert, so each expert's are a rectangle, and its product is gemm.c's, which
 * shares the tiles of one among all threads. How many rows it has is known at run time only:
 * scratch is of as many as all of them; rows may be left over. An expert without rows costs
 * nothing, but where its gradient starts over.
 *
 * Bound by the multipliers where experts have a hundred rows and more each, by reading w below.
 */
#include <string.h>

#include "base/num.h"
#include "kernels/cpu/experts_impl.h"
#include "kernels/cpu/gemm_impl.h"

struct cpu_expert_operands cpu_expert_operands(const struct op_shape *op)
{
    bool is_dw = op->kind == OP_EXPERT_LINEAR_DW || op->kind == OP_EXPERT_LINEAR_DW_FP8;

    return (struct cpu_expert_operands){
        .rows = &op->in[EXPERT_LINEAR_X],
        .ends = &op->in[is_dw ? EXPERT_LINEAR_DW_ENDS : EXPERT_LINEAR_ENDS],
        .other = &op->in[is_dw ? EXPERT_LINEAR_DW_X : EXPERT_LINEAR_W],
        .out = &op->out[EXPERT_LINEAR_Y],
        .is_dw = is_dw
    };
}

/* The product of an expert with so many rows. */
static struct cpu_gemm_shape product_shape(const struct op_shape *op, int64_t n_rows)
{
    struct cpu_expert_operands p = cpu_expert_operands(op);

    return (struct cpu_gemm_shape){ .m = p.is_dw ? p.rows->cols : n_rows,
                                    .n = p.out->cols,
                                    .k = p.is_dw ? n_rows : p.rows->cols,
                                    .in = p.rows->dtype,
                                    .out = p.out->dtype,
                                    .a_transposed = p.is_dw,
                                    .b_transposed = op->kind == OP_EXPERT_LINEAR,
                                    .lda = p.rows->stride,
                                    .ldb = p.other->stride,
                                    .ldc = p.out->stride,
                                    .accumulate = p.is_dw };
}

static size_t expert_linear_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    struct cpu_gemm_shape shape = product_shape(op, op->in[EXPERT_LINEAR_X].rows);

    return cpu_gemm_scratch_most(cpu_of(kernels), &shape);
}

/* ---- a gradient of nothing ---- */

#define ZEROS_A_TILE 64 /* rows */

static void zero_tile(void *context, int64_t tile, int thread)
{
    const struct tensor *t = context;

    (void)thread;
    for (int64_t row = tile * ZEROS_A_TILE; row < min_i64((tile + 1) * ZEROS_A_TILE, t->rows);
         row++)
        memset(cpu_row(t, row), 0, (size_t)t->cols * dtype_bytes(t->dtype));
}

static void zero_rows(struct kernels *kernels, const struct tensor *dw, int64_t row, int64_t n_rows)
{
    struct tensor rows = *dw;

    rows.data = cpu_row(dw, row);
    rows.rows = n_rows;
    pool_run(kernels->pool, ceil_div(n_rows, ZEROS_A_TILE), zero_tile, &rows);
}

/* ---- all of them ---- */

int64_t cpu_rows_an_expert(const struct op_shape *op)
{
    struct cpu_expert_operands p = cpu_expert_operands(op);

    return p.is_dw ? p.rows->cols : p.other->rows / p.ends->cols;
}

static void run_expert(struct kernels *kernels, const struct kernel_call *call,
                       const struct cpu_expert *e, int first)
{
    const struct op_shape *op = &call->op;
    struct cpu_expert_operands p = cpu_expert_operands(op);
    int64_t first_row = e->number * cpu_rows_an_expert(op);
    struct cpu_gemm_shape shape = product_shape(op, e->end - e->begin);
    struct cpu_gemm_operands operands = { .a = cpu_row(p.rows, e->begin), .first = first };

    operands.b = cpu_row(p.other, p.is_dw ? e->begin : first_row);
    operands.c = cpu_row(p.out, p.is_dw ? first_row : e->begin);
    cpu_gemm_run(cpu_of(kernels), &shape, &operands, call->scratch);
}

/* Whether it is one of those that the op is about. */
static bool is_meant(const struct op_attributes *a, int64_t expert)
{
    return !a->experts || (expert >= a->first && expert < a->first + a->experts);
}

void cpu_run_experts(struct kernels *kernels, const struct kernel_call *call, int first,
                     cpu_expert_fn run)
{
    struct cpu_expert_operands p = cpu_expert_operands(&call->op);
    const int32_t *ends = p.ends->data;
    int64_t begin = 0, n = cpu_rows_an_expert(&call->op);

    for (int64_t expert = 0; expert < p.ends->cols; expert++) {
        int64_t end = ends[expert];

        CHECK(begin <= end && end <= p.rows->rows);
        if (!is_meant(&call->op.attributes, expert))
            ;
        else if (begin < end)
            run(kernels, call, &(struct cpu_expert){ expert, begin, end }, first);
        else if (p.is_dw && first)
            zero_rows(kernels, p.out, expert * n, n);
        begin = end;
    }
}

static void expert_linear_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    cpu_run_experts(kernels, call, first, run_expert);
}

void cpu_register_expert_linear(struct kernels_backend *table)
{
    struct kernel_entry entry = { .run = expert_linear_run,
                                  .scratch_bytes = expert_linear_scratch_bytes };

    table->entries[OP_EXPERT_LINEAR] = entry;
    table->entries[OP_EXPERT_LINEAR_DX] = entry;
    table->entries[OP_EXPERT_LINEAR_DW] = entry;
}
