#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_facts.h"
#include "support/op_text.h"

static double flops(enum op_kind kind)
{
    struct op_text text;

    op_text_parse(&text, op_example(kind));
    return op_flops(&text.op);
}

static double bytes(enum op_kind kind)
{
    struct op_text text;

    op_text_parse(&text, op_example(kind));
    return op_bytes(&text.op);
}

/* Counted by walking the loops: T 12 in sequences of 6, h 4, e 2. */
static void test_products(void **state)
{
    double pairs = 0;

    (void)state;
    for (int query = 0; query < 6; query++)
        for (int key = 0; key <= query; key++)
            pairs += 2 * 4;
    assert_true(flops(OP_LINEAR) == 2 * 12 * 8 * 6);
    assert_true(flops(OP_LINEAR_DX) == 2 * 12 * 8 * 6);
    assert_true(flops(OP_LINEAR_DW) == 2 * 12 * 8 * 6);
    assert_true(flops(OP_ATTENTION) == 2 * 2 * pairs * 2);
    assert_true(flops(OP_ATTENTION_GRAD) == 5 * 2 * pairs * 2);
    assert_true(flops(OP_HEAD_LOSS) == 2 * 12 * 8 * 20);
    assert_true(flops(OP_HEAD_CROSS_ENTROPY) == 3 * 2 * 12 * 8 * 20);
    assert_true(flops(OP_EXPERT_LINEAR) == 2 * 24 * 8 * 6);
    assert_true(flops(OP_EXPERT_LINEAR_DX) == 2 * 24 * 8 * 6);
    assert_true(flops(OP_EXPERT_LINEAR_DW) == 2 * 24 * 8 * 6);
    assert_true(flops(OP_DISPATCH) == 0);
    assert_true(flops(OP_COMBINE) == 20 * 8);
    assert_true(flops(OP_EXPERT_SWIGLU) == 6 * 24 * 10);
    assert_true(flops(OP_ADD) == 12 * 8);
    assert_true(flops(OP_CAST) == 0);
    assert_true(flops(OP_REDUCE_SCATTER) == 18);
    assert_true(flops(OP_GATHER_HEADS_GRAD) == 12 * 2); /* a column of k and one of v */
    assert_true(flops(OP_HEADS_TO_ROWS) == 12 * 8);     /* k and v of two heads: one rank's more */
    assert_true(flops(OP_SCATTER_SEQUENCE) == 3 * 12 * 8);
    assert_true(flops(OP_SCATTER_WINDOW) == 2 * 2 * 8);
    assert_true(flops(OP_ADD_BIAS) == 12 * 6);
    assert_true(flops(OP_LOGIT_STATS) == 3 * 12 * 20);
    assert_true(flops(OP_CROSS_ENTROPY) == 3 * 12 * 20);
}

/* The same walk, where a query sees few keys; and a cache of 9 rows for 6 queries. */
static void test_window(void **state)
{
    (void)state;
    for (int window = 0; window < 9; window++) {
        struct op_text text;
        double pairs = 0;

        for (int query = 0; query < 6; query++)
            for (int key = 0; key <= query; key++)
                pairs += !window || key > query - window ? 2 * 4 : 0;
        op_text_parse(&text, op_example(OP_ATTENTION));
        text.op.attributes.window = window;
        assert_true(fabs(op_flops(&text.op) - 2 * 2 * pairs * 2) < 1e-9);
        op_text_parse(&text, op_example(OP_ATTENTION_CACHED));
        text.op.in[4].rows = text.op.in[5].rows = 18; /* without segments */
        text.op.in[7].rows = text.op.in[8].rows = 0;
        text.op.attributes.window = window;
        assert_true(op_flops(&text.op) == 2 * 2 * 12 * (window ? window : 9) * 4 * 2);
        int rows = window && window < 4 ? window + 5 : 9;
        assert_true(op_bytes(&text.op) ==
                    12 * 16 * 2 + 12 * 4 + 2 * 2 * (2 * rows * 4 * 2) + 4 + 12 * 8 * 2);
    }
}

