/*
 * experts.c - facts of routers, and of what goes to experts and back
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/gradient_check.h"
#include "support/ops/op_family.h"

static int32_t *chosen(const struct tensor *t, int64_t row, int64_t i)
{
    return (int32_t *)t->data + row * t->cols + i;
}

/* Of e of the softmax over the row, all of it or what `among` names. */
static double softmax_of(const struct op_shape *op, int input, int64_t t, int64_t e,
                         const struct tensor *among)
{
    int64_t n = among ? among->cols : op->in[input].cols;
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += exp(IN(input, t, among ? *chosen(among, t, i) : i) - IN(input, t, e));
    return 1 / sum;
}

/* How many of its row's logits are larger, or equal and of a lower expert. */
static int64_t rank_of(const struct op_shape *op, int64_t t, int64_t e)
{
    int64_t n = 0;

    for (int64_t other = 0; other < op->in[ROUTER_LOGITS].cols; other++)
        n += IN(ROUTER_LOGITS, t, other) > IN(ROUTER_LOGITS, t, e) ||
             (IN(ROUTER_LOGITS, t, other) == IN(ROUTER_LOGITS, t, e) && other < e);
    return n;
}

static double share_of(const struct tensor *experts, int64_t e)
{
    double n = 0;

    for (int64_t i = 0; i < tensor_elements(experts); i++)
        n += ((const int32_t *)experts->data)[i] == e;
    return n / (double)tensor_elements(experts);
}

static void router(const struct op_shape *op)
{
    const struct tensor *experts = &op->out[ROUTER_EXPERT];
    int64_t n_tokens = op->in[ROUTER_LOGITS].rows, m = op->in[ROUTER_LOGITS].cols;
    int has_stats = tensor_given(&op->out[ROUTER_STATS]);

    for (int64_t t = 0; t < n_tokens; t++) {
        for (int64_t e = 0; e < m; e++)
            if (rank_of(op, t, e) < experts->cols)
                *chosen(experts, t, rank_of(op, t, e)) = (int32_t)e;
        for (int64_t i = 0; i < experts->cols; i++)
            OUT(ROUTER_WEIGHT, t, i) = softmax_of(op, ROUTER_LOGITS, t, *chosen(experts, t, i),
                                                  op->attributes.normalize ? experts : NULL);
    }
    for (int64_t e = 0; has_stats && e < m; e++) {
        double mean = 0;

        for (int64_t t = 0; t < n_tokens; t++)
            mean += softmax_of(op, ROUTER_LOGITS, t, e, NULL) / (double)n_tokens;
        OUT(ROUTER_STATS, 0, 0) += (double)m * share_of(experts, e) * mean;
        OUT(ROUTER_STATS, 0, 1 + e) += share_of(experts, e) * (double)tensor_elements(experts);
    }
}

#define EXPERTS_MAX 1024

