/*
 * clock_offset.h - by how much another rank's clock differs from this one's, from exchanges
 *
 * An exchange says that the other clock was read between two readings of this one, and no more:
 * the two ways of a message may take very different times. Each therefore bounds the offset from
 * both sides, and what is left of all bounds is known for certain: its middle is the offset, and
 * half of it the error. Clocks run at slightly different speeds, so that the offset is measured at
 * two times, and is a line between them (Cristian 1989; the line is as in NTP, RFC 5905).
 *
 * Promise (test/train/clock_offset_test.c): whatever the ways take, while the speeds of two clocks
 * differ by at most CLOCK_DRIFT_MAX and are constant, no time between the two is mapped wrongly by
 * more than the error.
 */
#ifndef TRAIN_CLOCK_OFFSET_H
#define TRAIN_CLOCK_OFFSET_H

#include <stdint.h>

#define CLOCK_DRIFT_MAX 500e-6 /* what clocks are slewed by at most */

/* The other clock said `other` at some time from `sent` to `received` on this one; ns. */
struct clock_exchange {
    int64_t sent, other, received;
};

/* The other clock says time + ns at the time `at` of this one, and error more or less. */
struct clock_offset {
    int64_t at, ns, error;
};

/* From one exchange or more, of a short while. */
struct clock_offset clock_offset_of(const struct clock_exchange *exchanges, int n);

/* A time of this clock on the other one. */
int64_t clock_offset_map(const struct clock_offset *begin, const struct clock_offset *end,
                         int64_t time);

#endif
