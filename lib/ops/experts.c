/*
 * experts.c - the order of a router's choices, what goes to experts and back, experts' products
 */
#include <stdbool.h>

#include "ops/weight_product_impl.h"

/* Each rank's are a part of all experts. */
static int expert_order_check(const struct op_shape *op, struct err *err)
{
    int64_t m = op->out[EXPERT_ORDER_ENDS].cols, n = op->attributes.n_experts;

    if (tensor_given(&op->in[EXPERT_ORDER_BEGIN]) && (n < m || n % m))
        return err_set(err, ERR_FAILED, "%s: n_experts is %lld, wanted a multiple of %lld",
                       op_name(op->kind), (long long)n, (long long)m);
    return 0;
}

/* Where each rank has some of the experts, it has their ends and rows. */
static int expert_order_spread(const struct spread_query *q)
{
    if (!spread_given(q, EXPERT_ORDER_BEGIN) || q->in[EXPERT_ORDER_BEGIN] != SPREAD_COLS)
        return spread_alike(q, IN(EXPERT_ORDER_EXPERT), 0, MAY_ROWS);
    q->out[EXPERT_ORDER_PLACE] = SPREAD_ROWS;
    q->out[EXPERT_ORDER_ENDS] = SPREAD_COLS;
    return spread_want(q, EXPERT_ORDER_EXPERT, SPREAD_SAME);
}

