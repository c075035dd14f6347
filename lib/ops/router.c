/*
 * router.c - the router of a mixture of experts, the bias that balances it, the gate of what all
 * tokens go to
 */
#include "ops/family_impl.h"

static int check_slots(const struct op_shape *op, int64_t n_slots, int64_t n_experts,
                       struct err *err)
{
    if (n_slots > n_experts)
        return err_set(err, ERR_FAILED, "%s: weight has %lld columns, wanted at most %lld",
                       op_name(op->kind), (long long)n_slots, (long long)n_experts);
    return 0;
}

/* Of both kinds: what weights are multiplied by, and the length of sequences. */
static int check_attributes(const struct op_shape *op, int64_t n_tokens, struct err *err)
{
    const struct op_attributes *a = &op->attributes;

    if (!(a->scale > 0))
        return err_set(err, ERR_FAILED, "%s: scale is %g, wanted more than 0", op_name(op->kind),
                       a->scale);
    if (a->by_sequence && (a->seq_len < 1 || n_tokens % a->seq_len != 0))
        return err_set(err, ERR_FAILED, "%s: seq_len is %d, wanted a divisor of %lld rows",
                       op_name(op->kind), a->seq_len, (long long)n_tokens);
    return 0;
}

static int router_check(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    const struct tensor *logits = &op->in[ROUTER_LOGITS];
    int64_t n = op->out[ROUTER_WEIGHT].cols, groups = ops_router_groups(a);

    if (check_slots(op, n, logits->cols, err) || check_attributes(op, logits->rows, err))
        return -1;
    if (groups > OPS_ROUTER_GROUPS_MAX || logits->cols % groups != 0)
        return err_set(err, ERR_FAILED,
                       "router: groups is %lld, wanted a divisor of %lld, at most %d",
                       (long long)groups, (long long)logits->cols, OPS_ROUTER_GROUPS_MAX);
    if (groups > 1 && (a->groups_kept < 1 || a->groups_kept > groups ||
                       n > a->groups_kept * (logits->cols / groups)))
        return err_set(err, ERR_FAILED,
                       "router: groups_kept is %d of %lld groups of %lld, wanted those with %lld",
                       a->groups_kept, (long long)groups, (long long)(logits->cols / groups),
                       (long long)n);
    return 0;
}

/* The choices whose shares the balance is of: all layers', or those of all parts of sequences; by
 * itself the gradient needs no operand. */
static int balanced_choices(struct backward *b, const struct op_node *op)
{
    int expert = op->out[ROUTER_EXPERT], base = b->base(b, expert);
    int all = b->all_parts(b, base ? base : expert);

    return all != expert ? all : 0;
}

/* Where the layer's choices are a part of all layers', the balance is of all; where there are
 * counts, of those of all ranks. */
static void router_backward(struct backward *b, const struct op_node *op)
{
    const struct op_attributes *a = &op->attributes;
    int dweight = b->take_gradient(b, op->out[ROUTER_WEIGHT]), logits = op->in[ROUTER_LOGITS];
    int dlogits = b->new_like(b, logits, DTYPE_F32), counts = op->out[ROUTER_COUNTS];
    int balances = a->balance > 0, has_losses = balances || a->z > 0;
    int reads_logits = !a->normalize || a->score != ROUTER_SOFTMAX || has_losses;
    int choices = balances && !counts ? balanced_choices(b, op) : 0;

    b->emit(b, &(struct op_node){
                   .kind = OP_ROUTER_GRAD,
                   .attributes = op->attributes,
                   .in = { [ROUTER_GRAD_DWEIGHT] = dweight,
                           [ROUTER_GRAD_WEIGHT] = op->out[ROUTER_WEIGHT],
                           [ROUTER_GRAD_EXPERT] = op->out[ROUTER_EXPERT],
                           [ROUTER_GRAD_LOGITS] = reads_logits ? logits : 0,
                           [ROUTER_GRAD_SCALE] = has_losses ? b->gradient_scale : 0,
                           [ROUTER_GRAD_CHOICES] = choices,
                           [ROUTER_GRAD_COUNTS] = counts && balances ? b->sum(b, counts) : 0 },
                   .out = { [ROUTER_GRAD_DLOGITS] = dlogits } });
    b->add_gradient(b, logits, dlogits);
}

/* counts are sums over rows, as the statistics are. */
static int router_spread(const struct spread_query *q)
{
    if (spread_alike(q, IN(ROUTER_LOGITS), 0, MAY_ROWS))
        return -1;
    if (q->in[ROUTER_LOGITS] == SPREAD_ROWS)
        q->out[ROUTER_COUNTS] = SPREAD_PARTIAL;
    return 0;
}

