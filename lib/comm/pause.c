/*
 * pause.c - how long to wait before asking again
 */
#include "comm/pause.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "base/clock.h"
#include "base/num.h"
#include "comm/comm.h"

enum {
    POLLS_BEFORE_SLEEP = 50, /* some ten microseconds */
    SLEEP_MIN_NS = 10 * 1000,
    SLEEP_MAX_NS = 200 * 1000,
    SLEEP_MOVING_NS = 1000,
    YIELDS_IN_A_ROW = 1000, /* about a millisecond */
};

/*
 * Since Linux 6.18 a thread that yields beside one that computes gives up all its slice: where a
 * yield takes that long, others need the core, and sleeping, which gives up nothing, is quicker.
 * And where ranks are of several scheduling groups, as Slurm's tasks are, one that never sleeps can
 * keep another off the core without end, be it the rank it waits for.
 */
#define YIELD_SECONDS_MAX 2e-3
#define NO_YIELD_SECONDS 0.1
static _Atomic double no_yield_until; /* on clock_seconds */

void comm_pause_begin(struct comm_pause *pause)
{
    *pause = (struct comm_pause){ .nanoseconds = SLEEP_MIN_NS };
}

void comm_pause_yield(void)
{
    double before = clock_seconds(), after;

    sched_yield();
    after = clock_seconds();
    if (after - before > YIELD_SECONDS_MAX)
        atomic_store_explicit(&no_yield_until, after + NO_YIELD_SECONDS, memory_order_relaxed);
}

long comm_pause_next(struct comm_pause *pause, int progress)
{
    bool may_yield = pause->n_yields++ < YIELDS_IN_A_ROW &&
                     clock_seconds() > atomic_load_explicit(&no_yield_until, memory_order_relaxed);
    long now = pause->nanoseconds;

    if (may_yield && (progress == COMM_MOVING || pause->n_polls < POLLS_BEFORE_SLEEP)) {
        pause->n_polls += progress != COMM_MOVING;
        return 0;
    }
    pause->n_yields = 0;
    if (progress == COMM_MOVING)
        return SLEEP_MOVING_NS;
    pause->nanoseconds = (long)min_i64(SLEEP_MAX_NS, now * 5 / 4);
    return now;
}

void comm_pause(struct comm_pause *pause, int progress)
{
    struct timespec time = { 0, comm_pause_next(pause, progress) };

    if (time.tv_nsec)
        nanosleep(&time, NULL);
    else
        comm_pause_yield();
}
