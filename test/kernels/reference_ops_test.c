/*
 * The reference's backward ops against central differences of its forward ones: the loss is the
 * forward's first output times random numbers, operands are matched by their names.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "ops/op_info.h"
#include "support/op_case.h"
#include "support/reference_ops.h"

#define STEP 1e-4
#define TOLERANCE 1e-6

static int find(const struct op_operand *operands, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(operands[i].name, name))
            return i;
    return -1;
}

static double loss(const struct op_shape *forward, const struct tensor *cotangent)
{
    double sum = 0;

    reference_run(forward, 1);
    for (int64_t i = 0; i < tensor_elements(cotangent); i++)
        sum += ((double *)forward->out[0].data)[i] * ((double *)cotangent->data)[i];
    return sum;
}

/* d loss / d input by differences, against `gradient`. */
static void check_gradient(const struct op_shape *forward, const struct tensor *cotangent,
                           const char *name, const struct tensor *input,
                           const struct tensor *gradient)
{
    double *x = input->data, *g = gradient->data, top = 0;

    assert_int_equal(tensor_elements(input), tensor_elements(gradient));
    for (int64_t i = 0; i < tensor_elements(gradient); i++)
        top = fmax(top, fabs(g[i]));
    assert_true(top > 0);
    for (int64_t i = 0; i < tensor_elements(input); i++) {
        double kept = x[i], above, below;

        x[i] = kept + STEP;
        above = loss(forward, cotangent);
        x[i] = kept - STEP;
        below = loss(forward, cotangent);
        x[i] = kept;
        if (fabs((above - below) / (2 * STEP) - g[i]) > TOLERANCE * top)
            fail_msg("%s: d%s[%lld] is %.9g, by differences %.9g", op_info(forward->kind)->name,
                     name, (long long)i, g[i], (above - below) / (2 * STEP));
    }
}

/* Inputs of the gradient op: the output's cotangent, the forward's inputs and what it saved. */
static struct tensor gradient_input(const struct op_shape *forward, const struct tensor *cotangent,
                                    const char *name)
{
    const struct op_info *info = op_info(forward->kind);
    int i = find(info->inputs, info->n_inputs, name);

    if (i >= 0)
        return forward->in[i];
    i = find(info->outputs, info->n_outputs, name);
    if (i >= 0)
        return forward->out[i];
    if (name[0] == 'd' && !strcmp(name + 1, info->outputs[0].name))
        return *cotangent;
    if (strcmp(name, "scale") != 0 && strcmp(name, "choices") != 0)
        assert_string_equal(name, "add");
    return (struct tensor){ 0 };
}

static int is_checked[N_OP_KINDS]; /* gradients' kinds that a test has come to */

static void check_pair(const struct op_case *c, enum op_kind gradient_kind)
{
    const struct op_info *info = op_info(c->op.kind), *gradient_info = op_info(gradient_kind);
    struct op_shape forward = { 0 },
                    gradient = { .kind = gradient_kind, .attributes = c->op.attributes };
    struct tensor cotangent;

    op_case_to_reference(c, &forward);
    cotangent = forward.out[0];
    cotangent.data = malloc((size_t)tensor_elements(&cotangent) * sizeof(double));
    for (int64_t i = 0; i < tensor_elements(&cotangent); i++)
        ((double *)cotangent.data)[i] = sin(1.7 * (double)i + 0.3);
    reference_run(&forward, 1);
    for (int i = 0; i < gradient_info->n_inputs; i++)
        gradient.in[i] = gradient_input(&forward, &cotangent, gradient_info->inputs[i].name);
    for (int i = 0; i < gradient_info->n_outputs; i++) {
        int input = find(info->inputs, info->n_inputs, gradient_info->outputs[i].name + 1);

        if (!strcmp(gradient_info->outputs[i].name, "copy"))
            continue;
        assert_true(input >= 0);
        gradient.out[i] = forward.in[input];
        if (tensor_given(&gradient.out[i]))
            gradient.out[i].data =
                malloc((size_t)tensor_elements(&gradient.out[i]) * sizeof(double));
    }
    reference_run(&gradient, 1);
    is_checked[gradient_kind] = 1;
    for (int i = 0; i < gradient_info->n_outputs; i++) {
        const char *name = gradient_info->outputs[i].name + 1;
        int input = find(info->inputs, info->n_inputs, name);

        if (tensor_given(&gradient.out[i]))
            check_gradient(&forward, &cotangent, name, &forward.in[input], &gradient.out[i]);
        free(gradient.out[i].data);
    }
    free(cotangent.data);
    reference_release(&forward);
}

