/*
 * offload_test.c - copies between spaces on GPUs, staged and enqueued, under every order of queues
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/offload.h"

static const char *const orders[] = { "eager", "lazy", "1", "2", "3" };
#define N_ORDERS (int)(sizeof orders / sizeof *orders)

static struct offload_play play_of(enum offload_way way, int tp_size)
{
    return (struct offload_play){
        .shape = { .n_layers = 6, .tp_size = tp_size, .n_micro_batches = 5, .rows = 3, .cols = 8 },
        .way = way
    };
}

/* How many orders give another result. */
static int n_differ(const struct offload_play *play)
{
    int n = 0;

    for (int i = 0; i < N_ORDERS; i++) {
        setenv("LMTRAIN_EMULATE_STREAMS", orders[i], 1);
        n += offload_run(play) > 0;
    }
    return n;
}

static void test_nothing_is_lost(void **state)
{
    (void)state;
    for (enum offload_way way = OFFLOAD_STAGED; way <= OFFLOAD_ENQUEUED; way++)
        for (int tp_size = 1; tp_size <= 2; tp_size *= 2)
            for (int disturbed = 0; disturbed < 2; disturbed++) {
                struct offload_play play = play_of(way, tp_size);

                play.seed = (uint64_t)disturbed;
                play.poison = !disturbed;
                assert_int_equal(n_differ(&play), 0);
            }
}

/* Without comm there is nothing to be staged for: copies are enqueued. */
static void test_alone(void **state)
{
    struct offload_play play = play_of(OFFLOAD_ENQUEUED, 1);

    (void)state;
    play.alone = 1;
    play.seed = 5;
    assert_int_equal(n_differ(&play), 0);
}

/* Copies to and from a file are the comm thread's, among what is enqueued. */
static void test_in_a_file(void **state)
{
    (void)state;
    for (enum offload_way way = OFFLOAD_STAGED; way <= OFFLOAD_ENQUEUED; way++)
        for (int tp_size = 1; tp_size <= 2; tp_size *= 2) {
            struct offload_play play = play_of(way, tp_size);

            play.shape.in_file = true;
            play.folder = "/tmp";
            play.seed = (uint64_t)tp_size;
            assert_int_equal(n_differ(&play), 0);
        }
}

static void test_missing_waits_show(void **state)
{
    struct offload_play play = play_of(OFFLOAD_ENQUEUED, 1);

    (void)state;
    play.forgets_waits = 1;
    play.seed = 5;
    assert_true(n_differ(&play) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_in_a_file),
        cmocka_unit_test(test_missing_waits_show),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