/* By the whole Jacobians of softmax. */
static void router_grad(const struct op_shape *op)
{
    const struct tensor *experts = &op->in[ROUTER_GRAD_EXPERT];
    int64_t m = op->out[ROUTER_GRAD_DLOGITS].cols, n = experts->cols;
    double scale = op->attributes.balance * (double)m / (double)op->out[ROUTER_GRAD_DLOGITS].rows;
    double shares[EXPERTS_MAX], p[EXPERTS_MAX];

    CHECK(m <= EXPERTS_MAX);
    if (tensor_given(&op->in[ROUTER_GRAD_SCALE]))
        scale *= IN(ROUTER_GRAD_SCALE, 0, 0);
    start(&op->out[ROUTER_GRAD_DLOGITS]);
    for (int64_t e = 0; e < m; e++)
        shares[e] = share_of(
            tensor_given(&op->in[ROUTER_GRAD_CHOICES]) ? &op->in[ROUTER_GRAD_CHOICES] : experts, e);
    for (int64_t t = 0; t < op->out[ROUTER_GRAD_DLOGITS].rows; t++) {
        for (int64_t o = 0; tensor_given(&op->in[ROUTER_GRAD_LOGITS]) && o < m; o++)
            p[o] = softmax_of(op, ROUTER_GRAD_LOGITS, t, o, NULL);
        for (int64_t i = 0; i < n; i++) {
            int32_t e = *chosen(experts, t, i);

            for (int64_t j = 0; op->attributes.normalize && j < n; j++)
                OUT(ROUTER_GRAD_DLOGITS, t, *chosen(experts, t, j)) +=
                    IN(ROUTER_GRAD_DWEIGHT, t, i) * IN(ROUTER_GRAD_WEIGHT, t, i) *
                    ((i == j) - IN(ROUTER_GRAD_WEIGHT, t, j));
            for (int64_t o = 0; !op->attributes.normalize && o < m; o++)
                OUT(ROUTER_GRAD_DLOGITS, t, o) += IN(ROUTER_GRAD_DWEIGHT, t, i) *
                                                  IN(ROUTER_GRAD_WEIGHT, t, i) * ((e == o) - p[o]);
        }
        for (int64_t e = 0; scale > 0 && e < m; e++)
            for (int64_t o = 0; o < m; o++)
                OUT(ROUTER_GRAD_DLOGITS, t, o) += scale * shares[e] * p[e] * ((e == o) - p[o]);
    }
}

static void expert_order(const struct op_shape *op)
{
    const struct tensor *experts = &op->in[EXPERT_ORDER_EXPERT];
    int32_t row = 0, begin = begin_of(op, EXPERT_ORDER_BEGIN);

    for (int64_t i = 0; i < tensor_elements(experts); i++)
        ((int32_t *)op->out[EXPERT_ORDER_PLACE].data)[i] = -1;
    for (int64_t e = 0; e < op->out[EXPERT_ORDER_ENDS].cols; e++) {
        for (int64_t i = 0; i < tensor_elements(experts); i++)
            if (((const int32_t *)experts->data)[i] == begin + e)
                ((int32_t *)op->out[EXPERT_ORDER_PLACE].data)[i] = row++;
        ((int32_t *)op->out[EXPERT_ORDER_ENDS].data)[e] = row;
    }
}

static void dispatch(const struct op_shape *op)
{
    const struct tensor *place = &op->in[DISPATCH_PLACE];

    for (int64_t t = 0; t < place->rows; t++)
        for (int64_t i = 0; i < place->cols; i++)
            for (int64_t col = 0; *chosen(place, t, i) >= 0 && col < op->out[DISPATCH_Y].cols;
                 col++)
                OUT(DISPATCH_Y, *chosen(place, t, i), col) = IN(DISPATCH_X, t, col);
}

static void combine(const struct op_shape *op)
{
    const struct tensor *place = &op->in[COMBINE_PLACE];

    start(&op->out[COMBINE_X]);
    for (int64_t t = 0; t < place->rows; t++)
        for (int64_t i = 0; i < place->cols; i++)
            for (int64_t col = 0; *chosen(place, t, i) >= 0 && col < op->out[COMBINE_X].cols; col++)
                OUT(COMBINE_X, t, col) += IN(COMBINE_Y, *chosen(place, t, i), col);
}

static int64_t expert_of(const struct tensor *ends, int64_t row)
{
    int64_t e = 0;

    while (int_at(ends, e) <= row)
        e++;
    return e;
}

/* That experts have. */
static int64_t n_rows_of(const struct tensor *ends)
{
    return int_at(ends, ends->cols - 1);
}