static void test_embed(void **state)
{
    struct op_case *c = op_case_create(OP_EMBED, &(struct op_attributes){ 0 });

    (void)state;
    op_case_input(c, 0, 6, 1, DTYPE_I32, 0);
    op_case_input(c, 1, 4, 3, DTYPE_F32, 1);
    op_case_output(c, 0, 6, 3, DTYPE_F32);
    for (int t = 0; t < 6; t++)
        tensor_set(&c->op.in[0], t, 0, t % 3 - (t == 3));
    check_pair(c, OP_EMBED_DW);
    op_case_destroy(c);
}

static void test_norms(void **state)
{
    (void)state;
    for (int layer = 0; layer < 2; layer++) {
        struct op_attributes a = { .eps = 1e-3 };
        struct op_case *c = op_case_create(layer ? OP_LAYERNORM : OP_RMSNORM, &a);

        op_case_input(c, 0, 4, 7, DTYPE_F32, 1);
        op_case_input(c, 1, 1, 7, DTYPE_F32, 1);
        if (layer)
            op_case_input(c, 2, 1, 7, DTYPE_F32, 1);
        op_case_output(c, 0, 4, 7, DTYPE_F32);
        for (int i = 1; i < 2 + layer; i++)
            op_case_output(c, i, 4, 1, DTYPE_F32);
        check_pair(c, layer ? OP_LAYERNORM_GRAD : OP_RMSNORM_GRAD);
        op_case_destroy(c);
    }
}

static void test_linear(void **state)
{
    struct op_case *c = op_case_create(OP_LINEAR, &(struct op_attributes){ 0 });

    (void)state;
    op_case_input(c, 0, 4, 5, DTYPE_F32, 1);
    op_case_input(c, 1, 3, 5, DTYPE_F32, 1);
    op_case_input(c, 2, 1, 3, DTYPE_F32, 1);
    op_case_output(c, 0, 4, 3, DTYPE_F32);
    check_pair(c, OP_LINEAR_DX);
    check_pair(c, OP_LINEAR_DW);
    op_case_destroy(c);
}

static void test_add_bias(void **state)
{
    struct op_case *c = op_case_create(OP_ADD_BIAS, &(struct op_attributes){ 0 });

    (void)state;
    op_case_input(c, 0, 4, 5, DTYPE_F32, 1);
    op_case_input(c, 1, 1, 5, DTYPE_F32, 1);
    op_case_output(c, 0, 4, 5, DTYPE_F32);
    check_pair(c, OP_BIAS_GRAD);
    op_case_destroy(c);
}

static void test_rope(void **state)
{
    struct op_attributes a = { .n_heads = 2, .n_kv_heads = 1, .head_dim = 4 };
    struct op_case *c = op_case_create(OP_ROPE, &a);

    (void)state;
    op_case_input(c, 0, 5, 12, DTYPE_F32, 1);
    op_case_input(c, 1, 5, 1, DTYPE_I32, 0);
    op_case_input(c, 2, 6, 4, DTYPE_F32, 1);
    op_case_output(c, 0, 5, 12, DTYPE_F32);
    for (int t = 0; t < 5; t++)
        tensor_set(&c->op.in[1], t, 0, 5 - t);
    check_pair(c, OP_ROPE_GRAD);
    op_case_destroy(c);
}

static void test_head_norm(void **state)
{
    struct op_attributes a = { .n_heads = 4, .n_kv_heads = 2, .head_dim = 3, .eps = 1e-3 };
    struct op_case *c = op_case_create(OP_HEAD_NORM, &a);

    (void)state;
    op_case_input(c, 0, 5, 18, DTYPE_F32, 1);
    op_case_input(c, 1, 1, 3, DTYPE_F32, 1);
    op_case_input(c, 2, 1, 3, DTYPE_F32, 1);
    op_case_output(c, 0, 5, 18, DTYPE_F32);
    op_case_output(c, 1, 5, 6, DTYPE_F32);
    check_pair(c, OP_HEAD_NORM_GRAD);
    op_case_destroy(c);
}

