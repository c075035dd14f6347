/*
 * linear.c - products with a parameter's matrix, their biases, and low-rank adapters
 */
#include "ops/weight_product_impl.h"

double flops_linear(const struct op_shape *op)
{
    const struct tensor *w = &op->in[LINEAR_W];

    return 2 * (double)op->in[LINEAR_X].rows * (double)w->rows * (double)w->cols;
}

/* y = x w' + b */
int spread_linear(const struct spread_query *q)
{
    enum spread x = q->in[LINEAR_X], w = q->in[LINEAR_W];

    if (x == SPREAD_PARTIAL)
        return spread_refuse(q, LINEAR_X, MAY_ROWS | MAY_COLS);
    if (x == SPREAD_COLS) {
        if (spread_want(q, LINEAR_W, SPREAD_COLS))
            return -1;
        if (spread_given(q, LINEAR_B))
            return err_set(
                q->err, ERR_FAILED,
                "%s: y is partial, so every rank would add b (hint: add it after the sum)",
                q->info->name);
        spread_give_all(q, SPREAD_PARTIAL);
        return 0;
    }
    if (w == SPREAD_ROWS && x == SPREAD_SAME) {
        spread_give_all(q, SPREAD_COLS);
        return spread_want(q, LINEAR_B, SPREAD_COLS);
    }
    spread_give_all(q, x);
    if (spread_want(q, LINEAR_W, SPREAD_SAME))
        return -1;
    return spread_want(q, LINEAR_B, SPREAD_SAME);
}

static void bias_backward(struct backward *b, int dy, int db)
{
    b->emit(b, &(struct op_node){ .kind = OP_BIAS_GRAD,
                                  .in = { [BIAS_GRAD_DY] = dy },
                                  .out = { [BIAS_GRAD_DB] = db },
                                  .gradient_of = GRADIENT_OF_PARAMETERS });
}

/* x's gradient grows by dy w: op is the product, or has it. */
static void product_input_backward(struct backward *b, const struct op_node *op, int dy, int w,
                                   int x)
{
    int dx = backward_like(b, x);

    b->emit(b, &(struct op_node){
                   .kind = op->kind == OP_LINEAR_FP8 ? OP_LINEAR_DX_FP8 : OP_LINEAR_DX,
                   .attributes = { .fp8 = op->attributes.fp8, .e5m2_dy = op->attributes.e5m2_dy },
                   .in = { [LINEAR_DX_DY] = dy, [LINEAR_DX_W] = w },
                   .out = { [LINEAR_DX_DX] = dx } });
    b->add_gradient(b, x, dx);
}

/* dw, and db if it is given, grow by dy' x and by the sums of dy's columns. */
static void product_weight_backward(struct backward *b, const struct op_node *op, const int in[2],
                                    int dw, int db)
{
    bool in_fp8 = op->kind == OP_LINEAR_FP8 && !op->attributes.wide_dw;

    b->emit(b, &(struct op_node){
                   .kind = in_fp8 ? OP_LINEAR_DW_FP8 : OP_LINEAR_DW,
                   .attributes = { .fp8 = in_fp8 ? op->attributes.fp8 : FP8_NONE,
                                   .e5m2_dy = in_fp8 && op->attributes.e5m2_dy },
                   .in = { [LINEAR_DW_DY] = in[LINEAR_DW_DY], [LINEAR_DW_X] = in[LINEAR_DW_X] },
                   .out = { [LINEAR_DW_DW] = dw, [LINEAR_DW_DB] = db },
                   .gradient_of = GRADIENT_OF_PARAMETERS });
}

/*
 * Where every rank has all of w, its summand of dy gives it a summand of each gradient: that of x
 * is added up where others of x are, that of w at the update. So an adapter's small products meet
 * no other rank.
 */
void backward_linear(struct backward *b, const struct op_node *op)
{
    int x = op->in[LINEAR_X], w = op->in[LINEAR_W], bias = op->in[LINEAR_B];
    int y = op->out[LINEAR_Y];
    int keeps = !bias && b->is_whole(b, w, y);
    int dy = keeps ? b->take_summand(b, y) : b->take_gradient(b, y);

    dy = b->cast(b, dy, b->dtype(b, x));
    if (b->needs_gradient(b, x))
        product_input_backward(b, op, dy, w, x);
    int dw = b->accumulator(b, w), db = b->accumulator(b, bias);
    if (dw)
        product_weight_backward(b, op, (const int[]){ dy, x }, dw, db);
    else if (db)
        bias_backward(b, dy, db);
}

