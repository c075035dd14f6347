/*
 * schedule.c - the order of a step's actions
 *
 * With one pipeline stage there is one order: each micro-batch forward and backward before the
 * next, so that one slot of each stash serves all, and accumulators see the micro-batches in increasing order.
 */
#include "program/passes.h"

static void push(struct entry *entry, struct action action)
{
    entry->actions[entry->n_actions++] = action;
}

void schedule_step(struct program *program, int gather, int forward, int backward, int last,
                   int update, int n_micro_batches)
{
    struct entry *entry = &program->entries[ENTRY_STEP];

    CHECK(n_micro_batches > 0);
    entry->actions = arena_array(&program->arena, struct action, 3 * n_micro_batches + 3);
    entry->n_actions = 0;
    if (gather >= 0)
        push(entry,
             (struct action){ .kind = ACTION_RUN, .function = (int16_t)gather, .micro_batch = -1 });
    for (int m = 0; m < n_micro_batches; m++) {
        int back = m + 1 == n_micro_batches ? last : backward;

        push(entry, (struct action){ .kind = ACTION_LOAD, .micro_batch = m });
        push(entry, (struct action){ .kind = ACTION_RUN,
                                     .first = m == 0,
                                     .function = (int16_t)forward,
                                     .micro_batch = m });
        push(entry, (struct action){ .kind = ACTION_RUN,
                                     .first = m == 0,
                                     .function = (int16_t)back,
                                     .micro_batch = m });
    }
    push(entry, (struct action){ .kind = ACTION_GATE, .micro_batch = -1 });
    push(entry,
         (struct action){ .kind = ACTION_RUN, .function = (int16_t)update, .micro_batch = -1 });
}