static const struct op_info expert_order = {
    .name = "expert_order",
    .n_inputs = 2,
    .inputs = {
        [EXPERT_ORDER_EXPERT] = { "expert", DIM_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [EXPERT_ORDER_BEGIN] = { "begin", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 2,
    .outputs = {
        [EXPERT_ORDER_PLACE] = { "place", DIM_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [EXPERT_ORDER_ENDS] = { "ends", DIM_ONE, DIM_M, TYPE_I32, OPERAND_PLAIN },
    },
    .feature = FEATURE_EXPERTS,
    .check = expert_order_check,
    .spread = expert_order_spread,
};

/* Rows of experts: at most one of each choice. rows: any operand that has them. */
static int check_places(const struct op_shape *op, const struct tensor *place,
                        const struct tensor *rows, struct err *err)
{
    int64_t most = tensor_elements(place);

    if (rows->rows > most)
        return err_set(err, ERR_FAILED, "%s: there are %lld rows for %lld places",
                       op_name(op->kind), (long long)rows->rows, (long long)most);
    return 0;
}

/* Some of the experts: whose rows they have is known by ends. */
static int check_some(const struct op_shape *op, const struct tensor *ends, struct err *err)
{
    const struct op_attributes *a = &op->attributes;

    if (!a->experts)
        return 0;
    if (!tensor_given(ends))
        return err_set(err, ERR_FAILED, "%s: %d experts without ends", op_name(op->kind),
                       a->experts);
    if (a->first < 0 || a->first + a->experts > ends->cols)
        return err_set(err, ERR_FAILED, "%s: experts %lld to %lld, wanted of 0 to %lld",
                       op_name(op->kind), (long long)a->first, (long long)(a->first + a->experts),
                       (long long)ends->cols);
    return 0;
}

static int dispatch_check(const struct op_shape *op, struct err *err)
{
    return check_places(op, &op->in[DISPATCH_PLACE], &op->out[DISPATCH_Y], err) ||
                   check_some(op, &op->in[DISPATCH_ENDS], err)
               ? -1
               : 0;
}

static int combine_check(const struct op_shape *op, struct err *err)
{
    return check_places(op, &op->in[COMBINE_PLACE], &op->in[COMBINE_Y], err);
}

static int expert_swiglu_check(const struct op_shape *op, struct err *err)
{
    return check_places(op, &op->in[EXPERT_SWIGLU_PLACE], &op->in[EXPERT_SWIGLU_GU], err) ||
                   check_some(op, &op->in[EXPERT_SWIGLU_ENDS], err)
               ? -1
               : 0;
}

/*
 * Rows that were sent to their experts: the gradient of each choice is returned, so that a token's
 * are added up on its own rank, in the order of its choices, as they are without other ranks.
 */
static void return_to_sender(struct backward *b, const struct op_node *sent, int dy)
{
    int x = sent->in[SEND_ROWS_X], place = sent->in[SEND_ROWS_PLACE];
    int dx = backward_like(b, x), each = b->new_rows(b, x, b->rows(b, place) * b->cols(b, place));

    CHECK(place);
    b->emit(b,
            &(struct op_node){
                .kind = OP_RETURN_ROWS,
                .attributes = sent->attributes,
                .in = { [RETURN_ROWS_Y] = dy, [RETURN_ROWS_CHOICES] = sent->in[SEND_ROWS_CHOICES] },
                .out = { [RETURN_ROWS_X] = each } });
    b->emit(b, &(struct op_node){ .kind = OP_COMBINE,
                                  .in = { [COMBINE_PLACE] = place, [COMBINE_Y] = each },
                                  .out = { [COMBINE_X] = dx } });
    b->add_gradient(b, x, dx);
}

/* The gradient of a token's rows is one row: it is sent to each rank once. */
static void send_to_experts(struct backward *b, const struct op_node *returned, int dx)
{
    int y = returned->in[RETURN_ROWS_Y], place = returned->in[RETURN_ROWS_PLACE];
    int choices = returned->in[RETURN_ROWS_CHOICES], dy = backward_like(b, y);
    int sent = b->new_rows(b, dx, b->rows(b, choices));

    CHECK(place);
    b->emit(b, &(struct op_node){ .kind = OP_SEND_ROWS,
                                  .attributes = returned->attributes,
                                  .in = { [SEND_ROWS_X] = dx, [SEND_ROWS_CHOICES] = choices },
                                  .out = { [SEND_ROWS_Y] = sent } });
    b->emit(b, &(struct op_node){ .kind = OP_DISPATCH,
                                  .attributes.n_rows = returned->attributes.n_rows,
                                  .in = { [DISPATCH_PLACE] = place, [DISPATCH_X] = sent },
                                  .out = { [DISPATCH_Y] = dy } });
    b->add_gradient(b, y, dy);
}

/* Dispatch and combine are each other's gradient. */
static void dispatch_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_summand(b, op->out[DISPATCH_Y]), x = op->in[DISPATCH_X];
    const struct op_node *sent = b->maker(b, x);

    if (sent && sent->kind == OP_SEND_ROWS) {
        return_to_sender(b, sent, dy);
        return;
    }
    int dx = backward_like(b, x);

    b->emit(b,
            &(struct op_node){ .kind = OP_COMBINE,
                               .in = { [COMBINE_PLACE] = op->in[DISPATCH_PLACE], [COMBINE_Y] = dy },
                               .out = { [COMBINE_X] = dx } });
    b->add_gradient(b, x, dx);
}

static const struct op_info dispatch = {
    .name = "dispatch",
    .n_inputs = 3,
    .inputs = {
        [DISPATCH_PLACE] = { "place", DIM_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [DISPATCH_X] = { "x", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [DISPATCH_ENDS] = { "ends", DIM_ONE, DIM_M, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [DISPATCH_Y] = { "y", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_CHEAP | TRAIT_EXPERT_ROWS,
    .feature = FEATURE_EXPERTS,
    .routed_rows = DIM_R,
    .check = dispatch_check,
    .spread_form = { .data = IN(DISPATCH_X),
                     .rowwise = IN(DISPATCH_PLACE),
                     .allowed = MAY_ROWS | MAY_COLS | MAY_PARTIAL },
    .backward = dispatch_backward,
};

static double combine_flops(const struct op_shape *op)
{
    return (double)tensor_elements(&op->in[COMBINE_Y]);
}

static void combine_backward(struct backward *b, const struct op_node *op)
{
    int dx = b->take_summand(b, op->out[COMBINE_X]), y = op->in[COMBINE_Y];
    const struct op_node *returned = b->maker(b, y);

    if (returned && returned->kind == OP_RETURN_ROWS) {
        send_to_experts(b, returned, dx);
        return;
    }
    int dy = backward_like(b, y);

    b->emit(
        b, &(struct op_node){ .kind = OP_DISPATCH,
                              .in = { [DISPATCH_PLACE] = op->in[COMBINE_PLACE], [DISPATCH_X] = dx },
                              .out = { [DISPATCH_Y] = dy } });
    b->add_gradient(b, y, dy);
}

static const struct op_info combine = {
    .name = "combine",
    .n_inputs = 2,
    .inputs = {
        [COMBINE_PLACE] = { "place", DIM_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [COMBINE_Y] = { "y", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [COMBINE_X] = { "x", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .feature = FEATURE_EXPERTS,
    .check = combine_check,
    .spread_form = { .data = IN(COMBINE_Y),
                     .rowwise = IN(COMBINE_PLACE),
                     .allowed = MAY_ROWS | MAY_COLS | MAY_PARTIAL },
    .flops = combine_flops,
    .backward = combine_backward,
};

/* Each row meets one expert. The operands of expert_linear_dx stand where these do. */
double flops_expert_linear(const struct op_shape *op)
{
    const struct tensor *w = &op->in[EXPERT_LINEAR_W];
    double n_experts = (double)op->in[EXPERT_LINEAR_ENDS].cols;

    return 2 * (double)op->in[EXPERT_LINEAR_X].rows * (double)w->rows / n_experts * (double)w->cols;
}

/*
 * Like a linear's: of split columns of w, which all experts' are, a part of y or a summand of it.
 * Where each rank has some of the experts (ends are split), their rows, of x, w and y.
 * inputs, outputs: how w lies where x's columns are split, and where y's become so.
 */
static int spread_experts(const struct spread_query *q, enum spread inputs, enum spread outputs)
{
    enum spread x = q->in[EXPERT_LINEAR_X], w = q->in[EXPERT_LINEAR_W];

    if (x == SPREAD_PARTIAL)
        return spread_refuse(q, EXPERT_LINEAR_X, MAY_ROWS | MAY_COLS);
    if (x == SPREAD_ROWS && q->in[EXPERT_LINEAR_ENDS] == SPREAD_COLS) {
        spread_give_all(q, SPREAD_ROWS);
        return spread_want(q, EXPERT_LINEAR_W, SPREAD_ROWS);
    }
    if (spread_want(q, EXPERT_LINEAR_ENDS, x == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME))
        return -1;
    if (x == SPREAD_COLS) {
        spread_give_all(q, SPREAD_PARTIAL);
        return spread_want(q, EXPERT_LINEAR_W, inputs);
    }
    if (w == outputs && x == SPREAD_SAME) {
        spread_give_all(q, SPREAD_COLS);
        return 0;
    }
    spread_give_all(q, x);
    return spread_want(q, EXPERT_LINEAR_W, SPREAD_SAME);
}

int spread_expert_linear(const struct spread_query *q)
{
    return spread_experts(q, SPREAD_COLS, SPREAD_ROWS);
}

/* Of a summand of dy a summand of dx. */
int spread_expert_linear_dx(const struct spread_query *q)
{
    if (q->in[EXPERT_LINEAR_DX_DY] == SPREAD_PARTIAL) {
        spread_give_all(q, SPREAD_PARTIAL);
        return spread_want(q, EXPERT_LINEAR_DX_ENDS, SPREAD_SAME) ||
                       spread_want(q, EXPERT_LINEAR_DX_W, SPREAD_SAME)
                   ? -1
                   : 0;
    }
    return spread_experts(q, SPREAD_ROWS, SPREAD_COLS);
}

void backward_expert_linear(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[EXPERT_LINEAR_Y]), x = op->in[EXPERT_LINEAR_X];
    int ends = op->in[EXPERT_LINEAR_ENDS], w = op->in[EXPERT_LINEAR_W];
    bool in_fp8 = op->kind == OP_EXPERT_LINEAR_FP8;
    bool dw_in_fp8 = in_fp8 && !op->attributes.wide_dw;
    struct op_attributes of_dw = op->attributes;

    if (b->needs_gradient(b, x)) {
        int dx = backward_like(b, x);

        b->emit(b,
                &(struct op_node){ .kind = in_fp8 ? OP_EXPERT_LINEAR_DX_FP8 : OP_EXPERT_LINEAR_DX,
                                   .attributes = op->attributes,
                                   .in = { [EXPERT_LINEAR_DX_DY] = dy,
                                           [EXPERT_LINEAR_DX_ENDS] = ends,
                                           [EXPERT_LINEAR_DX_W] = w },
                                   .out = { [EXPERT_LINEAR_DX_DX] = dx } });
        b->add_gradient(b, x, dx);
    }
    int dw = b->accumulator(b, w);
    if (!dw_in_fp8)
        of_dw.fp8 = FP8_NONE;
    if (dw)
        b->emit(
            b, &(struct op_node){ .kind = dw_in_fp8 ? OP_EXPERT_LINEAR_DW_FP8 : OP_EXPERT_LINEAR_DW,
                                  .attributes = of_dw,
                                  .in = { [EXPERT_LINEAR_DW_DY] = dy,
                                          [EXPERT_LINEAR_DW_X] = x,
                                          [EXPERT_LINEAR_DW_ENDS] = ends },
                                  .out = { [EXPERT_LINEAR_DW_DW] = dw },
                                  .gradient_of = GRADIENT_OF_PARAMETERS });
}

int check_expert_linear(const struct op_shape *op, struct err *err)
{
    return check_some(op, &op->in[EXPERT_LINEAR_ENDS], err);
}

static const struct op_info expert_linear = {
    EXPERT_LINEAR_ROW(TYPE_ACT), .name = "expert_linear",      .n_inputs = 3,
    .feature = FEATURE_EXPERTS,  .check = check_expert_linear, .spread = spread_expert_linear,
};

static const struct op_info expert_linear_dx = {
    EXPERT_LINEAR_DX_ROW(TYPE_ACT), .name = "expert_linear_dx",        .n_inputs = 3,
    .check = check_expert_linear,   .spread = spread_expert_linear_dx,
};

int spread_expert_linear_dw(const struct spread_query *q)
{
    enum spread dy = q->in[EXPERT_LINEAR_DW_DY];

    if (dy == SPREAD_ROWS && q->in[EXPERT_LINEAR_DW_ENDS] == SPREAD_COLS) {
        spread_give_all(q, SPREAD_ROWS);
        return spread_want(q, EXPERT_LINEAR_DW_X, SPREAD_ROWS);
    }
    if (spread_want(q, EXPERT_LINEAR_DW_ENDS, dy == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME))
        return -1;
    return spread_linear_dw(q);
}

double flops_expert_linear_dw(const struct op_shape *op)
{
    const struct tensor *dy = &op->in[EXPERT_LINEAR_DW_DY];

    return 2 * (double)dy->rows * (double)dy->cols * (double)op->in[EXPERT_LINEAR_DW_X].cols;
}

static const struct op_info expert_linear_dw = {
    EXPERT_LINEAR_DW_ROW,
    .name = "expert_linear_dw",
};

static double expert_swiglu_flops(const struct op_shape *op)
{
    return 6 * (double)tensor_elements(&op->out[EXPERT_SWIGLU_Y]);
}

static void expert_swiglu_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[EXPERT_SWIGLU_Y]);
    int weight = op->in[EXPERT_SWIGLU_WEIGHT], gu = op->in[EXPERT_SWIGLU_GU];
    int dgu = backward_like(b, gu), dweight = b->new_like(b, weight, DTYPE_F32);

    b->emit(
        b, &(struct op_node){
               .kind = OP_EXPERT_SWIGLU_GRAD,
               .attributes = op->attributes,
               .in = { [EXPERT_SWIGLU_GRAD_WEIGHT] = weight,
                       [EXPERT_SWIGLU_GRAD_PLACE] = op->in[EXPERT_SWIGLU_PLACE],
                       [EXPERT_SWIGLU_GRAD_DY] = dy,
                       [EXPERT_SWIGLU_GRAD_GU] = gu },
               .out = { [EXPERT_SWIGLU_GRAD_DGU] = dgu, [EXPERT_SWIGLU_GRAD_DWEIGHT] = dweight } });
    b->add_gradient(b, gu, dgu);
    b->add_gradient(b, weight, dweight);
}

/* Whether all ranks have all weights, and each the rows of some of them. */
static bool has_all_weights(const struct spread_query *q)
{
    return q->in[EXPERT_SWIGLU_WEIGHT] == SPREAD_SAME && q->in[EXPERT_SWIGLU_PLACE] == SPREAD_ROWS;
}

static int expert_swiglu_spread(const struct spread_query *q)
{
    unsigned weight = has_all_weights(q) ? 0 : IN(EXPERT_SWIGLU_WEIGHT);

    return spread_alike(q, IN(EXPERT_SWIGLU_GU), weight | IN(EXPERT_SWIGLU_PLACE),
                        MAY_ROWS | MAY_COLS);
}

static const struct op_info expert_swiglu = {
    .name = "expert_swiglu",
    .n_inputs = 4,
    .inputs = {
        [EXPERT_SWIGLU_WEIGHT] = { "weight", DIM_T, DIM_S, TYPE_F32, OPERAND_PLAIN },
        [EXPERT_SWIGLU_PLACE] = { "place", DIM_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [EXPERT_SWIGLU_GU] = { "gu", DIM_R, DIM_2F, TYPE_ACT, OPERAND_PLAIN },
        [EXPERT_SWIGLU_ENDS] = { "ends", DIM_ONE, DIM_M, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [EXPERT_SWIGLU_Y] = { "y", DIM_R, DIM_F, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_CHEAP | TRAIT_EXPERT_ROWS,
    .feature = FEATURE_EXPERTS,
    .routed_rows = DIM_R,
    .check = expert_swiglu_check,
    .spread = expert_swiglu_spread,
    .flops = expert_swiglu_flops,
    .backward = expert_swiglu_backward,
};

/* A weight's gradient is a sum along the columns; of those that others have rows of, 0. */
static int expert_swiglu_grad_spread(const struct spread_query *q)
{
    unsigned data = IN(EXPERT_SWIGLU_GRAD_DY) | IN(EXPERT_SWIGLU_GRAD_GU);
    unsigned weight = has_all_weights(q) ? 0 : IN(EXPERT_SWIGLU_GRAD_WEIGHT);

    if (spread_alike(q, data, weight | IN(EXPERT_SWIGLU_GRAD_PLACE), MAY_ROWS | MAY_COLS))
        return -1;
    if (q->in[EXPERT_SWIGLU_GRAD_DY] == SPREAD_COLS || has_all_weights(q))
        q->out[EXPERT_SWIGLU_GRAD_DWEIGHT] = SPREAD_PARTIAL;
    return 0;
}

static int expert_swiglu_grad_check(const struct op_shape *op, struct err *err)
{
    return check_places(op, &op->in[EXPERT_SWIGLU_GRAD_PLACE], &op->in[EXPERT_SWIGLU_GRAD_GU],
                        err) ||
                   check_some(op, &op->in[EXPERT_SWIGLU_GRAD_ENDS], err)
               ? -1
               : 0;
}

static double expert_swiglu_grad_flops(const struct op_shape *op)
{
    return 14 * (double)tensor_elements(&op->in[EXPERT_SWIGLU_GRAD_DY]);
}

static const struct op_info expert_swiglu_grad = {
    .name = "expert_swiglu_grad",
    .n_inputs = 5,
    .inputs = {
        [EXPERT_SWIGLU_GRAD_WEIGHT] = { "weight", DIM_T, DIM_S, TYPE_F32, OPERAND_PLAIN },
        [EXPERT_SWIGLU_GRAD_PLACE] = { "place", DIM_T, DIM_S, TYPE_I32, OPERAND_PLAIN },
        [EXPERT_SWIGLU_GRAD_DY] = { "dy", DIM_R, DIM_F, TYPE_ACT, OPERAND_PLAIN },
        [EXPERT_SWIGLU_GRAD_GU] = { "gu", DIM_R, DIM_2F, TYPE_ACT, OPERAND_PLAIN },
        [EXPERT_SWIGLU_GRAD_ENDS] = { "ends", DIM_ONE, DIM_M, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 2,
    .outputs = {
        [EXPERT_SWIGLU_GRAD_DGU] = { "dgu", DIM_R, DIM_2F, TYPE_ACT, OPERAND_PLAIN },
        [EXPERT_SWIGLU_GRAD_DWEIGHT] = { "dweight", DIM_T, DIM_S, TYPE_F32, OPERAND_PLAIN },
    },
    .routed_rows = DIM_R,
    .check = expert_swiglu_grad_check,
    .spread = expert_swiglu_grad_spread,
    .flops = expert_swiglu_grad_flops,
};

const struct op_info *const experts_ops[N_OP_KINDS] = {
    [OP_EXPERT_ORDER] = &expert_order,
    [OP_DISPATCH] = &dispatch,
    [OP_COMBINE] = &combine,
    [OP_EXPERT_LINEAR] = &expert_linear,
    [OP_EXPERT_LINEAR_DX] = &expert_linear_dx,
    [OP_EXPERT_LINEAR_DW] = &expert_linear_dw,
    [OP_EXPERT_SWIGLU] = &expert_swiglu,
    [OP_EXPERT_SWIGLU_GRAD] = &expert_swiglu_grad,
};
