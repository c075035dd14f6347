/*
 * gaps.h - which values leave device memory while nothing uses them, and when their copies run
 *
 * A *gap* is the time that a value rests between the op that touched it last and the op that
 * touches it next. A value whose gap *goes* is copied to its home behind the first of these ops
 * (the *out*) and back ahead of the second (the *in*); between the two its memory is free. Given
 * the times of the ops and the rate of the link, this says which gaps go so that memory stays
 * within a capacity, the op before which each in is issued, the op before which the end of each
 * out is awaited, and how long ops will wait. It is arithmetic on a list: it knows no program, no
 * value and no device.
 *
 * The list is one *period*: the ops of a rank in the order in which they run, say those of a step.
 * What the schedule means, and what it is priced by:
 *
 *  - Op i begins when op i - 1 has ended, when the outs that are awaited before it have ended, and
 *    when the ins of its operands have ended. What it waits for the last two is the *stall*.
 *  - Before op i first the outs that are awaited there are waited for, then ins are issued.
 *  - There is one queue of outs and one of ins, and they run at the same time (full duplex). Outs
 *    are queued when the last op that writes the value has ended, as early as can be; ins begin
 *    where they are issued. A copy of n bytes takes latency_ns + n / rate, one of none no time.
 *  - A value takes device memory before its out is awaited and from where its in is issued, so
 *    that the bytes in memory during an op follow from the list alone: they are at most the
 *    capacity whatever the copies' real times are.
 *  - Where an op ends a function (`drains`), all outs have ended, and an in is issued in the
 *    function that needs it. The period's end is the end of a function.
 *
 * Choice: at the op with most bytes, the gap over it whose next use is farthest goes first
 * (Belady, IBM Systems Journal 5(2), 1966; PatrickStar, arXiv 2108.05818, evicts chunks by it),
 * among those the one with most bytes; then the highest op is looked for again. In a forward and
 * backward, whose gaps nest, this order is optimal for what may be cut. What went and turns out
 * not to be needed stays. Other orders, and changes of what goes, are tried as well (gaps.c). Ins
 * are issued at their latest start (from the last deadline back, as earliest deadline first), one
 * copy earlier (double buffer), and never above capacity.
 *
 * More capacity never stalls longer: gaps_choose takes the best of schedules for a ladder of
 * capacities that does not depend on the one given, of those that are at most that.
 *
 * Not known here: that a program has only one list of ops for all micro-batches (the caller gives
 * one round of them and takes the issue points for all), fragmentation (place), and recomputation.
 */
#ifndef PROGRAM_GAPS_H
#define PROGRAM_GAPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

/*
 * The value rests behind op `from` until op `to`. from >= to: across the period's end, until op
 * `to` of the next one. from -1: it is in its home where the period begins, there is no out; to
 * n_ops: the period has no in of it.
 */
struct gap {
    int64_t n_bytes;
    int from, to;
    bool clean; /* the home has these bytes already: no out */
    /* The last write is that many ops before `from`, in its function, and the ops behind it only
     * read: the out is queued there. */
    int n_early;
    int group; /* 0: it goes or stays alone; else all gaps of one number go, or none */
};

struct gap_problem {
    int n_ops;
    const int64_t *ns;       /* [n_ops] time of each op */
    const int64_t *resident; /* [n_ops] bytes in device memory during each op if no gap goes */
    const bool *drains;      /* [n_ops] whether the op ends a function; NULL: only the last one */
    int n_gaps;
    const struct gap *gaps;
    int64_t capacity;         /* bytes of device memory */
    double out_rate, in_rate; /* bytes/s, above 0 */
    int64_t latency_ns;       /* of each copy */
};

/* By gap, where it goes (else -1); and sums. */
struct gap_schedule {
    bool *away;
    /* The op before which the out is known to have ended, in from + 1 .. n_ops (the function's end
     * is the op behind it); -1 if there is no out. */
    int *out_await;
    /* The op before which the in is issued, up to `to`; -1 if there is no in. */
    int *in_issue;
    int n_away;
    int64_t out_bytes, in_bytes; /* of the period's copies */
    int64_t stall_ns;            /* the period takes the sum of ns and this */
    int64_t peak;                /* bytes: the most during any op */
};

/* The bytes during the fullest op, *op, if all gaps go: below that no schedule exists. */
int64_t gaps_floor(const struct gap_problem *problem, int *op);

/*
 * Choose what goes so that no op has more than the capacity, at little stall. The schedule's
 * arrays (of n_gaps) are in the arena. Returns 0, or -1 with ERR_DEVICE and an error that names op
 * and bytes if capacity is below gaps_floor; *schedule is untouched then.
 */
int gaps_choose(struct gap_schedule *schedule, const struct gap_problem *problem,
                struct arena *arena, struct err *err);

/*
 * Time the copies where the gaps of `away` ([n_gaps], not by group) go. Returns and fails as
 * gaps_choose does, with the floor of these gaps. Memory allows, so it is not monotone in
 * capacity.
 */
int gaps_time(struct gap_schedule *schedule, const struct gap_problem *problem, const bool *away,
              struct arena *arena, struct err *err);

#endif
