/*
 * hang_test.c - clocks of beats, whom to blame, and stopped processes, with time as an argument
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "launch/hang_impl.h"

enum { N = 3 };

struct fixture {
    union progress_place page[N];
    struct hang_rank ranks[N];
    struct hang_watch watch;
};

static struct fixture f;

static int setup(void **state)
{
    (void)state;
    memset(&f, 0, sizeof f);
    for (int rank = 0; rank < N; rank++)
        f.ranks[rank] = (struct hang_rank){ .world_rank = rank,
                                            .host = "n1",
                                            .pid = 1000 + rank,
                                            .running = 1,
                                            .slot = &f.page[rank].slot };
    hang_watch_init(&f.watch, N, f.ranks, 100);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hang_watch_release(&f.watch);
    return 0;
}

static void beat(int rank, const char *text, int waits)
{
    snprintf(f.page[rank].slot.text, PROGRESS_TEXT_BYTES, "%s", text);
    atomic_store(&f.page[rank].slot.waits, waits);
    atomic_fetch_add(&f.page[rank].slot.beat, 1);
}

static void test_clocks(void **state)
{
    struct str text = { 0 };
    int culprit;

    (void)state;
    assert_true(hang_watch_look(&f.watch, 104, &culprit) == 0); /* nobody has begun */
    assert_int_equal(culprit, -1);
    beat(0, "barrier", 1);
    beat(1, "attention layers.1", 0);
    beat(2, "barrier", 1);
    assert_true(hang_watch_look(&f.watch, 105, &culprit) == 0);
    beat(1, "attention layers.2", 0);
    hang_watch_look(&f.watch, 107, &culprit);
    /* Rank 0 and 2 stand longer, but they wait: rank 1 is to blame. */
    assert_true(hang_watch_look(&f.watch, 111, &culprit) == 6);
    assert_int_equal(culprit, 1);
    hang_watch_report(&f.watch, 111, &text);
    assert_non_null(
        strstr(text.data, "): in attention layers.2, step 0, micro-batch 0 since 4.0 s\n"));
    assert_non_null(strstr(text.data, "): waits in barrier, step 0, micro-batch 0 since 6.0 s\n"));
    assert_true(strstr(text.data, "rank 1 (") < strstr(text.data, "rank 0 ("));
    str_release(&text);

    beat(0, "barrier", 1);
    beat(2, "barrier", 1);
    assert_true(hang_watch_look(&f.watch, 112, &culprit) == 5);
    beat(1, "x", 0);
    assert_true(hang_watch_look(&f.watch, 112.5, &culprit) == 0.5);
}

/* One that waits for long is blamed if all wait: the longest. */
static void test_all_wait(void **state)
{
    int culprit;

    (void)state;
    for (int rank = 0; rank < N; rank++)
        beat(rank, "send", 1);
    hang_watch_look(&f.watch, 101, &culprit);
    beat(0, "receive", 1);
    beat(1, "receive", 1);
    hang_watch_look(&f.watch, 102, &culprit);
    assert_int_equal(culprit, 2);
    f.ranks[2].running = 0; /* has ended */
    assert_true(hang_watch_look(&f.watch, 103, &culprit) == 1);
    assert_int_equal(culprit, 0);
    f.ranks[2].running = 1;
}

/* We were not run ourselves: no rank is to blame for that time. */
static void test_gap(void **state)
{
    int culprit;

    (void)state;
    beat(0, "x", 0);
    hang_watch_look(&f.watch, 101, &culprit);
    assert_true(hang_watch_look(&f.watch, 5000, &culprit) == 0);
    assert_true(hang_watch_look(&f.watch, 5001, &culprit) == 1);
}

/* One stopped rank is reported, all stopped are no hang. */
static void test_stopped(void **state)
{
    struct str text = { 0 };
    int culprit;

    (void)state;
    for (int rank = 0; rank < N; rank++)
        beat(rank, "x", rank > 0);
    hang_watch_look(&f.watch, 101, &culprit);
    f.ranks[0].stopped = 1;
    assert_true(hang_watch_look(&f.watch, 104, &culprit) == 3);
    assert_int_equal(culprit, 0);
    hang_watch_report(&f.watch, 104, &text);
    assert_non_null(strstr(text.data, "since 3.0 s, stopped by a signal\n"));
    str_release(&text);
    f.ranks[1].stopped = 1;
    f.ranks[2].stopped = 1;
    assert_true(hang_watch_look(&f.watch, 105, &culprit) == 0);
    assert_true(hang_watch_look(&f.watch, 106, &culprit) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_clocks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gap, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stopped, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
