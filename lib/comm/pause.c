/*
 * pause.c - how long to wait before asking again
 */
#include "comm/pause.h"

#include <sched.h>
#include <time.h>

#include "base/num.h"
#include "comm/comm.h"

enum {
    POLLS_BEFORE_SLEEP = 50, /* some ten microseconds */
    SLEEP_MIN_NS = 10 * 1000,
    SLEEP_MAX_NS = 200 * 1000,
};

void comm_pause_begin(struct comm_pause *pause)
{
    *pause = (struct comm_pause){ 0, SLEEP_MIN_NS };
}

long comm_pause_next(struct comm_pause *pause, int progress)
{
    long now = pause->nanoseconds;

    if (progress == COMM_MOVING || pause->n_polls < POLLS_BEFORE_SLEEP) {
        pause->n_polls += progress != COMM_MOVING;
        return 0;
    }
    pause->nanoseconds = (long)min_i64(SLEEP_MAX_NS, now * 5 / 4);
    return now;
}

void comm_pause(struct comm_pause *pause, int progress)
{
    struct timespec time = { 0, comm_pause_next(pause, progress) };

    if (time.tv_nsec)
        nanosleep(&time, NULL);
    else
        sched_yield();
}
