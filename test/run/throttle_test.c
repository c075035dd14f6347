/*
 * throttle_test.c - copies at a rate: never sooner, whatever the pieces and the pauses
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/worker.h"
#include "run/copy.h"
#include "support/offload.h"

/* A stream's copies one after the other: each takes its time, so all of them do. */
static void test_no_sooner(void **state)
{
    static const size_t sizes[] = { 4000000, 100, 1, 300000, 700000, 64 };
    const double rate = 100e6;
    struct throttle throttle = { 0 };
    unsigned char *from = calloc(4000000, 1), *to = malloc(4000000);
    struct worker *worker;
    struct err err;
    size_t total = 0;

    (void)state;
    assert_non_null(from);
    assert_non_null(to);
    assert_int_equal(worker_create(&worker, -1, &err), 0);
    struct copy copies[6];
    uint64_t ticket = 0;
    double begin = clock_seconds();
    for (int i = 0; i < 6; i++) {
        copies[i] = copy_of(to, from, sizes[i]);
        copies[i].throttle = &throttle;
        copies[i].bytes_per_s = rate;
        ticket = worker_post(worker, 0, stream_op_run, &copies[i]);
        total += sizes[i];
    }
    assert_int_equal(worker_wait(worker, ticket, &err), 0);
    assert_true(clock_seconds() - begin >= (double)total / rate * (1 - 1e-9));
    for (int i = 0; i < 6; i++)
        assert_int_equal(copies[i].n_given, 0);
    worker_destroy(worker);
    free(from);
    free(to);
}

/* What a turn came late is made up for; an idle time is not. */
static void test_starts(void **state)
{
    struct throttle throttle = { 0 };

    (void)state;
    assert_true(throttle_start(&throttle, 100) == 100);
    throttle_end(&throttle, 1e6, 100, 1000);
    assert_true(throttle.due_at == 100 + 1e-3);
    assert_true(throttle_start(&throttle, 100.0005) == throttle.due_at);
    assert_true(throttle_start(&throttle, 100.0015) == 100.0015);
}

/* A program takes as long as its copies in one direction, be they to memory or to the file. */
static void test_programs(void **state)
{
    struct offload_play play = {
        .shape = { .n_layers = 4, .tp_size = 1, .n_micro_batches = 4, .rows = 64, .cols = 100 },
        .link_bytes_per_s = 40e6,
        .file_bytes_per_s = 20e6,
        .folder = "/tmp",
    };
    double n_bytes = 3.0 * 4 * 4 * 64 * 100 * 4; /* steps, layers, micro-batches, a value */

    (void)state;
    double begin = clock_seconds();
    assert_int_equal(offload_run(&play), 0);
    double middle = clock_seconds();
    assert_true(middle - begin >= n_bytes / 40e6);
    play.shape.in_file = true;
    assert_int_equal(offload_run(&play), 0);
    assert_true(clock_seconds() - middle >= n_bytes / 20e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_sooner),
        cmocka_unit_test(test_starts),
        cmocka_unit_test(test_programs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