/* Also where the length is less than eps. */
static void test_normalize_rows(void **state)
{
    (void)state;
    for (int short_row = -1; short_row < 3; short_row++) {
        struct op_attributes a = { .eps = 0.01 };
        struct op_case *c = op_case_create(OP_NORMALIZE_ROWS, &a);

        op_case_input(c, 0, 3, 5, DTYPE_F32, 1);
        for (int i = 0; short_row >= 0 && i < 5; i++)
            tensor_set(&c->op.in[0], short_row, i, 1e-3 * tensor_get(&c->op.in[0], short_row, i));
        op_case_output(c, 0, 3, 5, DTYPE_F32);
        op_case_output(c, 1, 3, 1, DTYPE_F32);
        check_pair(c, OP_NORMALIZE_ROWS_GRAD);
        op_case_destroy(c);
    }
}

/* Bits of form: dropout, a window, slopes of 6 heads, documents. */
static void test_attention(void **state)
{
    (void)state;
    for (int form = 0; form < 16; form++) {
        int drop = form & 1;
        struct op_attributes a = { .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 3,
                                   .seq_len = 6,
                                   .scale = 0.6,
                                   .window = form & 2 ? 3 : 0,
                                   .alibi = form & 4 ? 6 : 0,
                                   .p = drop ? 0.3 : 0,
                                   .seed = 5,
                                   .place = 2 };
        struct op_case *c = op_case_create(OP_ATTENTION, &a);

        op_case_attention(c, 12, DTYPE_F32);
        if (drop)
            op_case_input(c, 3, 2, 1, DTYPE_I64, 0);
        if (form & 4) {
            op_case_input(c, 4, 1, 1, DTYPE_I32, 0);
            tensor_set(&c->op.in[4], 0, 0, 2);
        }
        if (form & 8)
            op_case_input(c, 5, 12, 1, DTYPE_I32, 0);
        for (int t = 0; form & 8 && t < 12; t++)
            tensor_set(&c->op.in[5], t, 0, t < 6 ? (t > 0) + (t > 3) * 3 : (t > 8) * 2);
        check_pair(c, OP_ATTENTION_GRAD);
        op_case_destroy(c);
    }
}

static void elementwise(enum op_kind kind, enum op_kind gradient, int in_cols, int out_cols)
{
    struct op_attributes a = { .seq_len = 2, .p = 0.4 };
    struct op_case *c = op_case_create(kind, &a);

    op_case_input(c, 0, 4, in_cols, DTYPE_F32, 2);
    if (kind == OP_DROPOUT)
        op_case_input(c, 1, 2, 1, DTYPE_I64, 0);
    op_case_output(c, 0, 4, out_cols, DTYPE_F32);
    check_pair(c, gradient);
    op_case_destroy(c);
}

static void test_elementwise(void **state)
{
    (void)state;
    elementwise(OP_SWIGLU, OP_SWIGLU_GRAD, 10, 5);
    elementwise(OP_GELU, OP_GELU_GRAD, 7, 7);
    elementwise(OP_DROPOUT, OP_DROPOUT_GRAD, 9, 9);
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

    op_case_input(c, 0, 4, 5, DTYPE_F32, 0);
    fill_logits(&c->op.in[0]);
    op_case_output(c, 0, 4, 2, DTYPE_F32);
    op_case_output(c, 1, 4, 2, DTYPE_I32);
    return c;
}

static void test_router(void **state)
{
    (void)state;
    for (int normalize = 0; normalize < 2; normalize++) {
        struct op_case *c = router_case(&(struct op_attributes){ .normalize = normalize });

        check_pair(c, OP_ROUTER_GRAD);
        op_case_destroy(c);
    }
}

