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

#include "launch/watch/hang_impl.h"

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

/* As somebody does who looks all the time. */
static double look(struct hang_watch *watch, double now, int *culprit)
{
    watch->last_look = now - 0.25;
    return hang_watch_look(watch, now, culprit);
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
    /* Nobody has begun: that may be a hang too. */
    assert_true(look(&f.watch, 104, &culprit) == 4);
    assert_int_equal(culprit, 0);
    beat(0, "barrier", 1);
    beat(1, "attention layers.1", 0);
    beat(2, "barrier", 1);
    assert_true(look(&f.watch, 105, &culprit) == 0);
    assert_int_equal(culprit, -1);
    beat(1, "attention layers.2", 0);
    look(&f.watch, 107, &culprit);
    /* Rank 0 and 2 stand longer, but they wait: rank 1 is to blame. */
    assert_true(look(&f.watch, 111, &culprit) == 4);
    assert_int_equal(culprit, 1);
    hang_watch_report(&f.watch, 111, &text);
    assert_string_equal(
        text.data,
        "  rank 1 on n1 (pid 1001): in attention layers.2, micro-batch 0 since 4.0 s\n"
        "  rank 0 on n1 (pid 1000): waits in barrier, micro-batch 0 since 6.0 s; rank 1 on n1 has "
        "not reached it: it is in attention layers.2, micro-batch 0\n"
        "    1 more rank waits there: 2\n");
    str_release(&text);

    /* Who waits for one that is at work does not hang. */
    beat(1, "x", 0);
    assert_true(look(&f.watch, 112, &culprit) == 0);
    assert_int_equal(culprit, 1);
}

/* A rank at a position that all count alike; waiting for those of a group to come to `awaits`. */
static void stand_for(int rank, uint64_t position, const char *text,
                      const struct progress_meeting *meeting)
{
    struct progress_slot *slot = &f.page[rank].slot;

    atomic_store(&slot->step, 7);
    atomic_store(&slot->micro_batch, 3);
    atomic_store(&slot->op, 5);
    atomic_store(&slot->position, position);
    if (meeting->position)
        progress_wait(slot, text, meeting);
    else
        progress_publish(slot, text, 0);
}

static void stand(int rank, uint64_t position, const char *text, uint64_t awaits, int first,
                  int stride, int size)
{
    struct progress_meeting meeting = { awaits, first, stride, size, 1, 0 };

    stand_for(rank, position, text, &meeting);
}

/* The report that design.md promises: who is behind is found through the group and positions. */
static void test_who_is_behind(void **state)
{
    struct str text = { 0 };
    int culprit;

    (void)state;
    for (int rank = 0; rank < N; rank++)
        f.ranks[rank].world_rank = rank ? 11 + rank : 3;   /* 3, 12, 13 */
    stand(0, 100, "all_gather tp layers.2", 100, 3, 4, 2); /* 3 and 7 */
    stand(1, 120, "attention layers.9", 0, 0, 0, 0);
    stand(2, 140, "reduce_scatter dp bucket.3", 135, 12, 1, 2); /* 12 and 13 */
    for (int t = 101; t <= 132; t++) {
        stand(0, 100, "all_gather tp layers.2", 100, 3, 4, 2);
        look(&f.watch, t, &culprit);
    }
    assert_int_equal(culprit, 1);
    assert_true(look(&f.watch, 132, &culprit) == 31);
    hang_watch_report(&f.watch, 132, &text);
    assert_non_null(strstr(text.data, "rank 13 on n1 (pid 1002): waits in reduce_scatter dp "
                                      "bucket.3, step 7, micro-batch 3 since 31.0 s; rank 12 on n1 "
                                      "has not reached it: it is in attention layers.9, step 7, "
                                      "micro-batch 3\n"));
    str_clear(&text);
    stand(1, 150, "rmsnorm layers.10", 0, 0, 0, 0);
    hang_watch_report(&f.watch, 133, &text);
    assert_non_null(strstr(text.data, "all other ranks have reached it"));
    str_release(&text);
}

/* A group of several runs of ranks: who lies between two of them is not waited for. */
static void test_a_group_of_runs(void **state)
{
    const struct progress_meeting runs = { 100, 3, 1, 2, 2, 8 }; /* 3, 4, 11, 12 */
    static const int world_ranks[N] = { 3, 5, 12 };
    struct str text = { 0 };
    int culprit;

    (void)state;
    for (int rank = 0; rank < N; rank++)
        f.ranks[rank].world_rank = world_ranks[rank];
    stand_for(0, 100, "reduce_scatter data bucket.3", &runs);
    stand(1, 80, "attention layers.9", 0, 0, 0, 0);
    look(&f.watch, 101, &culprit);
    stand(2, 90, "attention layers.9", 0, 0, 0, 0);
    look(&f.watch, 104, &culprit);
    hang_watch_report(&f.watch, 104, &text);
    assert_non_null(strstr(text.data, "rank 12 on n1 has not reached it"));
    assert_null(strstr(text.data, "rank 5 on n1 has not reached it"));
    str_release(&text);
}

