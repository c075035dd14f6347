/*
 * timeline_impl.h - what timeline.c, timeline_flows.c and timeline_counters.c share
 */
#ifndef PLAN_TIMELINE_IMPL_H
#define PLAN_TIMELINE_IMPL_H

#include "plan/timeline.h"

/* An end of a flow: the k-th transfer of a rank on a channel. */
struct flow_end {
    int is_measured;
    int from, to; /* of the channel: ranks of a transfer; of a collective its first rank, and -1 */
    int stream;   /* its group of streams */
    int number;   /* on the channel, in the step */
    int64_t step;
    int member; /* order among the ends of one flow */
    int pid, tid;
    int64_t begin, end, error;
};

struct printing {
    const struct timeline *timeline;
    struct str *out;
    struct arena arena;
    struct flow_end *ends; /* those of one flow one after the other */
    int n_ends, ends_capacity, n_events;
    int64_t first[2]; /* [is_measured]: ns at which the file begins */
};

static inline int timeline_pid(const struct timeline_rank *r)
{
    return 2 * r->rank + r->is_measured;
}

static inline int64_t timeline_begin(const struct timeline_rank *r,
                                     const struct timeline_span *span)
{
    return span->begin + r->shift;
}

static inline double timeline_us(int64_t ns)
{
    return (double)ns / 1e3;
}

/* The op of a span, NULL for waiting. The action, and the function that it runs: not of waiting,
 * which may be after the last. */
const struct op *timeline_op(const struct timeline_rank *r, const struct timeline_span *span);
const struct action *timeline_action(const struct timeline_rank *r,
                                     const struct timeline_span *span);
const struct function *timeline_function(const struct timeline_rank *r,
                                         const struct timeline_span *span);

void timeline_begin_event(struct printing *p);

/* Before anything is printed: the ends of all flows. */
void timeline_find_flows(struct printing *p);
bool timeline_is_same_flow(const struct flow_end *a, const struct flow_end *b);
void timeline_print_flows(struct printing *p);
struct timeline_order timeline_find_order(const struct printing *p);

/* Bytes that the op, a collective or transfer, brings over the rank's links. */
int64_t timeline_link_bytes(const struct timeline *timeline, const struct timeline_rank *r,
                            const struct op *op);

void timeline_print_counters(struct printing *p, const struct timeline_rank *r);

#endif