/* Of the balance alone: the weights' gradients are nothing. */
static void test_balance(void **state)
{
    struct op_attributes a = { .normalize = 1, .balance = 0.7 };
    struct op_case *c = router_case(&a);
    struct op_shape forward = { 0 }, gradient = { .kind = OP_ROUTER_GRAD, .attributes = a };
    double none[8] = { 0 }, dlogits[20], *logits;

    (void)state;
    op_case_output(c, 2, 1, 6, DTYPE_F64);
    op_case_to_reference(c, &forward);
    reference_run(&forward, 1);
    gradient.in[0] = (struct tensor){ none, 4, 2, 2, DTYPE_F64 };
    gradient.in[1] = forward.out[0];
    gradient.in[2] = forward.out[1];
    gradient.in[3] = forward.in[0];
    gradient.out[0] = (struct tensor){ dlogits, 4, 5, 5, DTYPE_F64 };
    reference_run(&gradient, 1);
    logits = forward.in[0].data;
    for (int i = 0; i < 20; i++) {
        double kept = logits[i], above, below;

        logits[i] = kept + STEP;
        reference_run(&forward, 1);
        above = a.balance * *(double *)forward.out[2].data;
        logits[i] = kept - STEP;
        reference_run(&forward, 1);
        below = a.balance * *(double *)forward.out[2].data;
        logits[i] = kept;
        assert_true(fabs((above - below) / (2 * STEP) - dlogits[i]) < 1e-8);
    }
    reference_release(&forward);
    op_case_destroy(c);
}

static void test_experts(void **state)
{
    static const int ends[] = { 2, 2, 6 }, places[] = { 4, 0, 5, 2, 1, 3 };
    struct op_case *linear = op_case_create(OP_EXPERT_LINEAR, &(struct op_attributes){ 0 });
    struct op_case *swiglu = op_case_create(OP_EXPERT_SWIGLU, &(struct op_attributes){ 0 });

    (void)state;
    op_case_input(linear, 0, 6, 4, DTYPE_F32, 1);
    op_case_input(linear, 1, 1, 3, DTYPE_I32, 0);
    op_case_input(linear, 2, 3 * 5, 4, DTYPE_F32, 1);
    op_case_output(linear, 0, 6, 5, DTYPE_F32);
    op_case_input(swiglu, 0, 3, 2, DTYPE_F32, 1);
    op_case_input(swiglu, 1, 3, 2, DTYPE_I32, 0);
    op_case_input(swiglu, 2, 6, 8, DTYPE_F32, 1);
    op_case_output(swiglu, 0, 6, 4, DTYPE_F32);
    for (int i = 0; i < 3; i++)
        tensor_set(&linear->op.in[1], 0, i, ends[i]);
    for (int i = 0; i < 6; i++)
        tensor_set(&swiglu->op.in[1], i / 2, i % 2, places[i]);
    check_pair(linear, OP_EXPERT_LINEAR_DX);
    check_pair(linear, OP_EXPERT_LINEAR_DW);
    check_pair(swiglu, OP_EXPERT_SWIGLU_GRAD);
    op_case_destroy(linear);
    op_case_destroy(swiglu);
}

/* The head gives its own gradients: those of scale times the loss that head_loss gives. */
static void test_head(void **state)
{
    struct op_case *c = op_case_create(OP_HEAD_LOSS, &(struct op_attributes){ .chunk = 2 });
    struct op_shape forward = { 0 }, head = { .kind = OP_HEAD_CROSS_ENTROPY };
    double scale = 0.7, dx[5 * 3], dw[6 * 3], sum = 0;
    struct tensor scalar = { &scale, 1, 1, 1, DTYPE_F64 };

    (void)state;
    op_case_input(c, 0, 5, 3, DTYPE_F32, 1);
    op_case_input(c, 1, 6, 3, DTYPE_F32, 1);
    op_case_input(c, 2, 5, 1, DTYPE_I32, 0);
    op_case_output(c, 0, 1, 1, DTYPE_F64);
    for (int t = 0; t < 5; t++)
        tensor_set(&c->op.in[2], t, 0, t == 3 ? -1 : t);
    op_case_to_reference(c, &forward);
    for (int i = 0; i < 3; i++)
        head.in[i] = forward.in[i];
    head.in[3] = scalar;
    head.out[0] = (struct tensor){ dx, 5, 3, 3, DTYPE_F64 };
    head.out[1] = (struct tensor){ dw, 6, 3, 3, DTYPE_F64 };
    head.out[2] = (struct tensor){ &sum, 1, 1, 1, DTYPE_F64 };
    reference_run(&head, 1);
    reference_run(&forward, 1);
    assert_true(fabs(sum - *(double *)forward.out[0].data) < 1e-12);
    check_gradient(&forward, &scalar, "x", &forward.in[0], &head.out[0]);
    check_gradient(&forward, &scalar, "w", &forward.in[1], &head.out[1]);
    reference_release(&forward);
    op_case_destroy(c);
}

