/*
 * timelines.c - spans of a simulation as ranks of a timeline
 */
#include "timelines.h"

#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "layout/axes.h"
#include "plan/step_time.h"

/* Spans of one pipeline rank. */
struct collected {
    struct timeline_span *spans;
    int n, capacity;
};

struct collecting {
    struct collected *stages;
    struct arena *arena;
};

static void add_span(struct collecting *c, struct collected *stage, struct timeline_span span)
{
    stage->spans =
        arena_grow(c->arena, stage->spans, sizeof *stage->spans, &stage->capacity, stage->n + 1);
    stage->spans[stage->n++] = span;
}

/* Slices add up to the table of a step's time: what an op takes longer counts as TIME_OVERLAP. */
static void on_span(void *context, const struct simulated_span *s)
{
    struct collecting *c = context;
    struct collected *stage = &c->stages[s->rank];

    struct timeline_span span = { .action = s->action,
                                  .op = s->op,
                                  .stream = s->stream,
                                  .begin = s->begin,
                                  .end = s->end - s->slowed,
                                  .class = s->class,
                                  .slowed = s->slowed };

    if (s->price) {
        span.bound = price_bound_name(s->price->bound);
        span.source = price_source_name(s->price->source);
    }
    add_span(c, stage, span);
    if (s->slowed)
        add_span(c, stage,
                 (struct timeline_span){ .action = s->action,
                                         .op = -1,
                                         .stream = s->stream,
                                         .begin = span.end,
                                         .end = s->end,
                                         .class = TIME_OVERLAP });
}

void timelines_add(struct timeline_list *list, const struct timeline_rank *rank)
{
    list->ranks =
        arena_grow(list->arena, list->ranks, sizeof *list->ranks, &list->capacity, list->n + 1);
    list->ranks[list->n++] = *rank;
}

static void add_stage(struct timeline_list *list, const struct plan *plan, int rank, int stage,
                      const struct collected *spans)
{
    timelines_add(list, &(struct timeline_rank){ .rank = rank,
                                                 .program = &plan->programs[stage],
                                                 .spans = spans->spans,
                                                 .n = spans->n });
}

int timelines_add_predicted(struct timeline_list *list, const struct plan *plan,
                            const struct cluster *cluster, const int *ranks, int n_ranks,
                            struct err *err)
{
    int n = plan->job->parallel.pp;
    struct mesh mesh = job_mesh(plan->job);
    struct collecting c = { .stages = arena_array(list->arena, struct collected, n),
                            .arena = list->arena };
    struct simulate_watch watch = { &c, on_span };
    struct simulated_step step;

    if (step_time_simulate(&step, plan->job, plan->programs, cluster, &watch, NULL, list->arena,
                           err))
        return -1;
    if (!n_ranks && n > TIMELINE_RANKS_MAX)
        log_warn("a timeline has at most %d ranks: these are of stages 0 to %d of %d",
                 TIMELINE_RANKS_MAX, TIMELINE_RANKS_MAX - 1, n);
    for (int i = 0; i < n && !n_ranks && list->n < TIMELINE_RANKS_MAX; i++)
        add_stage(list, plan, mesh_stage_ranks(&mesh, i).first, i, &c.stages[i]);
    for (int i = 0; i < n_ranks; i++) {
        int stage = mesh_coordinate(&mesh, ranks[i], axes_stages());

        add_stage(list, plan, ranks[i], stage, &c.stages[stage]);
    }
    return 0;
}

int timelines_write(const struct timeline_list *list, const struct plan *plan, const char *title,
                    const char *path, struct timeline_order *order, struct err *err)
{
    struct mesh mesh = job_mesh(plan->job);
    struct timeline timeline = {
        .mesh = &mesh, .ranks = list->ranks, .n = list->n, .title = title
    };
    struct str out = { 0 };

    timeline_print(&timeline, order, &out);
    int status = file_write(path, str_text(&out), out.length, err);
    str_release(&out);
    return status;
}
