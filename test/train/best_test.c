/*
 * best_test.c - the list of the best checkpoints: its order, its bound, what is kept of it
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdlib.h>
#include <cmocka.h>

#include "train/best.h"

/* Against sorting all: any order of losses, any bound. */
static void the_lowest_stay(void **state)
{
    unsigned seed = 1;

    (void)state;
    for (int n_max = 0; n_max <= 5; n_max++)
        for (int round = 0; round < 200; round++) {
            struct best_checkpoints best = { 0 };
            double losses[12];

            for (int step = 0; step < 12; step++) {
                seed = seed * 1103515245 + 12345;
                losses[step] = (double)(seed >> 16 & 7);
                best_note(&best, n_max, step, losses[step]);
            }
            assert_int_equal(best.n, n_max);
            for (int i = 0; i < best.n; i++) {
                int64_t step = best.list[i].step;
                int n_before = 0;

                assert_true(best.list[i].loss == losses[step]);
                for (int k = 0; k < 12; k++)
                    n_before += losses[k] < losses[step] || (losses[k] == losses[step] && k < step);
                assert_int_equal(n_before, i);
            }
        }
}

static void what_is_none_is_left_out(void **state)
{
    struct best_checkpoints best = { 0 };

    (void)state;
    best_note(&best, 2, 4, NAN);
    best_note(&best, 2, 8, INFINITY);
    assert_int_equal(best.n, 0);
    best_note(&best, 2, 4, 2);
    best_note(&best, 2, 8, 1);
    best_note(&best, 2, 8, 3); /* evaluated again */
    assert_int_equal(best.n, 2);
    assert_int_equal(best.list[1].step, 8);
    best_note(&best, 2, 8, NAN);
    assert_int_equal(best.n, 1);
    best_forget(&best, 4);
    best_forget(&best, 99);
    assert_int_equal(best.n, 0);
}

static void it_reads_what_it_prints(void **state)
{
    static const char *const damaged[] = {
        "", "[", "{}", "{\"metric\":\"eval.loss\"}",
        "{\"metric\":\"eval.loss\",\"steps\":[1,[2],[3,\"x\"]]}"
    };
    struct best_checkpoints best = { 0 }, again;
    struct str text = { 0 };

    (void)state;
    best_note(&best, 3, 100, 0.1 + 0.2);
    best_note(&best, 3, INT64_C(1) << 40, 1.0 / 3);
    best_print(&best, "eval.loss", &text);
    best_read(&again, "eval.loss", str_text(&text));
    assert_int_equal(again.n, 2);
    for (int i = 0; i < 2; i++) {
        assert_true(again.list[i].step == best.list[i].step);
        assert_true(again.list[i].loss == best.list[i].loss);
    }
    best_read(&again, "eval.kjv.loss", str_text(&text));
    assert_int_equal(again.n, 0);
    str_release(&text);
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        best_read(&again, "eval.loss", damaged[i]);
        assert_int_equal(again.n, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lowest_stay),
        cmocka_unit_test(what_is_none_is_left_out),
        cmocka_unit_test(it_reads_what_it_prints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
