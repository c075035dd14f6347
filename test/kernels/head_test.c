/*
 * head_test.c - head_cross_entropy and head_loss against the reference, and what they promise
 * besides
 *
 * 16-bit activations round the gradients of logits before the products over them: hence the wide
 * tolerances there. A logit of magnitude 20 has an error of some ulps of its own, 1e-6 each, which
 * its probability has relatively: hence 2e-5 for fp32.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

/* vocab 2,100 crosses two blocks of the sum of exponentials; 9,001 and 40,003 are several steps
 * of a GPU's block, which writes over what it has read. */
static const struct dims {
    int64_t tokens, d, vocab;
    int chunk;
} all_dims[] = { { 1, 1, 1, 1 },    { 1, 8, 17, 4 },    { 5, 7, 33, 2 },    { 12, 16, 64, 4 },
                 { 9, 3, 31, 64 },  { 7, 12, 2100, 3 }, { 70, 45, 83, 32 }, { 37, 24, 300, 16 },
                 { 3, 5, 9001, 2 }, { 1, 3, 40003, 1 } };

#define SCALE 0.3125
#define N_DIMS (int)(sizeof all_dims / sizeof *all_dims)

#define Z 0.03 /* large: logits of some tens make z-loss as large as the loss */

/* Every third target is none. Weights of 8 / sqrt(d) make the softmax far from flat. */
static struct op_case *make_with(enum op_kind kind, struct dims dims, enum dtype act, double z)
{
    struct op_case *c =
        op_case_create(kind, &(struct op_attributes){ .chunk = dims.chunk, .z = z });

    op_case_input(c, HEAD_CROSS_ENTROPY_X, dims.tokens, dims.d, act, 0);
    op_case_fill(&c->op.in[HEAD_CROSS_ENTROPY_X], 3, 3 / sqrt((double)dims.d));
    op_case_input(c, HEAD_CROSS_ENTROPY_W, dims.vocab, dims.d, act, 0);
    op_case_fill(&c->op.in[HEAD_CROSS_ENTROPY_W], 4, 1);
    op_case_input(c, HEAD_CROSS_ENTROPY_TARGET, dims.tokens, 1, DTYPE_I32, 0);
    for (int64_t row = 0; row < dims.tokens; row++)
        tensor_set(&c->op.in[HEAD_CROSS_ENTROPY_TARGET], row, 0,
                   row % 3 == 1 ? -1 : (double)(row * 7919 % dims.vocab));
    if (kind == OP_HEAD_LOSS) {
        op_case_output(c, HEAD_LOSS_LOSS, 1, 1, DTYPE_F64);
        return c;
    }
    op_case_input(c, HEAD_CROSS_ENTROPY_SCALE, 1, 1, DTYPE_F32, 0);
    tensor_set(&c->op.in[HEAD_CROSS_ENTROPY_SCALE], 0, 0, SCALE);
    op_case_output(c, HEAD_CROSS_ENTROPY_DX, dims.tokens, dims.d, act);
    op_case_output(c, HEAD_CROSS_ENTROPY_DW, dims.vocab, dims.d, DTYPE_F32);
    op_case_output(c, HEAD_CROSS_ENTROPY_LOSS, 1, 1, DTYPE_F64);
    if (z > 0)
        op_case_output(c, HEAD_CROSS_ENTROPY_SQUARES, 1, 1, DTYPE_F64);
    return c;
}

static struct op_case *make(enum op_kind kind, struct dims dims, enum dtype act)
{
    return make_with(kind, dims, act, 0);
}

/* The loss alone is the loss beside gradients, to the bit. */
static void check_head(struct dims dims, enum dtype act)
{
    double tolerance = act == DTYPE_BF16 ? 1e-2 : act == DTYPE_F16 ? 1.2e-3 : 2e-5;
    struct op_case *c = make(OP_HEAD_CROSS_ENTROPY, dims, act);
    struct op_case *loss = make(OP_HEAD_LOSS, dims, act);
    struct op_case *with_z = make_with(OP_HEAD_CROSS_ENTROPY, dims, act, Z);

    op_case_check(c, tolerance);
    op_case_check(loss, 5e-6);
    op_case_check(with_z, tolerance);
    op_case_run(c, 2, RUN_FIRST);
    op_case_run(loss, 3, RUN_FIRST);
    op_case_same(&loss->op.out[0], &c->op.out[HEAD_CROSS_ENTROPY_LOSS],
                 "is not the loss that is computed with gradients");
    op_case_run(with_z, 2, RUN_FIRST);
    op_case_same(&loss->op.out[0], &with_z->op.out[HEAD_CROSS_ENTROPY_LOSS],
                 "is not the loss that is computed with a z-loss");
    op_case_destroy(c);
    op_case_destroy(loss);
    op_case_destroy(with_z);
}

