/*
 * clock_offset_test.c - clocks with offset and drift, messages whose ways take what they like
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>

#include "base/num.h"
#include "train/clock_offset.h"

enum { N_EXCHANGES = 16, N_CASES = 2000, N_TIMES = 50 };

/* The other clock, by this one's time: offset + (1 + drift) time. */
struct faked {
    double offset, drift;
};

static uint64_t seed = 1;

/* In [0, 1). */
static double draw(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

static int64_t other_clock(const struct faked *f, int64_t time)
{
    return time + llround(f->offset + f->drift * (double)time);
}

/* A way of 2 us or more; some take a thousand times as long. */
static int64_t draw_way(void)
{
    return 2000 + (int64_t)(20e3 * pow(draw(), 4) * (draw() < 0.2 ? 100 : 1));
}

/* Exchanges one after the other from `time` on; returns when the last is over. *best: the shortest
 * of their round trips. */
static int64_t exchange(const struct faked *f, int64_t time, struct clock_exchange *exchanges,
                        int64_t *best)
{
    *best = INT64_MAX;
    for (int i = 0; i < N_EXCHANGES; i++) {
        struct clock_exchange *e = &exchanges[i];
        int64_t there = draw_way(), back = draw_way();

        *e = (struct clock_exchange){ time, other_clock(f, time + there), time + there + back };
        time = e->received + (int64_t)(1000 * draw());
        *best = min_i64(*best, there + back);
    }
    return time;
}

static void no_time_is_mapped_wrongly_by_more_than_the_error(void **state)
{
    struct clock_exchange exchanges[N_EXCHANGES];

    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct faked f = { 1e12 * (2 * draw() - 1), 0.9 * CLOCK_DRIFT_MAX * (2 * draw() - 1) };
        int64_t start = (int64_t)(1e15 * draw()), best[2];
        int64_t step = (int64_t)pow(10, 6 + 5 * draw());
        int64_t from = exchange(&f, start, exchanges, &best[0]);
        struct clock_offset begin = clock_offset_of(exchanges, N_EXCHANGES);

        exchange(&f, from + step, exchanges, &best[1]);
        struct clock_offset end = clock_offset_of(exchanges, N_EXCHANGES);
        int64_t error = max_i64(begin.error, end.error);
        for (int k = 0; k < N_TIMES; k++) {
            int64_t time = from + (int64_t)((double)step * draw());
            int64_t wrong = clock_offset_map(&begin, &end, time) - other_clock(&f, time);

            assert_in_range(wrong < 0 ? -wrong : wrong, 0, error + 2);
        }
        /* All exchanges together are at least as good as the shortest alone, but for the drift
         * while they go on. */
        int64_t drift = (int64_t)(CLOCK_DRIFT_MAX * (double)(from - start)) + 2;
        assert_in_range(begin.error, 0, best[0] / 2 + drift);
    }
}

/* A constant offset would be wrong by more. */
static void drift_counts(void **state)
{
    const struct faked f = { 5e9, 100e-6 };
    struct clock_exchange exchanges[N_EXCHANGES];
    int64_t best, step = 1000000000;
    int64_t from = exchange(&f, 0, exchanges, &best);
    struct clock_offset begin = clock_offset_of(exchanges, N_EXCHANGES);

    (void)state;
    exchange(&f, from + step, exchanges, &best);
    struct clock_offset end = clock_offset_of(exchanges, N_EXCHANGES);
    int64_t time = from + step, truth = other_clock(&f, time);
    assert_true(fabs((double)(clock_offset_map(&begin, &end, time) - truth)) <= (double)end.error);
    assert_true(fabs((double)(clock_offset_map(&begin, &begin, time) - truth)) >
                5 * (double)begin.error);
}

static void a_clock_that_was_set(void **state)
{
    const struct clock_exchange exchanges[] = { { 0, 1000, 20 }, { 20, 501020, 40 } };
    struct clock_offset offset = clock_offset_of(exchanges, 2);

    (void)state;
    assert_in_range(offset.error, 249000, 251000);
    assert_in_range(offset.ns, 250000, 252000);
}

/* One way is short in the first, the other in the second: both round trips take 1 ms, and 20 us are
 * left. */
static void ways_that_differ(void **state)
{
    const struct clock_exchange exchanges[] = { { 0, 700010000, 1000000 },
                                                { 1000000, 701990000, 2000000 } };
    struct clock_offset offset = clock_offset_of(exchanges, 2);

    (void)state;
    assert_in_range(offset.error, 10000, 11000);
    assert_in_range(offset.ns, 700000000 - 11000, 700000000 + 11000);
}

static void one_exchange(void **state)
{
    const struct clock_exchange e = { 100, 5150, 300 };
    struct clock_offset offset = clock_offset_of(&e, 1);

    (void)state;
    assert_int_equal(offset.at, 200);
    assert_in_range(offset.ns, 4949, 4951);
    assert_in_range(offset.error, 100, 102);
    assert_int_equal(clock_offset_map(&offset, &offset, 1000), 1000 + offset.ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_time_is_mapped_wrongly_by_more_than_the_error),
        cmocka_unit_test(drift_counts),
        cmocka_unit_test(a_clock_that_was_set),
        cmocka_unit_test(ways_that_differ),
        cmocka_unit_test(one_exchange),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