static const struct op_info linear = {
    .name = "linear",
    .family = FAMILY_LINEAR,
    .n_inputs = 3,
    .inputs = {
        [LINEAR_X] = { "x", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_W] = { "w", DIM_N, DIM_K, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_B] = { "b", DIM_ONE, DIM_N, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [LINEAR_Y] = { "y", DIM_T, DIM_N, TYPE_ACT_OR_F32, OPERAND_PLAIN },
    },
    .traits = TRAIT_PRODUCT | TRAIT_BY_ROWS | TRAIT_ROW_RUNS,
    .feature = FEATURE_ANY_MODEL,
    .spread = spread_linear,
    .flops = flops_linear,
    .backward = backward_linear,
};

double flops_linear_dx(const struct op_shape *op)
{
    const struct tensor *w = &op->in[LINEAR_DX_W];

    return 2 * (double)op->in[LINEAR_DX_DY].rows * (double)w->rows * (double)w->cols;
}

/* dx = dy w: of a summand of dy a summand of dx */
int spread_linear_dx(const struct spread_query *q)
{
    enum spread dy = q->in[LINEAR_DX_DY], w = q->in[LINEAR_DX_W];

    if (dy == SPREAD_COLS) {
        spread_give_all(q, SPREAD_PARTIAL);
        return spread_want(q, LINEAR_DX_W, SPREAD_ROWS);
    }
    if (dy == SPREAD_SAME && w == SPREAD_COLS) {
        spread_give_all(q, SPREAD_COLS);
        return 0;
    }
    spread_give_all(q, dy);
    return spread_want(q, LINEAR_DX_W, SPREAD_SAME);
}

static const struct op_info linear_dx = {
    .name = "linear_dx",
    .family = FAMILY_LINEAR,
    .n_inputs = 2,
    .inputs = {
        [LINEAR_DX_DY] = { "dy", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_DX_W] = { "w", DIM_N, DIM_K, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [LINEAR_DX_DX] = { "dx", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_PRODUCT | TRAIT_BY_ROWS | TRAIT_ROW_RUNS,
    .spread = spread_linear_dx,
    .flops = flops_linear_dx,
};

double flops_linear_dw(const struct op_shape *op)
{
    const struct tensor *dw = &op->out[LINEAR_DW_DW];

    return 2 * (double)op->in[LINEAR_DW_DY].rows * (double)dw->rows * (double)dw->cols;
}

int spread_linear_dw(const struct spread_query *q)
{
    enum spread dy = q->in[LINEAR_DW_DY], x = q->in[LINEAR_DW_X];

    switch (dy) {
    case SPREAD_PARTIAL: /* a summand's */
        spread_give_all(q, SPREAD_PARTIAL);
        return spread_want(q, LINEAR_DW_X, SPREAD_SAME);
    case SPREAD_ROWS:
        spread_give_all(q, SPREAD_PARTIAL);
        return spread_want(q, LINEAR_DW_X, SPREAD_ROWS);
    case SPREAD_COLS:
        q->out[LINEAR_DW_DW] = SPREAD_ROWS;
        q->out[LINEAR_DW_DB] = SPREAD_COLS;
        return spread_want(q, LINEAR_DW_X, SPREAD_SAME);
    default:
        if (x == SPREAD_ROWS)
            return spread_refuse(q, LINEAR_DW_X, MAY_COLS | MAY_PARTIAL);
        q->out[LINEAR_DW_DW] = x;
        q->out[LINEAR_DW_DB] = SPREAD_SAME;
        return 0;
    }
}

static const struct op_info linear_dw = {
    .name = "linear_dw",
    .family = FAMILY_LINEAR,
    .n_inputs = 2,
    .inputs = {
        [LINEAR_DW_DY] = { "dy", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_DW_X] = { "x", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 2,
    .outputs = {
        [LINEAR_DW_DW] = { "dw", DIM_N, DIM_K, TYPE_KEPT, OPERAND_ACCUMULATED },
        [LINEAR_DW_DB] = { "db", DIM_ONE, DIM_N, TYPE_F32, OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
    },
    .traits = TRAIT_PRODUCT,
    .spread = spread_linear_dw,
    .flops = flops_linear_dw,
};

/* b belongs to the columns: added to a sum that is still owed it would count once a rank. */
static int add_bias_spread(const struct spread_query *q)
{
    enum spread x = q->in[ADD_BIAS_X];

    if (x == SPREAD_PARTIAL)
        return spread_refuse(q, ADD_BIAS_X, MAY_ROWS | MAY_COLS);
    spread_give_all(q, x);
    return spread_want(q, ADD_BIAS_B, x == SPREAD_COLS ? SPREAD_COLS : SPREAD_SAME);
}

static void add_bias_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[ADD_BIAS_Y]);
    int db = b->accumulator(b, op->in[ADD_BIAS_B]);

    if (db)
        bias_backward(b, dy, db);
    b->add_gradient(b, op->in[ADD_BIAS_X], dy);
}

static const struct op_info add_bias = {
    .name = "add_bias",
    .n_inputs = 2,
    .inputs = {
        [ADD_BIAS_X] = { "x", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
        [ADD_BIAS_B] = { "b", DIM_ONE, DIM_N, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ADD_BIAS_Y] = { "y", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_BY_ROWS,
    .feature = FEATURE_SUM_BEFORE_BIAS,
    .spread = add_bias_spread,
    .flops_per_element = 1,
    .backward = add_bias_backward,
};

static const struct op_info bias_grad = {
    .name = "bias_grad",
    .n_inputs = 1,
    .inputs = {
        [BIAS_GRAD_DY] = { "dy", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [BIAS_GRAD_DB] = { "db", DIM_ONE, DIM_N, TYPE_F32, OPERAND_ACCUMULATED },
    },
    .spread_form = { .data = IN(BIAS_GRAD_DY), .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 1,
};

/* Of a product's columns each part has its pair, or none. */
static int lora_check(const struct op_shape *op, struct err *err)
{
    const char *name = op_name(op->kind);
    int64_t n = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        const struct tensor *h = &op->in[LORA_H0 + 2 * i], *b = &op->in[LORA_B0 + 2 * i];
        int part = op->attributes.parts[i];

        n += part;
        if (part < 0 || tensor_given(h) != tensor_given(b))
            return err_set(err, ERR_FAILED, "%s: h%d and b%d, wanted both or none", name, i, i);
        if (tensor_given(h) && (b->rows != part || b->cols != h->cols))
            return err_set(err, ERR_FAILED, "%s: b%d is [%lld x %lld], wanted [%d x %lld]", name, i,
                           (long long)b->rows, (long long)b->cols, part, (long long)h->cols);
    }
    if (n != op->out[LORA_OUT].cols)
        return err_set(err, ERR_FAILED, "%s: parts have %lld columns, wanted %lld", name,
                       (long long)n, (long long)op->out[LORA_OUT].cols);
    return 0;
}

/* Columns are split as b's rows, or y is a sum that is owed, and so is every h. */
static int lora_spread(const struct spread_query *q)
{
    enum spread y = q->in[LORA_Y];

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        if (spread_want(q, LORA_H0 + 2 * i, y == SPREAD_COLS ? SPREAD_SAME : y) ||
            spread_want(q, LORA_B0 + 2 * i, y == SPREAD_COLS ? SPREAD_ROWS : SPREAD_SAME))
            return -1;
    }
    spread_give_all(q, y);
    return 0;
}

static double lora_flops(const struct op_shape *op)
{
    double flops = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        const struct tensor *b = &op->in[LORA_B0 + 2 * i];

        if (tensor_given(b))
            flops += 2 * (double)op->in[LORA_Y].rows * (double)tensor_elements(b);
    }
    return flops;
}

/* dy: the columns of the output's gradient that this pair of h and b has made. */
static void lora_part_backward(struct backward *b, const struct op_node *op, int dy, int h,
                               int weight)
{
    if (b->needs_gradient(b, h))
        product_input_backward(b, op, dy, weight, h);
    int db = b->accumulator(b, weight);
    if (db)
        product_weight_backward(b, op, (const int[]){ dy, h }, db, 0);
}

static void lora_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[LORA_OUT]);
    int64_t first = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        int h = op->in[LORA_H0 + 2 * i], weight = op->in[LORA_B0 + 2 * i];
        int n = op->attributes.parts[i];

        if (h)
            lora_part_backward(b, op, b->columns(b, dy, first, n), h, weight);
        first += n;
    }
    b->add_gradient(b, op->in[LORA_Y], dy);
}

static const struct op_info lora = {
    .name = "lora",
    .n_inputs = 7,
    .inputs = {
        [LORA_Y] = { "y", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
        [LORA_H0] = { "h0", DIM_T, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
        [LORA_B0] = { "b0", DIM_FREE, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
        [LORA_H1] = { "h1", DIM_T, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
        [LORA_B1] = { "b1", DIM_FREE, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
        [LORA_H2] = { "h2", DIM_T, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
        [LORA_B2] = { "b2", DIM_FREE, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [LORA_OUT] = { "out", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_BY_ROWS,
    .feature = FEATURE_ADAPTERS,
    .check = lora_check,
    .spread = lora_spread,
    .flops = lora_flops,
    .backward = lora_backward,
};

const struct op_info *const linear_ops[N_OP_KINDS] = {
    [OP_LINEAR] = &linear,     [OP_LINEAR_DX] = &linear_dx, [OP_LINEAR_DW] = &linear_dw,
    [OP_ADD_BIAS] = &add_bias, [OP_BIAS_GRAD] = &bias_grad, [OP_LORA] = &lora,
};
