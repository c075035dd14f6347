/*
 * optimizers_test.c - the table of optimizers, and what their ops refuse
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "ops/optimizers.h"
#include "support/op_text.h"

static void refused(const char *text, const char *message)
{
    struct op_text op;
    struct err err = { 0 };

    op_text_parse(&op, text);
    assert_int_equal(op_check(&op.op, &err), -1);
    assert_string_equal(err.text, message);
}

static void accepted(const char *text)
{
    struct op_text op;
    struct err err = { 0 };

    op_text_parse(&op, text);
    if (op_check(&op.op, &err) < 0)
        fail_msg("%s", err.text);
}

#define SAME "2x200 fp32, 1x4 fp32, 1x1 fp32, 1x1 i32, 2x200 fp32, "

static void states_are_checked(void **state)
{
    (void)state;
    accepted("adamw " SAME "2x200 u8, 2x200 u8, -, -, -, -, 1x2 fp32, 1x2 fp32");
    accepted("lion " SAME "2x200 u8, -, -, -, -, -, 1x2 fp32");
    accepted("cadam " SAME "2x200 fp16, -, -, -, -, -, 1x2 fp32");
    refused("lion " SAME "2x200 fp32, 2x200 fp32", "lion: v is given, wanted none");
    refused("adamw " SAME "2x200 u8, 2x200 u8",
            "adamw: m is u8 and scales are missing, wanted a scale for each state");
    refused("lion " SAME "2x200 fp32, -, -, -, -, -, 1x2 fp32",
            "lion: m is fp32 and scales are given, wanted a scale for each state of fp16 or u8 "
            "alone");
    refused("lion " SAME "2x200 u8, -, -, -, -, -, 1x1 fp32",
            "lion: m_scale is [1 x 1], wanted [1 x 2]");
    refused("cadam " SAME "2x200 fp32, -, -, -, -, -, 1x2 fp32",
            "cadam: m is fp32, wanted a dtype of its states");
    refused("sgd " SAME "2x200 u8, -, -, -, -, -, 1x2 fp32",
            "sgd: m is u8, wanted a dtype of its states");
}

/* Each row has a word, which is its op's name but for muon's, that is of several ops. */
static void rows_have_words(void **state)
{
    (void)state;
    for (int rule = 0; rule < N_OPTIMIZER_RULES; rule++) {
        const struct optimizer_row *row = optimizer_row((enum optimizer_rule)rule);
        const char *word = choice_word(optimizer_choices, rule);

        if (rule != RULE_MUON)
            assert_string_equal(word, op_name(row->kind));
        assert_ptr_equal(optimizer_row_of(row->kind), row);
        assert_true(optimizer_allows(row, DTYPE_F32));
        assert_true((row->beta1 > 0) + (row->momentum > 0) >= 1);
        assert_true(row->weight_decay > 0);
    }
}

static void bytes_of_a_parameter(void **state)
{
    const struct optimizer_row *adamw = optimizer_row(RULE_ADAMW);
    const struct optimizer_row *cadam = optimizer_row(RULE_CADAM);
    double scale = 4 / 256.0;

    (void)state;
    assert_true(optimizer_bytes(adamw, DTYPE_BF16, DTYPE_F32, false) == 12);
    assert_true(optimizer_bytes(adamw, DTYPE_BF16, DTYPE_F32, true) == 10);
    assert_true(optimizer_bytes(adamw, DTYPE_BF16, DTYPE_BF16, false) == 4);
    assert_true(optimizer_bytes(adamw, DTYPE_BF16, DTYPE_U8, false) == 6 + 2 * scale);
    assert_true(optimizer_bytes(adamw, DTYPE_F32, DTYPE_F32, false) == 8);
    assert_true(optimizer_bytes(cadam, DTYPE_BF16, DTYPE_F32, true) == 4 + scale);
    assert_true(optimizer_bytes(optimizer_row(RULE_LION), DTYPE_BF16, DTYPE_F32, false) == 8);
    assert_true(optimizer_bytes(optimizer_row(RULE_SGD), DTYPE_F32, DTYPE_BF16, false) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_checked),
        cmocka_unit_test(rows_have_words),
        cmocka_unit_test(bytes_of_a_parameter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
