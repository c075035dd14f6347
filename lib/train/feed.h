/*
 * feed.h - a micro-batch into a program's input cells
 */
#ifndef TRAIN_FEED_H
#define TRAIN_FEED_H

#include "data/loader.h"
#include "run/run.h"

/* Copy the batch to the micro-batch's inputs, those of them that the program has. */
void feed_batch(struct run *run, const struct program *program, const struct micro_batch *batch,
                int number);

#endif
