/*
 * bench_impl.h - which collectives are measured, and in how much memory
 */
#ifndef TRAIN_BENCH_IMPL_H
#define TRAIN_BENCH_IMPL_H

#include "train/bench.h"

/* What bench_collectives measures, without its figures, in the arena. Returns how many. */
int bench_list_collectives(int world_size, size_t max_bytes, struct bench_collective **list,
                           struct arena *arena);

/* Bytes that suffice for the in, and the out, of each entry, and for the scratch of each. */
void bench_collective_memory(const struct bench_collective *list, int n, size_t *operand_bytes,
                             size_t *scratch_bytes);

#endif
