#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

enum { TOKENS = 137, TABLE = 50 };

/* Repeated, neighbouring and absent tokens. */
static int index_of(int t)
{
    return t % 11 == 3 ? -1 : t * t % (TABLE - 7);
}

static void embed_case(enum dtype act, int64_t d, int base)
{
    struct op_case *c = op_case_create(OP_EMBED, &(struct op_attributes){ 0 });

    op_case_input(c, 0, TOKENS, 1, DTYPE_I32, 0);
    op_case_input(c, 1, TABLE, d, act, 1);
    if (base)
        op_case_input(c, 2, TOKENS, d, DTYPE_F32, 1);
    op_case_output(c, 0, TOKENS, d, DTYPE_F32);
    for (int t = 0; t < TOKENS; t++)
        tensor_set(&c->op.in[0], t, 0, index_of(t));
    op_case_check(c, 1e-7);
    op_case_destroy(c);
}

static void test_embed(void **state)
{
    (void)state;
    for (int base = 0; base < 2; base++) {
        embed_case(DTYPE_F32, 33, base);
        embed_case(DTYPE_BF16, 33, base);
        embed_case(DTYPE_F32, 1, base);
    }
}

static void embed_dw_case(int64_t n_tokens, int64_t d, int one_row)
{
    struct op_case *c = op_case_create(OP_EMBED_DW, &(struct op_attributes){ 0 });

    op_case_input(c, 0, n_tokens, d, DTYPE_F32, 1);
    op_case_input(c, 1, n_tokens, 1, DTYPE_I32, 0);
    op_case_output(c, 0, TABLE, d, DTYPE_F32);
    for (int t = 0; t < n_tokens; t++)
        tensor_set(&c->op.in[1], t, 0, one_row ? 5 : index_of(t));
    op_case_check(c, 1e-6);
    op_case_destroy(c);
}

static void test_embed_dw(void **state)
{
    (void)state;
    embed_dw_case(TOKENS, 33, 0);
    embed_dw_case(TOKENS, 300, 0);
    embed_dw_case(TOKENS, 5, 1);
    embed_dw_case(1, 5, 0);
}

/* The contribution is complete before its one add: 2^24 + (1 + 1) is not (2^24 + 1) + 1. */
static void test_embed_dw_adds_once(void **state)
{
    struct op_case *c = op_case_create(OP_EMBED_DW, &(struct op_attributes){ 0 });

    (void)state;
    op_case_input(c, 0, 2, 1, DTYPE_F32, 0);
    op_case_input(c, 1, 2, 1, DTYPE_I32, 0);
    op_case_output(c, 0, 1, 1, DTYPE_F32);
    tensor_set(&c->op.in[0], 0, 0, 1);
    tensor_set(&c->op.in[0], 1, 0, 1);
    tensor_set(&c->op.out[0], 0, 0, 0x1p24);
    op_case_run(c, 1, 0);
    assert_true(tensor_get(&c->op.out[0], 0, 0) == 0x1p24 + 2);
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_embed_dw),
        cmocka_unit_test(test_embed_dw_adds_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
