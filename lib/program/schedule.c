/*
 * schedule.c - from a rank's steps in the pipeline to its actions
 *
 * The steps of all ranks have one common order that suits all of them (pipeline_time). Each rank
 * walks its own steps in it, and those steps of its neighbours that send something to it. A send
 * follows the step that computes what it sends, and the receive has the same position in the other
 * rank's actions: bytes arrive while other steps compute, both ends of a channel have the same
 * order, and no send waits for a receive that is posted after something that waits for the send.
 * What results for 1F1B (Narayanan et al. 2021) on rank 0 of 2, with two micro-batches:
 *
 *     load 0   forward 0 (m 0)   send forward 0 (m 0)
 *     load 1   forward 0 (m 1)   send forward 0 (m 1)
 *     receive backward 0 (m 0)   backward 0 (m 0)   receive backward 0 (m 1)   backward 0 (m 1)
 *     gate   update
 *
 * A step of many micro-batches is mostly one round of actions that repeats (pipeline_stretch): one
 * round is derived and then copied.
 */
#include <stdbool.h>

#include "base/num.h"
#include "program/passes.h"

struct scheduling {
    const struct chunk_functions *chunks; /* [size][n_chunks] */
    const int *size_of;                   /* by micro-batch; NULL: 0 */
    struct entry *entry;
    int n_loaded, n_micro_batches, n_chunks;
};

static const struct chunk_functions *functions_of(const struct scheduling *s, int chunk,
                                                  int micro_batch)
{
    int size = s->size_of ? s->size_of[micro_batch] : 0;

    return &s->chunks[size * s->n_chunks + chunk];
}

static void push(struct scheduling *s, struct action action)
{
    s->entry->actions[s->entry->n_actions++] = action;
}

/* Does nothing if function is -1. */
static void push_run(struct scheduling *s, int function, int micro_batch)
{
    if (function >= 0)
        push(s, (struct action){ .kind = ACTION_RUN,
                                 .first = micro_batch == 0,
                                 .function = (int16_t)function,
                                 .micro_batch = micro_batch });
}

/* Another rank runs this step: post the receive of what it sends. */
static void receive(struct scheduling *s, const struct pipeline_spec *spec,
                    const struct pipeline_place *place, const struct pipeline_step *step)
{
    int to = pipeline_target_of(spec, place->rank, step->kind, step->chunk);
    const struct chunk_functions *c =
        functions_of(s, pipeline_chunk_of(spec, to), step->micro_batch);

    push_run(s, step->kind == STEP_F ? c->receive_forward : c->receive_backward, step->micro_batch);
}

static void compute(struct scheduling *s, const struct pipeline_step *step)
{
    const struct chunk_functions *c = functions_of(s, step->chunk, step->micro_batch);
    int m = step->micro_batch, last = m + 1 == s->n_micro_batches;

    if (step->kind == STEP_F) {
        while (s->n_loaded <= m)
            push(s, (struct action){ .kind = ACTION_LOAD, .micro_batch = s->n_loaded++ });
        push_run(s, c->forward, m);
        push_run(s, c->send_forward, m);
        return;
    }
    if (step->kind != STEP_W && c->weight != c->backward)
        push_run(s, c->backward, m);
    if (step->kind == STEP_W || c->weight == c->backward)
        push_run(s, last ? c->last : c->weight, m);
    if (step->kind != STEP_W)
        push_run(s, c->send_backward, m);
    if (step->kind == STEP_B && c->weight != c->backward)
        push_run(s, last ? c->last : c->weight, m);
}

static void take_step(struct scheduling *s, const struct pipeline *pipeline, int rank,
                      const struct pipeline_place *place)
{
    const struct pipeline_step *step = &pipeline->ranks[place->rank].steps[place->step];

    if (place->rank == rank)
        compute(s, step);
    else
        receive(s, &pipeline->spec, place, step);
}

/* Take the steps that start before the time. */
static void walk_until(struct scheduling *s, struct pipeline_walk *walk, int rank, int64_t time)
{
    struct pipeline_place place;

    while (pipeline_walk_time(walk) < time && pipeline_walk_next(walk, &place))
        take_step(s, walk->pipeline, rank, &place);
}

static bool has_first_micro_batch(const struct entry *e, int first)
{
    for (int i = first; i < e->n_actions; i++)
        if (e->actions[i].micro_batch < 1)
            return true;
    return false;
}

/* The actions from `first` on are a round. Returns how often, at most n_rounds, they repeat with
 * shifted micro-batches: rounds with the last micro-batch do not, since that has actions of its
 * own. */