/* With the operands of both: they lie at the same places (lib/ops/catalogue.c). */
static void expert_linear(const struct op_shape *op)
{
    int dx = op->kind == OP_EXPERT_LINEAR_DX;
    int64_t n = op->in[EXPERT_LINEAR_W].rows / op->in[EXPERT_LINEAR_ENDS].cols;

    start(&op->out[EXPERT_LINEAR_Y]);
    for (int64_t t = 0; t < n_rows_of(&op->in[EXPERT_LINEAR_ENDS]); t++) {
        int64_t w_row = expert_of(&op->in[EXPERT_LINEAR_ENDS], t) * n;

        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < op->in[EXPERT_LINEAR_W].cols; k++)
                OUT(EXPERT_LINEAR_Y, t, dx ? k : i) +=
                    IN(EXPERT_LINEAR_W, w_row + i, k) * IN(EXPERT_LINEAR_X, t, dx ? i : k);
    }
}

static void expert_linear_dw(const struct op_shape *op)
{
    int64_t n = op->in[EXPERT_LINEAR_DW_DY].cols;

    for (int64_t t = 0; t < n_rows_of(&op->in[EXPERT_LINEAR_DW_ENDS]); t++) {
        int64_t w_row = expert_of(&op->in[EXPERT_LINEAR_DW_ENDS], t) * n;

        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < op->in[EXPERT_LINEAR_DW_X].cols; k++)
                OUT(EXPERT_LINEAR_DW_DW, w_row + i, k) +=
                    IN(EXPERT_LINEAR_DW_DY, t, i) * IN(EXPERT_LINEAR_DW_X, t, k);
    }
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void expert_swiglu(const struct op_shape *op)
{
    int64_t f = op->out[EXPERT_SWIGLU_Y].cols;

    for (int64_t t = 0; t < op->in[EXPERT_SWIGLU_WEIGHT].rows; t++)
        for (int64_t i = 0; i < op->in[EXPERT_SWIGLU_WEIGHT].cols; i++) {
            int32_t row = *chosen(&op->in[EXPERT_SWIGLU_PLACE], t, i);

            for (int64_t col = 0; row >= 0 && col < f; col++)
                OUT(EXPERT_SWIGLU_Y, row, col) = IN(EXPERT_SWIGLU_WEIGHT, t, i) *
                                                 silu(IN(EXPERT_SWIGLU_GU, row, col)) *
                                                 IN(EXPERT_SWIGLU_GU, row, f + col);
        }
}

static void expert_swiglu_grad(const struct op_shape *op)
{
    int64_t f = op->in[EXPERT_SWIGLU_GRAD_DY].cols;

    start(&op->out[EXPERT_SWIGLU_GRAD_DWEIGHT]);
    for (int64_t t = 0; t < op->in[EXPERT_SWIGLU_GRAD_WEIGHT].rows; t++)
        for (int64_t i = 0; i < op->in[EXPERT_SWIGLU_GRAD_WEIGHT].cols; i++) {
            int32_t row = *chosen(&op->in[EXPERT_SWIGLU_GRAD_PLACE], t, i);

            for (int64_t col = 0; row >= 0 && col < f; col++) {
                double gate = IN(EXPERT_SWIGLU_GRAD_GU, row, col),
                       up = IN(EXPERT_SWIGLU_GRAD_GU, row, f + col), s = 1 / (1 + exp(-gate));
                double g = IN(EXPERT_SWIGLU_GRAD_DY, row, col);

                OUT(EXPERT_SWIGLU_GRAD_DGU, row, col) =
                    IN(EXPERT_SWIGLU_GRAD_WEIGHT, t, i) * g * up * (s + gate * s * (1 - s));
                OUT(EXPERT_SWIGLU_GRAD_DGU, row, f + col) =
                    IN(EXPERT_SWIGLU_GRAD_WEIGHT, t, i) * g * silu(gate);
                OUT(EXPERT_SWIGLU_GRAD_DWEIGHT, t, i) += g * silu(gate) * up;
            }
        }
}

/* Logits that no step of the differences makes change places. */
static void fill_logits(const struct tensor *t)
{
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t e = 0; e < t->cols; e++)
            tensor_set(t, row, e, 0.4 * (double)((3 * row + 2 * e) % t->cols) - 0.1 * (double)row);
}

