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

/* A predicted step, by rank of the simulation. */
struct predicted {
    struct step_replica *replicas;
    int *of_data_rank, n;
    struct collected *ranks;
};

static int predict(struct predicted *p, const struct timeline_list *list, const struct plan *plan,
                   const struct cluster *cluster, struct err *err)
{
    int dp = plan->job->parallel.dp;
    struct simulated_step step;

    p->replicas = arena_array(list->arena, struct step_replica, dp);
    p->of_data_rank = arena_array(list->arena, int, dp);
    p->n = step_time_replicas(p->replicas, p->of_data_rank, list->replicas, cluster, err);
    if (p->n < 0)
        return -1;
    p->ranks = arena_array(list->arena, struct collected, plan->job->parallel.pp * p->n);
    struct collecting c = { .stages = p->ranks, .arena = list->arena };
    struct simulate_watch watch = { &c, on_span };
    return step_time_simulate(&step, plan->job, p->replicas, p->n, cluster, &watch, NULL,
                              list->arena, err);
}

/* The first rank of each stage, as many as a timeline has. */
static int list_first_ranks(int *ranks, const struct plan *plan, const struct cluster *cluster,
                            struct arena *arena, struct err *err)
{
    const struct mesh mesh = job_mesh(plan->job);
    int n = plan->job->parallel.pp;
    struct step_time time;

    if (step_time_predict(&time, plan, cluster, arena, err))
        return -1;
    if (n > TIMELINE_RANKS_MAX)
        log_warn("a timeline has at most %d ranks: these are of stages 0 to %d of %d",
                 TIMELINE_RANKS_MAX, TIMELINE_RANKS_MAX - 1, n);
    n = min_int(n, TIMELINE_RANKS_MAX);
    for (int i = 0; i < n; i++)
        ranks[i] = mesh_replica_ranks(&mesh, i, max_int(0, time.replica)).first;
    return n;
}

int timelines_add_predicted(struct timeline_list *list, const struct plan *plan,
                            const struct cluster *cluster, const int *ranks, int n_ranks,
                            struct err *err)
{
    const struct mesh mesh = job_mesh(plan->job);
    int *first = arena_array(list->arena, int, plan->job->parallel.pp);
    struct predicted predicted;

    if (predict(&predicted, list, plan, cluster, err))
        return -1;
    if (!n_ranks) {
        n_ranks = list_first_ranks(first, plan, cluster, list->arena, err);
        ranks = first;
    }
    for (int i = 0; i < n_ranks; i++) {
        int stage = mesh_coordinate(&mesh, ranks[i], axes_stages());
        int like = predicted.of_data_rank[mesh_data_rank(&mesh, ranks[i])];
        const struct collected *spans = &predicted.ranks[stage * predicted.n + like];

        timelines_add(list,
                      &(struct timeline_rank){ .rank = ranks[i],
                                               .program = &predicted.replicas[like].programs[stage],
                                               .spans = spans->spans,
                                               .n = spans->n });
    }
    return n_ranks < 0 ? -1 : 0;
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
