/*
 * spread.c - how an op's outputs lie over one mesh axis, given how its inputs do
 *
 * A rule says what a kind can take and nothing else passes: a sum that is owed is never read as if
 * it had been added up. Most kinds share a form: their data operands lie alike (same, by rows, by
 * columns) and their parameters are the same everywhere; what they sum over rows is then owed where
 * rows are split. The others have a function in their row.
 */
#include <stdbool.h>
#include <string.h>

#include "ops/family_impl.h"

const char *spread_name(enum spread spread)
{
    static const char *const names[N_SPREADS] = { "same", "split(rows)", "split(cols)", "partial" };

    CHECK((unsigned)spread < N_SPREADS);
    return names[spread];
}

int spread_given(const struct spread_query *q, int input)
{
    return tensor_given(&q->op->in[input]);
}

int spread_refuse_text(const struct spread_query *q, int input, const char *wanted)
{
    return err_set(q->err, ERR_FAILED, "%s: %s is %s, wanted %s", q->info->name,
                   q->info->inputs[input].name, spread_name(q->in[input]), wanted);
}

int spread_refuse(const struct spread_query *q, int input, unsigned allowed)
{
    static const char *const texts[] = {
        "same",
        "same or split(rows)",
        "same or split(cols)",
        "same, split(rows) or split(cols)",
        "same or partial",
        "same, split(rows) or partial",
        "same, split(cols) or partial",
        "same, split(rows), split(cols) or partial",
    };

    return spread_refuse_text(q, input, texts[allowed]);
}

int spread_want(const struct spread_query *q, int input, enum spread spread)
{
    if (!spread_given(q, input) || q->in[input] == spread)
        return 0;
    return spread_refuse_text(q, input, spread_name(spread));
}

void spread_give_all(const struct spread_query *q, enum spread spread)
{
    for (int i = 0; i < q->info->n_outputs; i++)
        q->out[i] = spread;
}

/* Ends of experts' rows: of those that each rank has, where it has some. */
static bool is_of_experts(const struct op_operand *operand)
{
    return operand->rows == DIM_ONE && operand->cols == DIM_M && operand->type == TYPE_I32;
}

int spread_alike(const struct spread_query *q, unsigned data, unsigned rowwise, unsigned allowed)
{
    static const unsigned bit[N_SPREADS] = { 0, MAY_ROWS, MAY_COLS, MAY_PARTIAL };
    int lead = __builtin_ctz(data);
    enum spread spread = q->in[lead];
    enum spread of_rows = spread == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME;

    if (spread != SPREAD_SAME && !(allowed & bit[spread]))
        return spread_refuse(q, lead, allowed);
    for (int i = 0; i < q->info->n_inputs; i++) {
        enum spread wanted = data >> i & 1 ? spread : rowwise >> i & 1 ? of_rows : SPREAD_SAME;

        if (spread == SPREAD_ROWS && is_of_experts(&q->info->inputs[i]))
            wanted = q->in[i] == SPREAD_COLS ? SPREAD_COLS : SPREAD_ROWS;
        if (spread_want(q, i, wanted))
            return -1;
    }
    for (int i = 0; i < q->info->n_outputs; i++) {
        int summed = q->info->outputs[i].flags & OPERAND_ACCUMULATED && spread == SPREAD_ROWS;

        q->out[i] = summed ? SPREAD_PARTIAL : spread;
    }
    return 0;
}

/* As what is rounded; a row's largest element is that of the rank's part of the row. */
static void spread_codes(const struct spread_query *q)
{
    int codes = q->info->codes_output - 1;
    enum spread rounded = q->out[ops_rounded_output(q->op)];
    bool has_parts = rounded != SPREAD_SAME && !tensor_given(&q->op->out[codes]);

    q->out[codes] = rounded;
    q->out[codes + 1] = has_parts ? SPREAD_ROWS : rounded;
}

int op_spread(const struct op_shape *op, int on_axis, const enum spread *in, enum spread *out,
              struct err *err)
{
    const struct op_info *info = op_info(op->kind);
    const struct spread_form *form = &info->spread_form;
    enum spread result[OPS_MAX_OUTPUTS] = { SPREAD_SAME };
    struct spread_query q = {
        .op = op, .info = info, .on_axis = on_axis, .in = in, .out = result, .err = err
    };

    CHECK(info->spread || form->data);
    if (info->spread) {
        if (info->spread(&q))
            return -1;
    } else if (spread_alike(&q, form->data, form->rowwise, form->allowed)) {
        return -1;
    }
    if (info->codes_output)
        spread_codes(&q);
    memcpy(out, result, (size_t)info->n_outputs * sizeof *out);
    return 0;
}
