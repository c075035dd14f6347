/*
 * The reference's backward ops against central differences of its forward ones, as each family
 * (test/support/ops) asks for; and that no gradient was left out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/str.h"
#include "support/gradient_check.h"

static void test_gradients(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (op_facts((enum op_kind)kind)->gradients)
            op_facts((enum op_kind)kind)->gradients();
}

/* The last: none that a backward may emit was left out. */
static void test_every_gradient_was_checked(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        const char *name = op_info((enum op_kind)kind)->name;
        int is_gradient = str_ends_with(name, "_grad") || str_ends_with(name, "_dx") ||
                          str_ends_with(name, "_dw");

        if (is_gradient && !op_is_collective((enum op_kind)kind) &&
            !gradient_was_checked((enum op_kind)kind))
            fail_msg("%s is not held against differences (gradients, test/support/op_facts.h)",
                     name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_every_gradient_was_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
