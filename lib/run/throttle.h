/*
 * throttle.h - copies at a given rate, for ranks on CPUs whose device is a block of memory
 *
 * The copies of a stream follow each other. Each moves its bytes no faster than the rate from its
 * start on, and is done when its last byte is due. The start is when it was ready, be it that its
 * first turn came later, but not before the last byte of the copy ahead of it was due: so what
 * turns come late is not lost again and again.
 */
#ifndef RUN_THROTTLE_H
#define RUN_THROTTLE_H

#include <stddef.h>

#include "base/clock.h"

/* Of one stream. */
struct throttle {
    double due_at; /* when the last byte of the copy before was due; 0 before the first */
};

/* Of a copy that was ready at that time. */
static inline double throttle_start(const struct throttle *throttle, double ready_at)
{
    return throttle->due_at > ready_at ? throttle->due_at : ready_at;
}

/* How many of a copy's n bytes are due by now. */
static inline size_t throttle_due(const struct throttle *throttle, double bytes_per_s,
                                  double ready_at, size_t n)
{
    double due = (clock_seconds() - throttle_start(throttle, ready_at)) * bytes_per_s;

    return due <= 0 ? 0 : due < (double)n ? (size_t)due : n;
}

/* The copy of n bytes is done. */
static inline void throttle_end(struct throttle *throttle, double bytes_per_s, double ready_at,
                                size_t n)
{
    throttle->due_at = throttle_start(throttle, ready_at) + (double)n / bytes_per_s;
}

#endif
