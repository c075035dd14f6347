/*
 * gaps_impl.h - what choice (gaps.c, gaps_take.c) and times (gaps_time.c) of gaps share
 */
#ifndef PROGRAM_GAPS_IMPL_H
#define PROGRAM_GAPS_IMPL_H

#include "program/gaps.h"

/*
 * Bytes by op, of which ranges are raised and the highest is asked for, each in O(log n): a binary
 * tree where max is the highest below a node with what was added to the node as a whole.
 */
struct gap_curve {
    int n, first_leaf;
    int64_t *max, *added;
};

void gap_curve_open(struct gap_curve *curve, int n, struct arena *arena);
void gap_curve_set(struct gap_curve *curve, const int64_t *bytes);
/* Ops begin .. end - 1. */
void gap_curve_add(struct gap_curve *curve, int begin, int end, int64_t n_bytes);
int64_t gap_curve_max(const struct gap_curve *curve, int begin, int end); /* INT64_MIN if empty */
/* The highest of all, and the first op that has it. */
int64_t gap_curve_peak(const struct gap_curve *curve, int *op);

/* A problem with what does not depend on the choice, and room for one schedule. */
struct gap_timing {
    const struct gap_problem *problem;
    int64_t *begins;               /* [n_ops + 1] of each op without stall */
    int *first, *end;              /* by op: the ops of its function */
    int *by_out, *by_from, *by_to; /* gaps by the op behind which the out is queued, ... */
    struct gap_curve curve;
    int64_t *floor;              /* by op: bytes if what goes is at home */
    int64_t *out_ends, *in_ends; /* by gap */
    int *in_targets;             /* by gap: the op before which its in is issued, memory allowing */
    int *ins;                    /* what comes in, by deadline */
};

void gap_timing_open(struct gap_timing *timing, const struct gap_problem *problem,
                     struct arena *arena);

/* The ranges of ops in which a gap's value may be away; returns how many. */
struct gap_range {
    int begin, end;
};
int gap_ranges(const struct gap *gap, int n_ops, struct gap_range ranges[2]);

static inline int64_t gap_copy_ns(const struct gap_problem *problem, const struct gap *gap,
                                  double rate)
{
    if (!gap->n_bytes)
        return 0;
    return problem->latency_ns + (int64_t)((double)gap->n_bytes * 1e9 / rate + 0.5);
}
static inline bool gap_has_out(const struct gap *gap)
{
    return !gap->clean && gap->from >= 0;
}

/* Bytes by op if the gaps of `away` go and all copies take no time, into floor and curve. Returns
 * the most, and the first op that has it. */
int64_t gap_timing_floor(struct gap_timing *timing, const bool *away, int *op);

/* schedule->away is given; the other arrays are there and get filled. Returns -1 if some op takes
 * more than the capacity (*op). */
int gap_timing_run(struct gap_timing *timing, int64_t capacity, struct gap_schedule *schedule,
                   int *op);

void gap_schedule_open(struct gap_schedule *schedule, int n_gaps, struct arena *arena);

/* What goes first of the gaps over the highest op. */
enum gap_order {
    ORDER_FARTHEST,       /* next use */
    ORDER_CLEAN_FARTHEST, /* clean ones first: they need no out */
    ORDER_OLDEST,         /* rests for longest: its out has had most time */
    ORDER_FITTING,        /* as the first two, but before all others what its functions have time */
    ORDER_CLEAN_FITTING,  /* to copy */
    N_ORDERS,
};

struct gap_candidate;

/* What taking gaps in these orders needs, made once for a problem; the timing must outlive it. */
struct gap_taking {
    const struct gap_problem *problem;
    const struct gap_timing *timing;
    struct gap_curve curve;
    struct gap_candidate *orders[N_ORDERS];
    int n_candidates;
    bool any_clean;
    /* By op, of its function, ns: copies that begin behind the op, or those that end before it,
     * less the time for them. None is above 0 if what goes does not wait for the function's end, or
     * in its beginning. */
    struct gap_curve outs, ins;
    int64_t *out_time, *in_time; /* the same if nothing goes */
    bool *too_late;              /* by gap: does not fit any more */
    int *next_of_group;          /* by gap: another one of its group, in a ring */
    int *taken; /* a gap of each group that goes, in the order in which they were taken */
};

void gap_taking_open(struct gap_taking *taking, const struct gap_problem *problem,
                     const struct gap_timing *timing, struct arena *arena);

/*
 * Take gaps, with their groups, in an order until no op has more than the capacity: into away. The
 * peaks on the way are stored in `peaks` if it is not NULL. Returns how many were taken, or -1 and
 * the op that does not fit if all are.
 */
int gap_taking_take(struct gap_taking *taking, enum gap_order order, int64_t capacity, bool *away,
                    int64_t *peaks, int *op);

/* Of those that were taken just now, give back what is not needed. */
void gap_taking_give_back(struct gap_taking *taking, int64_t capacity, bool *away, int n_taken);

#endif
