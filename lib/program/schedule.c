/*
 * schedule.c - from a rank's steps in the pipeline to its actions
 *
 * A receive stands one step ahead of the step that needs it, so that its bytes can come while that
 * one computes; sends follow what they send. Both sides of a channel order their transfers by the
 * steps of the same list of micro-batches, so their orders agree.
 */
#include "program/passes.h"

struct scheduling {
    const struct chunk_functions *chunks;
    struct entry *entry;
    int n_loaded, n_micro_batches;
};

static void push(struct scheduling *s, struct action action)
{
    s->entry->actions[s->entry->n_actions++] = action;
}

/* function: -1 is none. */
static void push_run(struct scheduling *s, int function, int micro_batch)
{
    if (function >= 0)
        push(s, (struct action){ .kind = ACTION_RUN,
                                 .first = micro_batch == 0,
                                 .function = (int16_t)function,
                                 .micro_batch = micro_batch });
}

static void receive(struct scheduling *s, const struct pipeline_step *step)
{
    const struct chunk_functions *c = &s->chunks[step->chunk];

    if (step->kind == STEP_F)
        push_run(s, c->receive_forward, step->micro_batch);
    else if (step->kind != STEP_W)
        push_run(s, c->receive_backward, step->micro_batch);
}

static void compute(struct scheduling *s, const struct pipeline_step *step)
{
    const struct chunk_functions *c = &s->chunks[step->chunk];
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

void schedule_step(struct program *program, const struct pipeline_list *list,
                   const struct chunk_functions *chunks, int gather, int update,
                   int n_micro_batches)
{
    struct entry *entry = &program->entries[ENTRY_STEP];
    struct scheduling s = { chunks, entry, 0, n_micro_batches };

    CHECK(n_micro_batches > 0);
    entry->actions =
        arena_array(&program->arena, struct action, 4 * list->n_steps + n_micro_batches + 3);
    entry->n_actions = 0;
    push_run(&s, gather, -1);
    for (int i = 0; i < list->n_steps; i++) {
        if (i == 0)
            receive(&s, &list->steps[0]);
        if (i + 1 < list->n_steps)
            receive(&s, &list->steps[i + 1]);
        compute(&s, &list->steps[i]);
    }
    push(&s, (struct action){ .kind = ACTION_GATE, .micro_batch = -1 });
    push_run(&s, update, -1);
}

void schedule_forward(struct program *program, enum entry_kind kind,
                      const struct chunk_functions *chunks, int n_chunks)
{
    struct entry *entry = &program->entries[kind];
    struct scheduling s = { chunks, entry, 0, 1 };

    entry->actions = arena_array(&program->arena, struct action, 3 * n_chunks + 1);
    entry->n_actions = 0;
    push(&s, (struct action){ .kind = ACTION_LOAD });
    for (int c = 0; c < n_chunks; c++) {
        push_run(&s, chunks[c].receive_forward, 0);
        push_run(&s, chunks[c].forward, 0);
        push_run(&s, chunks[c].send_forward, 0);
    }
}