static void test_head(void **state)
{
    (void)state;
    for (int i = 0; i < N_DIMS; i++)
        for (int i_act = 0; i_act < N_ACTS; i_act++)
            check_head(all_dims[i], act_at(i_act));
}

/* With one chunk, dw += is the finished product and one add; so is the loss. */
static void test_accumulates_finished_products(void **state)
{
    struct dims dims = { 12, 16, 64, 12 };
    struct op_case *wanted = make(OP_HEAD_CROSS_ENTROPY, dims, DTYPE_F32);
    struct op_case *c = make(OP_HEAD_CROSS_ENTROPY, dims, DTYPE_F32);
    const struct tensor *dw = &c->op.out[HEAD_CROSS_ENTROPY_DW];
    const struct tensor *product = &wanted->op.out[HEAD_CROSS_ENTROPY_DW];
    const struct tensor *loss = &wanted->op.out[HEAD_CROSS_ENTROPY_LOSS];

    (void)state;
    op_case_run(wanted, 2, RUN_FIRST);
    op_case_fill(dw, 99, 1);
    for (int64_t row = 0; row < dw->rows; row++)
        for (int64_t col = 0; col < dw->cols; col++) {
            float sum = (float)tensor_get(dw, row, col) + (float)tensor_get(product, row, col);

            tensor_set(product, row, col, (double)sum);
        }
    tensor_set(&c->op.out[HEAD_CROSS_ENTROPY_LOSS], 0, 0, 1234.5);
    tensor_set(loss, 0, 0, 1234.5 + tensor_get(loss, 0, 0));
    op_case_run(c, 3, RUN_AGAIN);
    op_case_same_outputs(c, wanted, "is not the product added once");
    op_case_destroy(wanted);
    op_case_destroy(c);
}

/* Logits of +-1e4 neither overflow nor lose the loss. */
static void test_large_logits(void **state)
{
    struct dims dims = { 2, 1, 3, 2 };
    struct op_case *c = make(OP_HEAD_CROSS_ENTROPY, dims, DTYPE_F32);
    static const double w[] = { 1e4, -1e4, 0 };

    (void)state;
    for (int64_t v = 0; v < 3; v++)
        tensor_set(&c->op.in[HEAD_CROSS_ENTROPY_W], v, 0, w[v]);
    for (int64_t row = 0; row < 2; row++) {
        tensor_set(&c->op.in[HEAD_CROSS_ENTROPY_X], row, 0, 1);
        tensor_set(&c->op.in[HEAD_CROSS_ENTROPY_TARGET], row, 0, (double)row);
    }
    op_case_run(c, 1, RUN_FIRST);
    assert_true(tensor_get(&c->op.out[HEAD_CROSS_ENTROPY_LOSS], 0, 0) == 2e4);
    assert_true(tensor_get(&c->op.out[HEAD_CROSS_ENTROPY_DX], 0, 0) == 0);
    assert_true(tensor_get(&c->op.out[HEAD_CROSS_ENTROPY_DX], 1, 0) == 2e4 * SCALE);
    op_case_destroy(c);
}

/* A NaN must reach the loss, not be skipped by the search for the largest logit. */
static void test_nan_reaches_the_loss(void **state)
{
    struct dims dims = { 3, 8, 40, 2 };
    struct op_case *c = make(OP_HEAD_CROSS_ENTROPY, dims, DTYPE_F32);

    (void)state;
    tensor_set(&c->op.in[HEAD_CROSS_ENTROPY_W], 21, 3, (double)NAN);
    op_case_run(c, 2, RUN_FIRST);
    assert_true(isnan(tensor_get(&c->op.out[HEAD_CROSS_ENTROPY_LOSS], 0, 0)));
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_accumulates_finished_products),
        cmocka_unit_test(test_large_logits),
        cmocka_unit_test(test_nan_reaches_the_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
