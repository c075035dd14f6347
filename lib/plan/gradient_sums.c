/*
 * gradient_sums.c - spans of a simulation, by chunk
 */
#include "plan/gradient_sums.h"

#include <stdbool.h>

#include "base/num.h"

struct period {
    int64_t begin, end;
    int chunk;
};

struct periods {
    struct period *list;
    int n, capacity;
};

/* Of a rank: its sums, and when it waits for sums. Under zero 0 what is waited for are gathers of
 * the sums; others are of weights. */
struct rank_periods {
    struct periods sums, waits, gather_waits;
    bool gathers_sums;
    int64_t *backwards; /* [n_chunks] */
    int n_chunks;
};

struct gradient_collecting {
    const struct program *const *programs;
    struct rank_periods *ranks;
    struct arena *arena;
};

static bool is_sum(const struct program *p, const struct op *op)
{
    int out = op->out[OPS_FIRST];

    return (op->stream == STREAM_DP_REDUCE || op->stream == STREAM_DP_GATHER) &&
           op->phase == PHASE_W && p->values[program_base(p, out)].role == ROLE_GRADIENT;
}

static bool is_of_backward(const struct op *op)
{
    return op->phase == PHASE_B || op->phase == PHASE_W || op->phase == PHASE_R;
}

static void add_period(struct arena *arena, struct periods *periods, struct period period)
{
    periods->list =
        arena_grow(arena, periods->list, sizeof *periods->list, &periods->capacity, periods->n + 1);
    periods->list[periods->n++] = period;
}

static void see_op(struct gradient_collecting *c, const struct simulated_span *span)
{
    const struct program *p = c->programs[span->rank];
    struct rank_periods *rank = &c->ranks[span->rank];
    const struct action *action = &p->entries[ENTRY_STEP].actions[span->action];
    const struct function *f = &p->functions[action->function];
    const struct op *op = &f->ops[span->op];

    if (is_sum(p, op)) {
        add_period(c->arena, &rank->sums, (struct period){ span->begin, span->end, f->chunk });
        rank->gathers_sums |= op->stream == STREAM_DP_GATHER;
    } else if (span->stream == STREAM_COMPUTE && is_of_backward(op)) {
        rank->backwards[f->chunk] += span->end - span->begin;
    }
}

static void see(void *context, const struct simulated_span *span)
{
    struct gradient_collecting *c = context;

    if (span->op >= 0)
        see_op(c, span);
    else if (span->class == TIME_GRADIENTS)
        add_period(c->arena, &c->ranks[span->rank].waits,
                   (struct period){ span->begin, span->end, 0 });
    else if (span->class == TIME_GATHERS)
        add_period(c->arena, &c->ranks[span->rank].gather_waits,
                   (struct period){ span->begin, span->end, 0 });
}

struct simulate_watch gradient_sums_watch(const struct program *const *programs, int n_ranks,
                                          struct arena *arena)
{
    struct gradient_collecting *c = arena_array(arena, struct gradient_collecting, 1);

    *c = (struct gradient_collecting){ .programs = programs, .arena = arena };
    c->ranks = arena_array(arena, struct rank_periods, n_ranks);
    for (int rank = 0; rank < n_ranks; rank++) {
        struct rank_periods *r = &c->ranks[rank];

        for (int i = 0; i < programs[rank]->n_functions; i++)
            r->n_chunks = max_int(r->n_chunks, programs[rank]->functions[i].chunk + 1);
        r->backwards = arena_array(arena, int64_t, r->n_chunks);
    }
    return (struct simulate_watch){ c, see };
}

/* How long the rank waits within the period; waits come in order. */
static int64_t waited_in(const struct periods *waits, const struct period *period)
{
    int64_t ns = 0;

    for (int i = waits->n - 1; i >= 0 && waits->list[i].end > period->begin; i--)
        ns += max_i64(0, min_i64(period->end, waits->list[i].end) -
                             max_i64(period->begin, waits->list[i].begin));
    return ns;
}

struct gradient_sums gradient_sums_of(const struct simulate_watch *watch, int rank)
{
    const struct gradient_collecting *c = watch->context;
    const struct rank_periods *r = &c->ranks[rank];
    struct gradient_sums sums = { .n_chunks = r->n_chunks, .backwards = r->backwards };

    sums.sums = arena_array(c->arena, int64_t, r->n_chunks);
    sums.exposed = arena_array(c->arena, int64_t, r->n_chunks);
    for (int i = 0; i < r->sums.n; i++) {
        const struct period *sum = &r->sums.list[i];
        int64_t exposed = waited_in(&r->waits, sum);

        if (r->gathers_sums)
            exposed += waited_in(&r->gather_waits, sum);

        sums.sums[sum->chunk] += sum->end - sum->begin;
        sums.exposed[sum->chunk] += exposed;
        sums.all += sum->end - sum->begin;
        sums.all_exposed += exposed;
    }
    return sums;
}

int64_t gradient_sums_formula(const struct gradient_sums *sums)
{
    int64_t ns = sums->sums[0];

    for (int chunk = 1; chunk < sums->n_chunks; chunk++)
        ns += max_i64(0, sums->sums[chunk] - sums->backwards[chunk - 1]);
    return ns;
}