static struct op_case *router_case(const struct op_attributes *attributes)
{
    struct op_case *c = op_case_create(OP_ROUTER, attributes);

    op_case_input(c, ROUTER_LOGITS, 4, 5, DTYPE_F32, 0);
    fill_logits(&c->op.in[ROUTER_LOGITS]);
    op_case_output(c, ROUTER_WEIGHT, 4, 2, DTYPE_F32);
    op_case_output(c, ROUTER_EXPERT, 4, 2, DTYPE_I32);
    return c;
}

static void weights_gradients(void)
{
    for (int normalize = 0; normalize < 2; normalize++) {
        struct op_case *c = router_case(&(struct op_attributes){ .normalize = normalize });

        gradient_check(c, OP_ROUTER_GRAD);
        op_case_destroy(c);
    }
}

/* Of the balance alone: the weights' gradients are nothing. */
static void balance_gradients(void)
{
    struct op_attributes a = { .normalize = 1, .balance = 0.7 };
    struct op_case *c = router_case(&a);
    struct op_shape forward = { 0 }, gradient = { .kind = OP_ROUTER_GRAD, .attributes = a };
    double none[8] = { 0 }, dlogits[20], *logits;

    op_case_output(c, ROUTER_STATS, 1, 6, DTYPE_F64);
    op_case_to_reference(c, &forward);
    reference_run(&forward, RUN_FIRST);
    gradient.in[ROUTER_GRAD_DWEIGHT] = (struct tensor){ none, 4, 2, 2, DTYPE_F64 };
    gradient.in[ROUTER_GRAD_WEIGHT] = forward.out[ROUTER_WEIGHT];
    gradient.in[ROUTER_GRAD_EXPERT] = forward.out[ROUTER_EXPERT];
    gradient.in[ROUTER_GRAD_LOGITS] = forward.in[ROUTER_LOGITS];
    gradient.out[ROUTER_GRAD_DLOGITS] = (struct tensor){ dlogits, 4, 5, 5, DTYPE_F64 };
    reference_run(&gradient, RUN_FIRST);
    logits = forward.in[ROUTER_LOGITS].data;
    for (int i = 0; i < 20; i++) {
        double kept = logits[i], above, below;

        logits[i] = kept + GRADIENT_STEP;
        reference_run(&forward, RUN_FIRST);
        above = a.balance * *(double *)forward.out[ROUTER_STATS].data;
        logits[i] = kept - GRADIENT_STEP;
        reference_run(&forward, RUN_FIRST);
        below = a.balance * *(double *)forward.out[ROUTER_STATS].data;
        logits[i] = kept;
        assert_true(fabs((above - below) / (2 * GRADIENT_STEP) - dlogits[i]) < 1e-8);
    }
    reference_release(&forward);
    op_case_destroy(c);
}

static void router_gradients(void)
{
    weights_gradients();
    balance_gradients();
}

static void experts_gradients(void)
{
    static const int ends[] = { 2, 2, 6 }, places[] = { 4, 0, 5, 2, 1, 3 };
    struct op_case *linear = op_case_create(OP_EXPERT_LINEAR, &(struct op_attributes){ 0 });
    struct op_case *swiglu = op_case_create(OP_EXPERT_SWIGLU, &(struct op_attributes){ 0 });

    op_case_input(linear, EXPERT_LINEAR_X, 6, 4, DTYPE_F32, 1);
    op_case_input(linear, EXPERT_LINEAR_ENDS, 1, 3, DTYPE_I32, 0);
    op_case_input(linear, EXPERT_LINEAR_W, 3 * 5, 4, DTYPE_F32, 1);
    op_case_output(linear, EXPERT_LINEAR_Y, 6, 5, DTYPE_F32);
    op_case_input(swiglu, EXPERT_SWIGLU_WEIGHT, 3, 2, DTYPE_F32, 1);
    op_case_input(swiglu, EXPERT_SWIGLU_PLACE, 3, 2, DTYPE_I32, 0);
    op_case_input(swiglu, EXPERT_SWIGLU_GU, 6, 8, DTYPE_F32, 1);
    op_case_output(swiglu, EXPERT_SWIGLU_Y, 6, 4, DTYPE_F32);
    for (int i = 0; i < 3; i++)
        tensor_set(&linear->op.in[EXPERT_LINEAR_ENDS], 0, i, ends[i]);
    for (int i = 0; i < 6; i++)
        tensor_set(&swiglu->op.in[EXPERT_SWIGLU_PLACE], i / 2, i % 2, places[i]);
    gradient_check(linear, OP_EXPERT_LINEAR_DX);
    gradient_check(linear, OP_EXPERT_LINEAR_DW);
    gradient_check(swiglu, OP_EXPERT_SWIGLU_GRAD);
    op_case_destroy(linear);
    op_case_destroy(swiglu);
}