static void test_bytes(void **state)
{
    (void)state;
    assert_true(bytes(OP_LINEAR) == 12 * 8 * 2 + 6 * 8 * 2 + 6 * 4 + 12 * 6 * 2);
    /* Only looked-up rows of a table move; accumulators are read and written. */
    assert_true(bytes(OP_ROPE) == 2 * 12 * 12 * 2 + 12 * 4 + 30 * 2 * 4);
    assert_true(bytes(OP_EMBED) == 12 * 4 + 12 * 8 * 2 + 2 * 12 * 8 * 4 + 4);
    assert_true(bytes(OP_EMBED_DW) == 12 * 8 * 4 + 12 * 4 + 2 * 12 * 8 * 4 + 4);
    assert_true(bytes(OP_SELECT_ROWS) == 3 * 8 * 2 + 3 * 4 + 3 * 8 * 2);
    assert_true(bytes(OP_ADAMW) == 20 * 8 * (4 + 2 * 12 + 2) + 4 * 4 + 4 + 4 + 2 * 8 + 4);
    assert_true(bytes(OP_ACCUMULATE) == 20 * 8 * 12);
    assert_true(bytes(OP_BIAS_GRAD) == 12 * 6 * 2 + 2 * 6 * 4);
    assert_true(bytes(OP_CROSS_ENTROPY) ==
                12 * 20 * (4 + 2) + 24 * 3 * 4 + 12 * 4 + 4 + 4 + 2 * 8 + 2 * 8);
}

/* Without a gradient only the statistics are looked at. */
static void test_loss_alone(void **state)
{
    struct op_text text;

    (void)state;
    op_text_parse(&text, op_example(OP_CROSS_ENTROPY));
    text.op.out[0] = (struct tensor){ 0 };
    assert_true(op_flops(&text.op) == 0);
    assert_true(op_bytes(&text.op) == 24 * 3 * 4 + 12 * 4 + 4 + 4 + 2 * 8 + 2 * 8);
}

/* Each way of choosing, counted. */
static void test_share_of_experts(void **state)
{
    (void)state;
    for (int m = 1; m <= 8; m++)
        for (int own = 1; own <= m; own++)
            for (int k = 1; k <= m; k++) {
                int n_ways = 0, n_with = 0;

                for (int set = 0; set < 1 << m; set++) {
                    n_ways += __builtin_popcount((unsigned)set) == k;
                    n_with += __builtin_popcount((unsigned)set) == k && set & ((1 << own) - 1);
                }
                assert_true(fabs(ops_chosen_share(m, own, k) - (double)n_with / n_ways) < 1e-12);
            }
}

static void test_every_kind_is_priced(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        assert_true((bytes((enum op_kind)kind) > 0) == (kind != OP_AWAIT));
        assert_true(flops((enum op_kind)kind) > 0 || kind == OP_CAST || kind == OP_SELECT_ROWS ||
                    kind == OP_ALL_GATHER || kind == OP_GATHER_HEADS || kind == OP_ROWS_TO_HEADS ||
                    kind == OP_GATHER_SEQUENCE || kind == OP_GATHER_WINDOW ||
                    kind == OP_ALL_REDUCE_SCALAR || kind == OP_ROTATE ||
                    kind == OP_EXCHANGE_CODES || kind == OP_GATHER_CODES || kind == OP_KEEP_ERROR ||
                    kind == OP_SEND || kind == OP_RECEIVE || kind == OP_TO_HOST ||
                    kind == OP_TO_DEVICE || kind == OP_AWAIT || kind == OP_SUM_RUNS ||
                    kind == OP_EXPERT_ORDER || kind == OP_DISPATCH || kind == OP_SEND_ROWS ||
                    kind == OP_RETURN_ROWS || kind == OP_PAGE_START || kind == OP_PAGE_OUT ||
                    kind == OP_PAGE_IN);
    }
}

/* What a report counts as collectives are those that travel beside the compute ops. */
static void test_families(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        const struct op_info *info = op_info((enum op_kind)kind);

        if ((info->family == FAMILY_COLLECTIVE) != op_is_collective((enum op_kind)kind))
            fail_msg("%s is counted with the wrong family", info->name);
    }
    assert_int_equal(op_info(OP_LINEAR_DW)->family, FAMILY_LINEAR);
    assert_int_equal(op_info(OP_ADD_LAYERNORM)->family, FAMILY_NORM);
    assert_int_equal(op_info(OP_CROSS_ENTROPY)->family, FAMILY_HEAD);
    assert_int_equal(op_info(OP_CAST)->family, FAMILY_OTHER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),         cmocka_unit_test(test_families),
        cmocka_unit_test(test_window),           cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_loss_alone),       cmocka_unit_test(test_every_kind_is_priced),
        cmocka_unit_test(test_share_of_experts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
