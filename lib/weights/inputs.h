/*
 * inputs.h - a micro-batch into a program's input cells
 */
#ifndef WEIGHTS_INPUTS_H
#define WEIGHTS_INPUTS_H

#include "data/stream/loader.h"
#include "run/run.h"

/* Copy the batch to the micro-batch's inputs, those of them that the program has. */
void inputs_of_batch(struct run *run, const struct program *program,
                     const struct micro_batch *batch, int number);

#endif