const struct op_facts experts_facts[N_OP_KINDS] = {
    [OP_ROUTER] = {
        .example = "router 12x5 fp32 : 12x2 fp32, 12x2 i32, 1x6 fp64",
        .spreads = "s > sss; r > rrp",
        .reference = router,
        .gradients = router_gradients,
    },
    [OP_ROUTER_GRAD] = {
        .example = "router_grad 12x2 fp32, 12x2 fp32, 12x2 i32, 12x5 fp32, 1x1 fp32, "
                   "36x2 i32 : 12x5 fp32",
        .spreads = "ssssss > s; rrrrsr > r; rrrrss > r",
        .reference = router_grad,
    },
    [OP_EXPERT_ORDER] = {
        .example = "expert_order 12x2 i32, 1x1 i32 : 12x2 i32, 1x*5 i32",
        .spreads = "ss > ss; rs > rr; sc > rc",
        .reference = expert_order,
    },
    [OP_DISPATCH] = {
        .example = "dispatch 12x*2 i32, 12x8 bf16 : *20x8 bf16",
        .spreads = "ss > s; rr > r; sc > c; sp > p",
        .reference = dispatch,
    },
    [OP_COMBINE] = {
        .example = "combine 12x*2 i32, *20x8 bf16 : 12x8 bf16",
        .spreads = "ss > s; rr > r; sc > c; sp > p",
        .reference = combine,
    },
    [OP_EXPERT_LINEAR] = {
        .example = "expert_linear 24x8 bf16, 1x5 i32, 30x8 bf16 : 24x6 bf16",
        .spreads = "sss > s; rrs > r; rcr > r; ssr > c; csc > p",
        .reference = expert_linear,
        .gradients = experts_gradients,
    },
    [OP_EXPERT_LINEAR_DX] = {
        .example = "expert_linear_dx 24x6 bf16, 1x5 i32, 30x8 bf16 : 24x8 bf16",
        .spreads = "sss > s; rrs > r; rcr > r; ssc > c; csr > p",
        .reference = expert_linear,
    },
    [OP_EXPERT_LINEAR_DW] = {
        .example = "expert_linear_dw 24x6 bf16, 24x8 bf16, 1x5 i32 : 30x8 fp32",
        .spreads = "sss > s; rrr > p; rrc > r; css > r; scs > c",
        .reference = expert_linear_dw,
    },
    [OP_EXPERT_SWIGLU] = {
        .example = "expert_swiglu 12x2 fp32, 12x2 i32, 24x20 bf16 : 24x10 bf16",
        .spreads = "sss > s; rrr > r; srr > r; ssc > c",
        .reference = expert_swiglu,
    },
    [OP_EXPERT_SWIGLU_GRAD] = {
        .example = "expert_swiglu_grad 12x2 fp32, 12x2 i32, 24x10 bf16, 24x20 bf16 : "
                   "24x20 bf16, 12x2 fp32",
        .spreads = "ssss > ss; rrrr > rr; srrr > rp; sscc > cp",
        .reference = expert_swiglu_grad,
    },
};
