/*
 * timeline_lanes.h - a timeline small enough for a page: a lane for each stream, few slices; and
 * where the time of ops goes, by kind
 *
 * A step has thousands of ops. A lane joins neighbouring spans that are shorter than what can be
 * drawn, until all lanes together have no more than a given number of slices: those of one class
 * first, then a short one with what is beside it, whose class is that of most of the time. The gaps
 * between slices that remain are as measured; nothing is moved.
 */
#ifndef PLAN_TIMELINE_LANES_H
#define PLAN_TIMELINE_LANES_H

#include "plan/timeline.h"

struct lane_slice {
    int64_t begin, end;    /* ns since the step's first begin of all ranks of its kind */
    enum time_class class; /* of most of it */
    int kind, layer;       /* of its longest op; kind -1: waiting; layer -1: of none */
    int n_spans;           /* that it joins */
};

struct timeline_lane {
    int rank, stage;
    int64_t step;
    bool is_measured;
    enum stream stream;
    struct lane_slice *slices;
    int n;
};

struct timeline_lanes {
    struct timeline_lane *items; /* by rank of the timeline, then stream; none is empty */
    int n;
    int64_t joined_ns; /* spans and gaps shorter than this may have been joined; 0: none was */
};

/* At most n_most slices, but one a lane at least. In the arena. */
void timeline_lanes_find(struct timeline_lanes *lanes, const struct timeline *timeline, int n_most,
                         struct arena *arena);

/* Ops of a kind on the compute stream: means of the ranks of the timeline. */
struct timeline_kind {
    int kind;
    double predicted_ns, measured_ns; /* of a step; -1: no rank is of that kind */
};

/* Those that take any time, the longest first; in the arena. Returns how many. */
int timeline_kinds_find(struct timeline_kind **kinds, const struct timeline *timeline,
                        struct arena *arena);

#endif
