/*
 * bench_impl.h - the step that is measured; which collectives are, and in how much memory
 */
#ifndef TRAIN_BENCH_IMPL_H
#define TRAIN_BENCH_IMPL_H

#include "run/run.h"
#include "train/bench.h"

/* The job's step of this rank, which fits. Returns 0, or -1 and ERR_DEVICE; the caller releases the
 * program in either case. */
int bench_compile(struct program *program, const struct job *job, struct engine *engine,
                  struct err *err);

/* A run of bench's program, whose parameters are filled. Collective; errors as run_create's. */
int bench_open_run(struct run **run, const struct bench *bench, const struct job *job,
                   struct engine *engine, struct err *err);

/* What bench_collectives measures, without its figures, in the arena. Returns how many. */
int bench_list_collectives(int world_size, size_t max_bytes, struct bench_collective **list,
                           struct arena *arena);

/* Bytes that suffice for the in, and the out, of each entry, and for the scratch of each. */
void bench_collective_memory(const struct bench_collective *list, int n, size_t *operand_bytes,
                             size_t *scratch_bytes);

#endif