static int count_alike(const struct scheduling *s, int first, int shift, int n_rounds)
{
    for (int i = first; i < s->entry->n_actions; i++) {
        int m = s->entry->actions[i].micro_batch;

        n_rounds = min_int(n_rounds, (s->n_micro_batches - 2 - m) / shift);
    }
    return max_int(n_rounds, 0);
}

static void repeat(struct scheduling *s, int first, int shift, int n_rounds)
{
    struct action *actions = s->entry->actions;
    int n = s->entry->n_actions - first, end = s->entry->n_actions + n * n_rounds;

    for (int i = s->entry->n_actions; i < end; i++) {
        actions[i] = actions[i - n];
        actions[i].micro_batch += shift;
    }
    s->entry->n_actions = end;
}

/* Walk to the end of the stretch's last complete round: one round is walked and then copied. That
 * is the second round if the first one has the first micro-batch, which has actions of its own. */
static void walk_stretch(struct scheduling *s, struct pipeline_walk *walk, int rank,
                         const struct pipeline_stretch *stretch)
{
    int64_t begin, length;
    int n_rounds = pipeline_walk_rounds(walk, stretch, &begin, &length);

    if (n_rounds < 2 || pipeline_walk_time(walk) > begin)
        return;
    int first, n_loaded;
    do {
        walk_until(s, walk, rank, begin);
        first = s->entry->n_actions;
        n_loaded = s->n_loaded;
        begin += length;
        n_rounds--;
        walk_until(s, walk, rank, begin);
    } while (n_rounds > 0 && has_first_micro_batch(s->entry, first));
    n_loaded = s->n_loaded - n_loaded;
    n_rounds = count_alike(s, first, stretch->shift, n_rounds);
    if (n_loaded && n_loaded != stretch->shift)
        return;
    repeat(s, first, stretch->shift, n_rounds);
    s->n_loaded += n_loaded * n_rounds;
    pipeline_walk_skip(walk, stretch, n_rounds);
}

/* Whether micro-batches have several sizes, and therefore different functions. */
static bool has_sizes(const struct scheduling *s)
{
    for (int m = 1; s->size_of && m < s->n_micro_batches; m++)
        if (s->size_of[m] != s->size_of[0])
            return true;
    return false;
}

static void walk(struct scheduling *s, const struct pipeline *pipeline, int rank)
{
    struct arena scratch = { 0 };
    struct pipeline timed = *pipeline;
    struct err err;

    if (!timed.starts)
        CHECK(!pipeline_time(&timed, &scratch, &err));
    struct pipeline_walk walk = pipeline_walk_neighbours(&timed, rank);
    const struct pipeline_stretch *stretch = has_sizes(s) ? NULL : timed.stretches;
    for (; stretch; stretch = stretch->next)
        walk_stretch(s, &walk, rank, stretch);
    walk_until(s, &walk, rank, INT64_MAX);
    arena_release(&scratch);
}

void schedule_step(struct program *program, const struct pipeline *pipeline, int rank,
                   const struct chunk_functions *chunks, const int *size_of, int gather, int update)
{
    struct entry *entry = &program->entries[ENTRY_STEP];
    int n_micro_batches = pipeline->spec.n_micro_batches;
    struct scheduling s = { chunks, size_of, entry, 0, n_micro_batches, pipeline->spec.n_chunks };

    CHECK(n_micro_batches > 0);
    entry->actions = arena_array(&program->arena, struct action,
                                 4 * pipeline->ranks[rank].n_steps + n_micro_batches + 3);
    entry->n_actions = 0;
    push_run(&s, gather, -1);
    walk(&s, pipeline, rank);
    push(&s, (struct action){ .kind = ACTION_GATE, .micro_batch = -1 });
    push_run(&s, update, -1);
}

void schedule_forward(struct program *program, enum entry_kind kind,
                      const struct chunk_functions *chunks, int n_chunks)
{
    struct entry *entry = &program->entries[kind];
    struct scheduling s = { chunks, NULL, entry, 0, 1, n_chunks };

    entry->actions = arena_array(&program->arena, struct action, 3 * n_chunks + 1);
    entry->n_actions = 0;
    push(&s, (struct action){ .kind = ACTION_LOAD });
    for (int c = 0; c < n_chunks; c++) {
        push_run(&s, chunks[c].receive_forward, 0);
        push_run(&s, chunks[c].forward, 0);
        push_run(&s, chunks[c].send_forward, 0);
    }
}
