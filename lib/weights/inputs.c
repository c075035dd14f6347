/*
 * inputs.c - copies a batch's parts to their cells
 */
#include "weights/inputs.h"

static void feed(struct run *run, const struct program *program, int input, const void *data,
                 int number)
{
    if (input)
        run_put(run, input, number, 0, data, program_value_bytes(program, input));
}

void inputs_of_batch(struct run *run, const struct program *program,
                     const struct micro_batch *batch, int number)
{
    const struct ports *ports = &program->ports;

    feed(run, program, ports->tokens, batch->tokens, number);
    feed(run, program, ports->targets, batch->targets, number);
    feed(run, program, ports->positions, batch->positions, number);
    feed(run, program, ports->rows, batch->rows, number);
    feed(run, program, ports->samples, batch->samples, number);
    feed(run, program, ports->attention_positions, batch->attention_positions, number);
    feed(run, program, ports->starts, batch->starts, number);
    feed(run, program, ports->last, batch->last, number);
    feed(run, program, ports->ring_first, batch->ring_first, number);
    feed(run, program, ports->ring_last, batch->ring_last, number);
    feed(run, program, ports->window_first, batch->window_first, number);
    feed(run, program, ports->window_last, batch->window_last, number);
}
