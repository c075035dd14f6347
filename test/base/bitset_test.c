/*
 * bitset_test.c - every member by itself, also beyond the first word
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/bitset.h"

static void each_member_alone(void **state)
{
    (void)state;
    for (int member = 0; member < BITSET_MAX; member++) {
        struct bitset set = { 0 };

        assert_true(bitset_is_empty(&set));
        bitset_add(&set, member);
        assert_false(bitset_is_empty(&set));
        for (int other = 0; other < BITSET_MAX; other++)
            assert_int_equal(bitset_has(&set, other), other == member);
    }
}

static void members_stay(void **state)
{
    struct bitset set = { 0 };

    (void)state;
    for (int round = 0; round < 2; round++)
        for (int member = 0; member < BITSET_MAX; member += 3)
            bitset_add(&set, member);
    for (int member = 0; member < BITSET_MAX; member++)
        assert_int_equal(bitset_has(&set, member), member % 3 == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_member_alone),
        cmocka_unit_test(members_stay),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
