/*
 * offload_test.c - copies between spaces, among ops and collectives, on the CPU
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/offload.h"

/* Whatever comes late, in whatever order, nothing is read that is not there. */
static void test_nothing_is_lost(void **state)
{
    (void)state;
    for (int tp_size = 1; tp_size <= OFFLOAD_TP_MAX; tp_size *= 2)
        for (uint64_t seed = 0; seed < 6; seed++) {
            struct offload_play play = {
                .shape = { .n_layers = 6,
                           .tp_size = tp_size,
                           .n_micro_batches = 7,
                           .rows = 3,
                           .cols = 5 },
                .poison = (int)(seed % 2),
                .seed = seed,
            };

            assert_int_equal(offload_run(&play), 0);
        }
}

/* More than the comm thread copies in one turn. */
static void test_large_values(void **state)
{
    struct offload_play play = {
        .shape = { .n_layers = 3, .tp_size = 2, .n_micro_batches = 3, .rows = 310, .cols = 257 },
        .seed = 9,
    };

    (void)state;
    assert_int_equal(offload_run(&play), 0);
    play.seed = 0;
    play.poison = 1;
    assert_int_equal(offload_run(&play), 0);
}

/* A rank alone has no comm: its copies need none. */
static void test_alone(void **state)
{
    struct offload_play play = {
        .shape = { .n_layers = 4, .tp_size = 1, .n_micro_batches = 4, .rows = 3, .cols = 5 },
        .alone = 1,
        .seed = 3,
    };

    (void)state;
    assert_int_equal(offload_run(&play), 0);
}

/* The run's own thread runs beside compute that is bound to a core. */
static void test_beside_compute(void **state)
{
    struct offload_play play = {
        .shape = { .n_layers = 4, .tp_size = 1, .n_micro_batches = 4, .rows = 3, .cols = 5 },
        .alone = 1,
        .bound = 1,
        .folder = "/tmp",
    };

    (void)state;
    assert_int_equal(offload_run(&play), 0);
    play.shape.in_file = true;
    assert_int_equal(offload_run(&play), 0);
}

/* An executor whose compute ops do not wait for copies is found out. */
static void test_missing_waits_show(void **state)
{
    struct offload_play play = {
        .shape = { .n_layers = 6, .tp_size = 1, .n_micro_batches = 7, .rows = 3, .cols = 5 },
        .seed = 1,
        .forgets_waits = 1,
    };

    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it is the race that ThreadSanitizer looks for in the others */
#endif
    assert_true(offload_run(&play) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_large_values),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_beside_compute),
        cmocka_unit_test(test_missing_waits_show),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
