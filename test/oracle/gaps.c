/*
 * gaps.c - what test/oracle/offload.py compares with its bounds: choices and stalls of problems
 *
 * Standard input: problems as numbers, each
 *     n_ops n_gaps capacity out_rate in_rate latency_ns
 *     time, bytes and whether a function ends, of each op
 *     bytes, from, to, whether it is clean, and the group, of each gap.
 * A line for each: "STALL_NS PEAK OUT_BYTES IN_BYTES" and a 0 or 1 for each gap, or "refused".
 */
#include <inttypes.h>
#include <stdio.h>

#include "program/gaps.h"

static bool read_problem(struct gap_problem *p, struct arena *arena)
{
    int64_t *ns, *resident;
    bool *drains;
    struct gap *gaps;

    *p = (struct gap_problem){ 0 };
    if (scanf("%d %d %" SCNd64 " %lf %lf %" SCNd64, &p->n_ops, &p->n_gaps, &p->capacity,
              &p->out_rate, &p->in_rate, &p->latency_ns) != 6)
        return false;
    p->ns = ns = arena_array(arena, int64_t, p->n_ops);
    p->resident = resident = arena_array(arena, int64_t, p->n_ops);
    p->drains = drains = arena_array(arena, bool, p->n_ops);
    p->gaps = gaps = arena_array(arena, struct gap, p->n_gaps);
    for (int i = 0; i < p->n_ops; i++) {
        int drain = 0;

        if (scanf("%" SCNd64 " %" SCNd64 " %d", &ns[i], &resident[i], &drain) != 3)
            return false;
        drains[i] = drain;
    }
    for (int g = 0; g < p->n_gaps; g++) {
        int clean = 0;

        if (scanf("%" SCNd64 " %d %d %d %d", &gaps[g].n_bytes, &gaps[g].from, &gaps[g].to, &clean,
                  &gaps[g].group) != 5)
            return false;
        gaps[g].clean = clean;
    }
    return true;
}

int main(void)
{
    struct gap_problem problem;
    struct arena arena = { 0 };

    for (; read_problem(&problem, &arena); arena_release(&arena)) {
        struct gap_schedule s;
        struct err err;

        if (gaps_choose(&s, &problem, &arena, &err) < 0) {
            printf("refused\n");
            continue;
        }
        printf("%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64, s.stall_ns, s.peak, s.out_bytes,
               s.in_bytes);
        for (int g = 0; g < problem.n_gaps; g++)
            printf(" %d", s.away[g]);
        printf("\n");
    }
    arena_release(&arena);
    return 0;
}
