/*
 * row_runs.c - products of runs of rows, which do not lie together
 *
 * An operand of n runs is an [n x run_rows k] matrix, whose rows lie `stride` apart, in place of
 * one of [n run_rows x k].
 */
#include "ops/family_impl.h"

static void put_in_rows(struct tensor *operands, const struct op_operand *infos, int n,
                        int64_t run_rows)
{
    for (int i = 0; i < n; i++) {
        struct tensor *t = &operands[i];

        if (infos[i].rows != DIM_T || !tensor_given(t))
            continue;
        t->rows *= run_rows;
        t->cols /= run_rows;
        t->stride = t->cols;
    }
}

struct op_shape op_in_rows(const struct op_shape *op)
{
    const struct op_info *info = op_info(op->kind);
    struct op_shape in_rows = *op;

    if (!op->attributes.run_rows)
        return in_rows;
    put_in_rows(in_rows.in, info->inputs, info->n_inputs, op->attributes.run_rows);
    put_in_rows(in_rows.out, info->outputs, info->n_outputs, op->attributes.run_rows);
    in_rows.attributes.run_rows = 0;
    return in_rows;
}

static int check_operands(const struct op_shape *op, const struct tensor *operands,
                          const struct op_operand *infos, int n, struct err *err)
{
    int64_t run_rows = op->attributes.run_rows;

    for (int i = 0; i < n; i++) {
        const struct tensor *t = &operands[i];

        if (infos[i].rows != DIM_T || !tensor_given(t))
            continue;
        if (t->cols % run_rows)
            return err_set(err, ERR_FAILED, "%s: %s has %lld columns, wanted a multiple of %lld",
                           op_name(op->kind), infos[i].name, (long long)t->cols,
                           (long long)run_rows);
        if ((t->data || t->stride) && t->rows > 1 && t->stride < t->cols)
            return err_set(
                err, ERR_FAILED, "%s: %s has a stride of %lld, wanted at least its %lld columns",
                op_name(op->kind), infos[i].name, (long long)t->stride, (long long)t->cols);
    }
    return 0;
}

int check_row_runs(const struct op_shape *op, struct err *err)
{
    const struct op_info *info = op_info(op->kind);
    int64_t run_rows = op->attributes.run_rows;

    if (!run_rows)
        return 0;
    if (run_rows < 0 || !(info->traits & TRAIT_ROW_RUNS))
        return err_set(err, ERR_FAILED, "%s: run_rows is %lld, wanted %s", info->name,
                       (long long)run_rows, run_rows < 0 ? "at least 0" : "0");
    if (check_operands(op, op->in, info->inputs, info->n_inputs, err))
        return -1;
    return check_operands(op, op->out, info->outputs, info->n_outputs, err);
}