static const struct op_info router = {
    .name = "router",
    .n_inputs = 2,
    .inputs = {
        [ROUTER_LOGITS] = { "logits", DIM_T, DIM_M, TYPE_F32, OPERAND_PLAIN },
        [ROUTER_BIAS] = { "bias", DIM_ONE, DIM_M, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 4,
    .outputs = {
        [ROUTER_WEIGHT] = { "weight", DIM_T, DIM_S, TYPE_F32, OPERAND_PLAIN },
        [ROUTER_EXPERT] = { "expert", DIM_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [ROUTER_STATS] = { "stats", DIM_ONE, DIM_1M, TYPE_F64,
                           OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
        [ROUTER_COUNTS] = { "counts", DIM_ONE, DIM_M, TYPE_F64, OPERAND_OPTIONAL },
    },
    .feature = FEATURE_EXPERTS,
    .check = router_check,
    .spread = router_spread,
    .flops_per_element = 6,
    .backward = router_backward,
};

static int router_grad_check(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    const struct tensor *dlogits = &op->out[ROUTER_GRAD_DLOGITS];
    const char *name = op_name(op->kind);

    if (check_slots(op, op->in[ROUTER_GRAD_DWEIGHT].cols, dlogits->cols, err) ||
        check_attributes(op, dlogits->rows, err))
        return -1;
    if (!(a->balance >= 0) || !(a->z >= 0))
        return err_set(err, ERR_FAILED, "%s: balance is %g, z %g, wanted at least 0", name,
                       a->balance, a->z);
    if ((!a->normalize || a->score != ROUTER_SOFTMAX || a->balance > 0 || a->z > 0) &&
        !tensor_given(&op->in[ROUTER_GRAD_LOGITS]))
        return err_set(err, ERR_FAILED,
                       "%s: logits is missing, wanted where weights are not normalized, scores "
                       "are sigmoid, balance is %g or z is %g",
                       name, a->balance, a->z);
    return 0;
}

static double router_grad_flops(const struct op_shape *op)
{
    return 4 * (double)tensor_elements(&op->out[ROUTER_GRAD_DLOGITS]);
}

/* choices may be those of all ranks. */
static int router_grad_spread(const struct spread_query *q)
{
    unsigned data = IN(ROUTER_GRAD_DWEIGHT) | IN(ROUTER_GRAD_WEIGHT) | IN(ROUTER_GRAD_EXPERT) |
                    IN(ROUTER_GRAD_LOGITS);

    if (spread_given(q, ROUTER_GRAD_CHOICES) && q->in[ROUTER_GRAD_CHOICES] == SPREAD_ROWS)
        data |= IN(ROUTER_GRAD_CHOICES);
    return spread_alike(q, data, 0, MAY_ROWS);
}

static const struct op_info router_grad = {
    .name = "router_grad",
    .n_inputs = 7,
    .inputs = {
        [ROUTER_GRAD_DWEIGHT] = { "dweight", DIM_T, DIM_S, TYPE_F32, OPERAND_PLAIN },
        [ROUTER_GRAD_WEIGHT] = { "weight", DIM_T, DIM_S, TYPE_F32, OPERAND_PLAIN },
        [ROUTER_GRAD_EXPERT] = { "expert", DIM_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [ROUTER_GRAD_LOGITS] = { "logits", DIM_T, DIM_M, TYPE_F32, OPERAND_OPTIONAL },
        [ROUTER_GRAD_SCALE] = { "scale", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_OPTIONAL },
        [ROUTER_GRAD_CHOICES] = { "choices", DIM_SIZE_T, DIM_S, TYPE_I32, OPERAND_OPTIONAL },
        [ROUTER_GRAD_COUNTS] = { "counts", DIM_ONE, DIM_M, TYPE_F64, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [ROUTER_GRAD_DLOGITS] = { "dlogits", DIM_T, DIM_M, TYPE_F32, OPERAND_PLAIN },
    },
    .check = router_grad_check,
    .spread = router_grad_spread,
    .flops = router_grad_flops,
};

static int limit_choices_check(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;

    if (a->capacity < 1 || a->n_experts < op->in[LIMIT_CHOICES_EXPERT].cols)
        return err_set(err, ERR_FAILED,
                       "limit_choices: capacity is %lld, n_experts %d, wanted at least 1, %lld",
                       (long long)a->capacity, a->n_experts,
                       (long long)op->in[LIMIT_CHOICES_EXPERT].cols);
    return 0;
}

/* Each rank has a capacity for its own tokens. */
static const struct op_info limit_choices = {
    .name = "limit_choices",
    .n_inputs = 2,
    .inputs = {
        [LIMIT_CHOICES_EXPERT] = { "expert", DIM_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [LIMIT_CHOICES_WEIGHT] = { "weight", DIM_T, DIM_S, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 2,
    .outputs = {
        [LIMIT_CHOICES_KEPT] = { "kept", DIM_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [LIMIT_CHOICES_DROPPED] = { "dropped", DIM_ONE, DIM_ONE, TYPE_F64,
                                    OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
    },
    .feature = FEATURE_CAPACITY,
    .check = limit_choices_check,
    .spread_form = { .data = IN(LIMIT_CHOICES_EXPERT) | IN(LIMIT_CHOICES_WEIGHT),
                     .allowed = MAY_ROWS },
    .flops_per_element = 2,
};

static int balance_bias_check(const struct op_shape *op, struct err *err)
{
    double rate = op->attributes.rate;

    if (!(rate > 0))
        return err_set(err, ERR_FAILED, "balance_bias: rate is %g, wanted more than 0", rate);
    return 0;
}

static const struct op_info balance_bias = {
    .name = "balance_bias",
    .family = FAMILY_OPTIMIZER,
    .n_inputs = 3,
    .inputs = {
        [BALANCE_BIAS_COUNTS] = { "counts", DIM_ONE, DIM_M, TYPE_F64, OPERAND_PLAIN },
        [BALANCE_BIAS_SKIP_UPDATE] = { "skip_update", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [BALANCE_BIAS_BIAS] = { "bias", DIM_ONE, DIM_M, TYPE_F32, OPERAND_UPDATED },
    },
    .check = balance_bias_check,
    .spread_form = { .data = IN(BALANCE_BIAS_COUNTS) },
    .flops_per_element = 3,
};

static void gate_rows_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[GATE_ROWS_Y]), x = op->in[GATE_ROWS_X];
    int gate = op->in[GATE_ROWS_GATE], dx = backward_like(b, x), dgate = backward_like(b, gate);

    b->emit(b, &(struct op_node){
                   .kind = OP_GATE_ROWS_GRAD,
                   .in = { [GATE_ROWS_GRAD_DY] = dy,
                           [GATE_ROWS_GRAD_X] = x,
                           [GATE_ROWS_GRAD_GATE] = gate },
                   .out = { [GATE_ROWS_GRAD_DX] = dx, [GATE_ROWS_GRAD_DGATE] = dgate } });
    b->add_gradient(b, x, dx);
    b->add_gradient(b, gate, dgate);
}

static const struct op_info gate_rows = {
    .name = "gate_rows",
    .family = FAMILY_ACTIVATION,
    .n_inputs = 2,
    .inputs = {
        [GATE_ROWS_X] = { "x", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
        [GATE_ROWS_GATE] = { "gate", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [GATE_ROWS_Y] = { "y", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_CHEAP,
    .feature = FEATURE_SHARED_GATE,
    .spread_form = { .data = IN(GATE_ROWS_X),
                     .rowwise = IN(GATE_ROWS_GATE),
                     .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 1,
    .backward = gate_rows_backward,
};

/* A gate's gradient is a sum along the columns. */
static int gate_rows_grad_spread(const struct spread_query *q)
{
    if (spread_alike(q, IN(GATE_ROWS_GRAD_DY) | IN(GATE_ROWS_GRAD_X), IN(GATE_ROWS_GRAD_GATE),
                     MAY_ROWS | MAY_COLS))
        return -1;
    if (q->in[GATE_ROWS_GRAD_DY] == SPREAD_COLS)
        q->out[GATE_ROWS_GRAD_DGATE] = SPREAD_PARTIAL;
    return 0;
}

static const struct op_info gate_rows_grad = {
    .name = "gate_rows_grad",
    .family = FAMILY_ACTIVATION,
    .n_inputs = 3,
    .inputs = {
        [GATE_ROWS_GRAD_DY] = { "dy", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
        [GATE_ROWS_GRAD_X] = { "x", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
        [GATE_ROWS_GRAD_GATE] = { "gate", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 2,
    .outputs = {
        [GATE_ROWS_GRAD_DX] = { "dx", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
        [GATE_ROWS_GRAD_DGATE] = { "dgate", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
    },
    .spread = gate_rows_grad_spread,
    .flops_per_element = 3,
};

const struct op_info *const router_ops[N_OP_KINDS] = {
    [OP_ROUTER] = &router,
    [OP_ROUTER_GRAD] = &router_grad,
    [OP_LIMIT_CHOICES] = &limit_choices,
    [OP_BALANCE_BIAS] = &balance_bias,
    [OP_GATE_ROWS] = &gate_rows,
    [OP_GATE_ROWS_GRAD] = &gate_rows_grad,
};
