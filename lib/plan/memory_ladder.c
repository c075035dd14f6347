/*
 * memory_ladder.c - one fit for each budget
 */
#include "plan/memory_ladder.h"

#include "base/num.h"
#include "plan/memory_fit_impl.h"

/* The floor's pieces are smaller where the budget is, which lowers the floor. */
enum { N_FLOORS = 3 };

#define NO_LIMIT (INT64_MAX / 8)

struct ladder {
    struct memory_fit_request request;
    struct job job; /* of the request, with the budget at hand */
    struct memory_reuse reuse;
    int64_t whole_ns; /* of a step without a limit; 0: it cannot be said */
    struct arena *arena;
};

/* By the simulation, or by the solver's sums of the pipeline rank with most. */
static int64_t added_ns(const struct ladder *l, const struct memory_fit *fit)
{
    int64_t ns = 0;

    if (l->whole_ns && fit->simulated_ns)
        return max_i64(0, fit->simulated_ns - l->whole_ns);
    for (int i = 0; i < l->job.parallel.pp; i++)
        ns = max_i64(ns, fit->ranks[i].choice.ns);
    return ns;
}

static int fit_within(struct ladder *l, struct memory_fit *fit, int64_t limit, struct err *err)
{
    l->job.memory.device_bytes = limit;
    return memory_fit(fit, &l->request, l->arena, err);
}

static int64_t most_bytes(const struct ladder *l, const struct memory_fit *fit)
{
    int64_t n_bytes = 0;

    for (int i = 0; i < l->job.parallel.pp; i++)
        n_bytes = max_i64(n_bytes, fit->ranks[i].device_bytes);
    return n_bytes;
}

static int find_floor(struct ladder *l, int64_t *floor, int64_t whole, struct err *err)
{
    struct memory_fit fit;
    int status = 0;

    *floor = whole;
    l->request.takes_least = true;
    for (int i = 0, is_lower = 1; i < N_FLOORS && is_lower && !status; i++) {
        status = fit_within(l, &fit, *floor, err);
        if (status)
            break;
        int64_t least = most_bytes(l, &fit);
        is_lower = least < *floor;
        *floor = min_i64(*floor, least);
    }
    l->request.takes_least = false;
    return status;
}

static void take_rung(struct ladder *l, struct memory_rung *rung, const struct memory_rung *below)
{
    rung->fits = !fit_within(l, &rung->fit, rung->limit_bytes, &rung->why);
    if (rung->fits && l->whole_ns)
        memory_simulate(&rung->fit, &l->request);
    if (rung->fits)
        rung->added_ns = added_ns(l, &rung->fit);
    if (below && below->fits && (!rung->fits || below->added_ns < rung->added_ns))
        *rung = (struct memory_rung){ rung->limit_bytes, true, below->fit, below->added_ns, { 0 } };
}

int memory_ladder(struct memory_rung *rungs, int n_rungs, const struct memory_fit_request *request,
                  struct arena *arena, struct err *err)
{
    struct ladder l = { .request = *request, .job = *request->job, .arena = arena };
    struct memory_fit all;
    int64_t floor;

    l.request.job = &l.job;
    l.request.reuse = &l.reuse;
    if (fit_within(&l, &all, NO_LIMIT, err) < 0)
        return -1;
    int64_t whole = most_bytes(&l, &all);
    l.whole_ns = memory_simulate(&all, &l.request);
    if (find_floor(&l, &floor, whole, err) < 0)
        return -1;
    for (int i = 0; i < n_rungs; i++) {
        rungs[i] = (struct memory_rung){
            .limit_bytes = n_rungs > 1 ? floor + (whole - floor) * i / (n_rungs - 1) : floor
        };
        take_rung(&l, &rungs[i], i ? &rungs[i - 1] : NULL);
    }
    return 0;
}
