/*
 * families_test.c - kernels of those kinds whose facts (test/support/ops) say at what they must be
 * right
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_facts.h"

static void test_kernels(void **state)
{
    int n = 0;

    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (op_facts((enum op_kind)kind)->kernels) {
            op_facts((enum op_kind)kind)->kernels();
            n++;
        }
    assert_true(n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_kernels) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
