/*
 * recheck.c - the entry that computes the step's first micro-batch once more
 *
 * Its actions are those of the step, in their order, without those of other micro-batches and
 * without the update: functions, addresses and collectives are the step's, and so are the bits. The
 * step that follows starts all accumulators from zero, so nothing is left of it. On the pipeline's
 * ranks they meet as they do in a step of one micro-batch: of each channel and group some
 * collectives are left out, the same on all ranks.
 *
 *     load 0   forward 0 (m 0)   send forward 0 (m 0)   ...   backward 0 (m 0)
 */
#include "program/passes.h"

void recheck_step(struct program *program)
{
    const struct entry *step = &program->entries[ENTRY_STEP];
    struct entry *entry = &program->entries[ENTRY_RECHECK];

    entry->actions = arena_array(&program->arena, struct action, step->n_actions);
    entry->n_actions = 0;
    for (int i = 0; i < step->n_actions && step->actions[i].kind != ACTION_GATE; i++)
        if (step->actions[i].micro_batch <= 0)
            entry->actions[entry->n_actions++] = step->actions[i];
}