/* The last part has one token. */
enum { ROWS = 4, VOCAB = 7, N_PARTS = 3, COLS = 3, N_LOGITS = N_PARTS * ROWS * COLS };

struct parts {
    double logits[N_LOGITS], dlogits[N_LOGITS]; /* [ROWS x COLS], part by part */
    double stats[N_PARTS][ROWS][OPS_N_STATS];
    int32_t target[ROWS];
};

/* The loss that the last part sees; all parts' gradients. */
static double loss_of_parts(struct parts *p)
{
    struct op_attributes a = { .vocab_size = VOCAB };
    struct tensor target = { p->target, ROWS, 1, 1, DTYPE_I32 };
    double scale = 1, loss = 0;

    for (int32_t part = 0; part < 2 * N_PARTS; part++) {
        int i = part % N_PARTS, is_loss = part >= N_PARTS;
        int32_t begin = i * COLS;
        struct op_shape op = { .kind = is_loss ? OP_CROSS_ENTROPY : OP_LOGIT_STATS,
                               .attributes = a };

        op.in[0] = (struct tensor){ p->logits + i * ROWS * COLS, ROWS, COLS, COLS, DTYPE_F64 };
        op.in[is_loss ? 4 : 2] = (struct tensor){ &begin, 1, 1, 1, DTYPE_I32 };
        op.in[is_loss ? 2 : 1] = target;
        if (is_loss) {
            op.in[1] =
                (struct tensor){ p->stats, N_PARTS * ROWS, OPS_N_STATS, OPS_N_STATS, DTYPE_F64 };
            op.in[3] = (struct tensor){ &scale, 1, 1, 1, DTYPE_F64 };
            op.out[0] =
                (struct tensor){ p->dlogits + i * ROWS * COLS, ROWS, COLS, COLS, DTYPE_F64 };
            op.out[1] = (struct tensor){ &loss, 1, 1, 1, DTYPE_F64 };
        } else {
            op.out[0] = (struct tensor){ p->stats[i], ROWS, OPS_N_STATS, OPS_N_STATS, DTYPE_F64 };
        }
        reference_run(&op, 1);
    }
    return loss;
}

static void test_cross_entropy(void **state)
{
    static struct parts p, moved;

    (void)state;
    for (int i = 0; i < N_LOGITS; i++)
        p.logits[i] = 2 * sin(1.9 * i);
    for (int t = 0; t < ROWS; t++)
        p.target[t] = t == 1 ? -1 : t * 5 % VOCAB;
    loss_of_parts(&p);
    for (int i = 0; i < N_LOGITS; i++) {
        double above, below;

        moved = p;
        moved.logits[i] += STEP;
        above = loss_of_parts(&moved);
        moved = p;
        moved.logits[i] -= STEP;
        below = loss_of_parts(&moved);
        if (fabs((above - below) / (2 * STEP) - p.dlogits[i]) > TOLERANCE)
            fail_msg("dlogits %d is %.9g, by differences %.9g", i, p.dlogits[i],
                     (above - below) / (2 * STEP));
    }
}

/* The last: none that a backward may emit was left out. */
static void test_every_gradient_was_checked(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        const char *name = op_info((enum op_kind)kind)->name;
        int is_gradient = str_ends_with(name, "_grad") || str_ends_with(name, "_dx") ||
                          str_ends_with(name, "_dw");

        if (is_gradient && !op_is_collective((enum op_kind)kind) && !is_checked[kind])
            fail_msg("%s is not held against differences here (check_pair)", name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_head_norm),
        cmocka_unit_test(test_normalize_rows),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_add_bias),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_router),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_every_gradient_was_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
