/*
 * collective_experts.c - rows that go to the ranks that have their experts, and back
 */
#include "base/num.h"
#include "ops/exchange_impl.h"

double ops_chosen_share(int64_t n_experts, int64_t n_own, int64_t n_chosen)
{
    double none = 1;

    for (int64_t i = 0; i < n_chosen; i++)
        none *= (double)max_i64(0, n_experts - n_own - i) / (double)(n_experts - i);
    return 1 - none;
}

/* n: of the ranks. */
static int check_experts(const struct op_shape *op, int64_t n, int64_t n_chosen, struct err *err)
{
    int64_t m = op->attributes.n_experts;
    const char *name = op_name(op->kind);

    if (m < 1 || m % n)
        return err_set(err, ERR_FAILED, "%s: n_experts is %lld, wanted a multiple of %lld ranks",
                       name, (long long)m, (long long)n);
    if (op->attributes.first < 0 || op->attributes.first + op->attributes.experts > m / n)
        return err_set(err, ERR_FAILED, "%s: experts %lld to %lld, wanted of 0 to %lld", name,
                       (long long)op->attributes.first,
                       (long long)(op->attributes.first + op->attributes.experts),
                       (long long)(m / n));
    if (n_chosen > m)
        return err_set(err, ERR_FAILED, "%s: choices has %lld columns, wanted at most %lld", name,
                       (long long)n_chosen, (long long)m);
    return 0;
}

static int send_rows_check(const struct op_shape *op, struct err *err)
{
    const struct tensor *choices = &op->in[SEND_ROWS_CHOICES];

    return check_experts(op, choices->rows / op->in[SEND_ROWS_X].rows, choices->cols, err);
}

/* A row of each choice, and of the rank's experts no more than all ranks' tokens may choose. */
static int return_rows_check(const struct op_shape *op, struct err *err)
{
    const struct tensor *choices = &op->in[RETURN_ROWS_CHOICES], *x = &op->out[RETURN_ROWS_X];
    const struct tensor *y = &op->in[RETURN_ROWS_Y];
    int64_t n_chosen = choices->cols, n = tensor_elements(choices) / x->rows;
    const char *name = op_name(op->kind);

    if (x->rows % n_chosen || tensor_elements(choices) % x->rows)
        return err_set(err, ERR_FAILED, "%s: x has %lld rows, wanted a part of %lld by %lld", name,
                       (long long)x->rows, (long long)choices->rows, (long long)n_chosen);
    if (check_experts(op, n, n_chosen, err))
        return -1;
    int64_t most = choices->rows * min_i64(n_chosen, op->attributes.n_experts / n);
    if (y->rows > most)
        return err_set(err, ERR_FAILED, "%s: y has %lld rows, wanted at most %lld", name,
                       (long long)y->rows, (long long)most);
    return 0;
}

/* Choices are of all ranks of the axis; over others they lie as their tokens' rows, as places do
 * over all. */
static int rows_spread(const struct spread_query *q)
{
    enum spread x = q->in[OPS_FIRST];

    spread_give_all(q, x);
    if ((q->on_axis && spread_want(q, OPS_FIRST, SPREAD_ROWS)) ||
        spread_want(q, SEND_ROWS_PLACE, x == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME))
        return -1;
    return spread_want(q, SEND_ROWS_CHOICES,
                       x == SPREAD_ROWS && !q->on_axis ? SPREAD_ROWS : SPREAD_SAME);
}

static const struct op_info send_rows = {
    .name = "send_rows",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 3,
    .inputs = {
        [SEND_ROWS_X] = { "x", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [SEND_ROWS_CHOICES] = { "choices", DIM_SIZE_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [SEND_ROWS_PLACE] = { "place", DIM_T, DIM_S, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [SEND_ROWS_Y] = { "y", DIM_SIZE_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE | TRAIT_EXPERT_ROWS,
    .feature = FEATURE_EXPERTS,
    .check = send_rows_check,
    .spread = rows_spread,
};

_Static_assert((int)SEND_ROWS_CHOICES == (int)RETURN_ROWS_CHOICES &&
                   (int)SEND_ROWS_PLACE == (int)RETURN_ROWS_PLACE,
               "one rule");

static const struct op_info return_rows = {
    .name = "return_rows",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 3,
    .inputs = {
        [RETURN_ROWS_Y] = { "y", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [RETURN_ROWS_CHOICES] = { "choices", DIM_SIZE_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [RETURN_ROWS_PLACE] = { "place", DIM_SIZE_T, DIM_S, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [RETURN_ROWS_X] = { "x", DIM_TS, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE,
    .feature = FEATURE_EXPERTS,
    .check = return_rows_check,
    .spread = rows_spread,
};

const struct op_info *const collective_experts_ops[N_OP_KINDS] = {
    [OP_SEND_ROWS] = &send_rows,
    [OP_RETURN_ROWS] = &return_rows,
};
