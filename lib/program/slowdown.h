/*
 * slowdown.h - how long compute takes beside transfers
 *
 * A transfer that is under way takes of the device or core what it moves data with, so that ops
 * meanwhile take (1 + slowdown) times as long; of several at once slowdowns add up.
 */
#ifndef PROGRAM_SLOWDOWN_H
#define PROGRAM_SLOWDOWN_H

#include <stdint.h>

/* A time, in ns, in which ops are slower. One of no length slows nothing. */
struct slow_time {
    int64_t begin, end;
    double slowdown;
};

/* When an op of so many ns alone ends that begins at `time` beside these. */
int64_t slowdown_end(const struct slow_time *list, int n, int64_t time, int64_t ns);

#endif
