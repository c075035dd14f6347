#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_case.h"

enum { TOKENS = 137, TABLE = 50 };

/* Repeated, neighbouring and absent tokens. */
static int index_of(int t)
{
    return t % 11 == 3 ? -1 : t * t % (TABLE - 7);
}

static void embed_case(int types, int64_t d, int base)
{
    enum dtype act = act_beside(types), res = residual_at(types);
    struct op_case *c = op_case_create(OP_EMBED, &(struct op_attributes){ 0 });

    op_case_input(c, 0, TOKENS, 1, DTYPE_I32, 0);
    op_case_input(c, 1, TABLE, d, act, 1);
    if (base)
        op_case_input(c, 2, TOKENS, d, res, 1);
    op_case_output(c, 0, TOKENS, d, res);
    for (int t = 0; t < TOKENS; t++)
        tensor_set(&c->op.in[0], t, 0, index_of(t));
    op_case_check(c, 1e-7);
    op_case_destroy(c);
}

static void test_embed(void **state)
{
    (void)state;
    for (int base = 0; base < 2; base++) {
        for (int types = 0; types < N_RESIDUALS; types++)
            embed_case(types, 33, base);
        embed_case(0, 1, base);
    }
}

static void embed_dw_case(int64_t n_tokens, int64_t d, int one_row, enum dtype res)
{
    struct op_case *c = op_case_create(OP_EMBED_DW, &(struct op_attributes){ 0 });

    op_case_input(c, 0, n_tokens, d, res, 1);
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
    for (int bf16 = 0; bf16 < 2; bf16++) {
        enum dtype res = bf16 ? DTYPE_BF16 : DTYPE_F32;

        embed_dw_case(TOKENS, 33, 0, res);
        embed_dw_case(TOKENS, 300, 0, res);
        embed_dw_case(TOKENS, 5, 1, res);
        embed_dw_case(1, 5, 0, res);
    }
}

/* ---- a table in parts ---- */

/* The rank's rows of the table, which the parts do not divide. */
static int64_t part_rows(int n_parts)
{
    return (TABLE + n_parts - 1) / n_parts;
}

/* Like the whole's, with `begin` as its last input; table rows beyond TABLE are padding. */
static struct op_case *part_case(const struct op_case *whole, int part, int n_parts)
{
    int dw = whole->op.kind == OP_EMBED_DW;
    struct op_case *c = op_case_create(whole->op.kind, &(struct op_attributes){ 0 });
    int64_t rows = part_rows(n_parts), d = whole->op.out[0].cols, begin = part * rows;

    for (int i = 0; i < 2; i++) {
        struct tensor t = whole->op.in[i];
        int is_table = !dw && i == 1;

        op_case_input(c, i, is_table ? rows : t.rows, t.cols, t.dtype, 1);
        for (int64_t row = 0; row < c->op.in[i].rows; row++)
            for (int64_t col = 0; col < t.cols; col++) {
                int64_t from = is_table ? begin + row : row;

                tensor_set(&c->op.in[i], row, col, from < t.rows ? tensor_get(&t, from, col) : 99);
            }
    }
    op_case_input(c, dw ? 2 : 3, 1, 1, DTYPE_I32, 0);
    tensor_set(&c->op.in[dw ? 2 : 3], 0, 0, (double)begin);
    op_case_output(c, 0, dw ? rows : TOKENS, d, DTYPE_F32);
    return c;
}

static struct op_case *whole_case(enum op_kind kind, int64_t d)
{
    int dw = kind == OP_EMBED_DW;
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ 0 });

    op_case_input(c, !dw, dw ? TOKENS : TABLE, d, DTYPE_F32, 1);
    op_case_input(c, dw, TOKENS, 1, DTYPE_I32, 0);
    op_case_output(c, 0, dw ? TABLE : TOKENS, d, DTYPE_F32);
    for (int t = 0; t < TOKENS; t++)
        tensor_set(&c->op.in[dw], t, 0, index_of(t));
    op_case_run(c, 2, RUN_FIRST);
    return c;
}

/* A token's row is one part's; the others give zeros. So the sum is the whole to the bit. */
static void test_parts_sum_to_the_whole(void **state)
{
    struct op_case *whole = whole_case(OP_EMBED, 33);

    (void)state;
    for (int n = 1; n <= 4; n++) {
        static float sum[TOKENS][33];

        memset(sum, 0, sizeof sum);
        for (int part = 0; part < n; part++) {
            struct op_case *c = part_case(whole, part, n);

            op_case_check(c, 1e-7);
            op_case_run(c, 3, RUN_FIRST);
            for (int t = 0; t < TOKENS; t++)
                for (int i = 0; i < 33; i++)
                    sum[t][i] += (float)tensor_get(&c->op.out[0], t, i);
            op_case_destroy(c);
        }
        for (int t = 0; t < TOKENS; t++)
            for (int i = 0; i < 33; i++)
                assert_true((double)sum[t][i] == tensor_get(&whole->op.out[0], t, i));
    }
    op_case_destroy(whole);
}

static void test_parts_of_dw(void **state)
{
    struct op_case *whole = whole_case(OP_EMBED_DW, 33);

    (void)state;
    for (int n = 1; n <= 4; n++)
        for (int part = 0; part < n; part++) {
            struct op_case *c = part_case(whole, part, n);
            int64_t begin = part * part_rows(n);

            op_case_check(c, 1e-6);
            op_case_run(c, 3, RUN_FIRST);
            for (int64_t row = 0; row < c->op.out[0].rows; row++)
                for (int64_t i = 0; i < 33; i++) {
                    double wanted =
                        begin + row < TABLE ? tensor_get(&whole->op.out[0], begin + row, i) : 0;

                    assert_true(tensor_get(&c->op.out[0], row, i) == wanted);
                }
            op_case_destroy(c);
        }
    op_case_destroy(whole);
}

/* Tokens whose rows are elsewhere leave the base as it is. */
static void test_part_on_top_of_base(void **state)
{
    struct op_case *c = op_case_create(OP_EMBED, &(struct op_attributes){ 0 });

    (void)state;
    op_case_input(c, 0, TOKENS, 1, DTYPE_I32, 0);
    op_case_input(c, 1, 9, 33, DTYPE_BF16, 1);
    op_case_input(c, 2, TOKENS, 33, DTYPE_F32, 1);
    op_case_input(c, 3, 1, 1, DTYPE_I32, 0);
    op_case_output(c, 0, TOKENS, 33, DTYPE_F32);
    tensor_set(&c->op.in[3], 0, 0, 11);
    for (int t = 0; t < TOKENS; t++)
        tensor_set(&c->op.in[0], t, 0, index_of(t));
    op_case_check(c, 1e-7);
    op_case_destroy(c);
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
    op_case_run(c, 1, RUN_AGAIN);
    assert_true(tensor_get(&c->op.out[0], 0, 0) == 0x1p24 + 2);
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_embed_dw),
        cmocka_unit_test(test_parts_sum_to_the_whole),
        cmocka_unit_test(test_parts_of_dw),
        cmocka_unit_test(test_part_on_top_of_base),
        cmocka_unit_test(test_embed_dw_adds_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