/* All wait, one for the other: who is furthest behind is to blame, not who waits longest. */
static void test_chain(void **state)
{
    struct str text = { 0 };
    int culprit;

    (void)state;
    stand(0, 60, "all_reduce dp", 60, 0, 1, 3);
    look(&f.watch, 101, &culprit);
    stand(2, 50, "send dp", 40, 0, 1, 3);
    stand(1, 55, "receive dp", 52, 0, 1, 3);
    look(&f.watch, 102, &culprit);
    assert_true(look(&f.watch, 105, &culprit) == 3);
    assert_int_equal(culprit, 2);
    hang_watch_report(&f.watch, 105, &text);
    assert_non_null(strstr(text.data, "4.0 s; ranks 1-2 have not reached it; rank 2 on n1 waits in "
                                      "send dp, step 7, micro-batch 3\n"));
    str_release(&text);
    /* The last one left in good order: the next is to blame. */
    atomic_store(&f.page[2].slot.end, PROGRESS_LEFT);
    assert_true(look(&f.watch, 106, &culprit) == 4);
    assert_int_equal(culprit, 1);
    hang_watch_report(&f.watch, 106, &text);
    assert_non_null(strstr(text.data, "  1 rank has left\n"));
    str_release(&text);
}

/* Many that wait alike are one line and their numbers. */
static void test_many(void **state)
{
    enum { N_MANY = 40 };
    static union progress_place page[N_MANY];
    static struct hang_rank ranks[N_MANY];
    struct hang_watch watch;
    struct str text = { 0 };
    int culprit;

    (void)state;
    for (int rank = 0; rank < N_MANY; rank++) {
        ranks[rank] = (struct hang_rank){ rank, NULL, 100 + rank, 1, 0, &page[rank].slot };
        struct progress_meeting all = { .position = 9 };

        atomic_store(&page[rank].slot.op, -1);
        if (rank == 17 || rank == 30)
            progress_phase(&page[rank].slot, "compiling");
        else
            progress_wait(&page[rank].slot, "agreement", &all);
        atomic_store(&page[rank].slot.position, rank == 17 || rank == 30 ? 8 : 9);
    }
    hang_watch_init(&watch, N_MANY, ranks, 100);
    look(&watch, 100, &culprit);
    look(&watch, 104, &culprit);
    assert_int_equal(culprit, 17);
    hang_watch_report(&watch, 104, &text);
    assert_string_equal(text.data, "  rank 17 (pid 117): compiling since 4.0 s\n"
                                   "  rank 30 (pid 130): compiling since 4.0 s\n"
                                   "  rank 0 (pid 100): waits in agreement since 4.0 s; ranks 17, "
                                   "30 have not reached it; rank 17 is compiling\n"
                                   "    37 more ranks wait there: 1-16, 18-29, 31-39\n");
    str_release(&text);
    hang_watch_release(&watch);
}

/* If all wait and nobody says for whom, the longest is blamed. */
static void test_all_wait(void **state)
{
    int culprit;

    (void)state;
    for (int rank = 0; rank < N; rank++)
        beat(rank, "send", 1);
    look(&f.watch, 101, &culprit);
    beat(0, "receive", 1);
    beat(1, "receive", 1);
    look(&f.watch, 102, &culprit);
    assert_int_equal(culprit, 2);
    f.ranks[2].running = 0; /* has ended */
    assert_true(look(&f.watch, 103, &culprit) == 1);
    assert_int_equal(culprit, 0);
    f.ranks[2].running = 1;
}

/* We were not run ourselves: no rank is to blame for that time. */
static void test_gap(void **state)
{
    int culprit;

    (void)state;
    for (int rank = 0; rank < N; rank++)
        beat(rank, "x", rank > 0);
    hang_watch_look(&f.watch, 101, &culprit);
    assert_true(hang_watch_look(&f.watch, 5000, &culprit) == 0);
    assert_true(hang_watch_look(&f.watch, 5001, &culprit) == 1);
    /* What was seen before counts on. */
    assert_true(hang_watch_look(&f.watch, 5004, &culprit) == 1);
    assert_true(hang_watch_look(&f.watch, 5005, &culprit) == 2);
}

/* One stopped rank is reported, all stopped are no hang. */
static void test_stopped(void **state)
{
    struct str text = { 0 };
    int culprit;

    (void)state;
    for (int rank = 0; rank < N; rank++)
        beat(rank, "x", rank > 0);
    look(&f.watch, 101, &culprit);
    f.ranks[0].stopped = 1;
    assert_true(look(&f.watch, 104, &culprit) == 3);
    assert_int_equal(culprit, 0);
    hang_watch_report(&f.watch, 104, &text);
    assert_non_null(strstr(text.data, "since 3.0 s, stopped by a signal\n"));
    str_clear(&text);
    /* Also if it waits itself, where the others wait. */
    for (int rank = 0; rank < N; rank++)
        stand(rank, 9, "barrier", 9, 0, 0, 0);
    look(&f.watch, 104.5, &culprit);
    look(&f.watch, 107.5, &culprit);
    assert_int_equal(culprit, 0);
    hang_watch_report(&f.watch, 107.5, &text);
    assert_non_null(strstr(text.data, "; rank 0 on n1 is stopped by a signal\n"));
    str_release(&text);
    f.ranks[1].stopped = 1;
    f.ranks[2].stopped = 1;
    assert_true(look(&f.watch, 109, &culprit) == 0);
    assert_true(look(&f.watch, 110, &culprit) == 0);
    f.ranks[1].stopped = 0;
    assert_true(look(&f.watch, 112, &culprit) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_clocks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_is_behind, setup, teardown),
        cmocka_unit_test_setup_teardown(test_chain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_group_of_runs, setup, teardown),
        cmocka_unit_test(test_many),
        cmocka_unit_test_setup_teardown(test_all_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gap, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stopped, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
