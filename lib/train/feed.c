/*
 * feed.c - copies a batch's parts to their cells
 */
#include "train/feed.h"

#include <string.h>

static void feed(struct run *run, const struct program *program, int input, const void *data,
                 int slot)
{
    if (input)
        memcpy(run_data(run, input, slot), data, program_value_bytes(program, input));
}

void feed_batch(struct run *run, const struct program *program, const struct micro_batch *batch,
                int slot)
{
    const struct ports *ports = &program->ports;

    feed(run, program, ports->tokens, batch->tokens, slot);
    feed(run, program, ports->targets, batch->targets, slot);
    feed(run, program, ports->positions, batch->positions, slot);
    feed(run, program, ports->samples, batch->samples, slot);
}
