/*
 * gaps_impl.h - what choice (gaps.c) and times (gaps_time.c) of gaps share
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
    int64_t *begins;  /* [n_ops + 1] of each op without stall */
    int *first, *end; /* by op: the ops of its function */
    int *by_from, *by_to;
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

#endif
