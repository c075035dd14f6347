/*
 * experts_fp8.c - expert_linear_fp8, expert_linear_dx_fp8, expert_linear_dw_fp8: of each expert the
 * product of linear_fp8.c, of its rows and its part of w
 *
 * So blocks along tokens begin with an expert's rows, and blocks of w with its part; a scale of all
 * is of these alone. Scratch is of as many rows as there may be.
 */
#include "kernels/cpu/experts_impl.h"
#include "kernels/cpu/linear_impl.h"

static struct tensor rows_of(const struct tensor *t, int64_t first, int64_t n)
{
    struct tensor rows = *t;

    rows.data = cpu_row(t, first);
    rows.rows = n;
    return rows;
}

/* The product of the expert's rows. */
static struct op_shape product_of(const struct op_shape *op, const struct cpu_expert *e)
{
    struct cpu_expert_operands p = cpu_expert_operands(op);
    const struct tensor *most = &op->in[EXPERT_LINEAR_FP8_W_MOST];
    int64_t n = cpu_rows_an_expert(op), first_row = e->number * n, n_rows = e->end - e->begin;
    struct op_shape one = { .kind = p.is_dw                            ? OP_LINEAR_DW_FP8
                                    : op->kind == OP_EXPERT_LINEAR_FP8 ? OP_LINEAR_FP8
                                                                       : OP_LINEAR_DX_FP8,
                            .attributes = op->attributes };

    one.in[LINEAR_X] = rows_of(p.rows, e->begin, n_rows);
    one.in[LINEAR_W] =
        p.is_dw ? rows_of(p.other, e->begin, n_rows) : rows_of(p.other, first_row, n);
    one.out[LINEAR_Y] = p.is_dw ? rows_of(p.out, first_row, n) : rows_of(p.out, e->begin, n_rows);
    if (!p.is_dw && tensor_given(most)) {
        struct tensor *part = &one.in[ops_fp8_most(one.kind, LINEAR_W)];

        *part = *most;
        part->cols = op->attributes.fp8 == FP8_TENSOR ? 1 : ops_fp8_blocks(n, p.other->cols);
        part->data = (float *)most->data + e->number * part->cols;
    }
    return one;
}

static size_t experts_fp8_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    struct op_shape one = product_of(op, &(struct cpu_expert){ 0, 0, op->in[OPS_FIRST].rows });

    return cpu_linear_fp8_scratch_most(kernels, &one);
}

static void run_expert(struct kernels *kernels, const struct kernel_call *call,
                       const struct cpu_expert *e, int first)
{
    struct op_shape one = product_of(&call->op, e);

    cpu_linear_fp8(kernels, &one, call->scratch, first);
}

static void experts_fp8_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    cpu_run_experts(kernels, call, first, run_expert);
}

void cpu_register_experts_fp8(struct kernels_backend *table)
{
    struct kernel_entry entry = { .run = experts_fp8_run,
                                  .scratch_bytes = experts_fp8_scratch_bytes };

    table->entries[OP_EXPERT_LINEAR_FP8] = entry;
    table->entries[OP_EXPERT_LINEAR_DX_FP8] = entry;
    table->entries[OP_EXPERT_LINEAR_DW_FP8] = entry;
}
