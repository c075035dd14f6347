/*
 * experts_test.c - what is refused of rows that go to experts, on one rank or on several
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_text.h"

static void text_is(const char *op, const char *wanted)
{
    struct op_text text;
    struct err err = { 0 };

    op_text_parse(&text, op);
    assert_int_equal(op_check(&text.op, &err), -1);
    assert_string_equal(err.text, wanted);
}

static void test_messages(void **state)
{
    (void)state;
    text_is("send_rows 12x8 fp32, 36x2 i32 : 36x8 fp32",
            "send_rows: n_experts is 10, wanted a multiple of 3 ranks");
    text_is("send_rows 12x8 fp32, 24x11 i32 : 24x8 fp32",
            "send_rows: choices has 11 columns, wanted at most 10");
    text_is("return_rows 49x8 fp32, 24x2 i32 : 24x8 fp32",
            "return_rows: y has 49 rows, wanted at most 48");
    text_is("return_rows 48x8 fp32, 24x2 i32 : 25x8 fp32",
            "return_rows: x has 25 rows, wanted a part of 24 by 2");
    text_is("expert_order 12x2 i32, 1x1 i32 : 12x2 i32, 1x7 i32",
            "expert_order: n_experts is 30, wanted a multiple of 7");
    text_is("dispatch 12x2 i32, 12x8 fp32 : 25x8 fp32",
            "dispatch: there are 25 rows for 24 places");
    text_is("combine 12x2 i32, 25x8 fp32 : 12x8 fp32", "combine: there are 25 rows for 24 places");
    text_is("expert_swiglu 12x2 fp32, 12x2 i32, 25x20 fp32 : 25x10 fp32",
            "expert_swiglu: there are 25 rows for 24 places");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
