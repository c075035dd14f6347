/*
 * pipeline_flush.c - GPipe, 1F1B and breadth-first
 *
 * GPipe warms up with everything. 1F1B stops as soon as the ranks behind it are busy, so that what
 * is alive is bounded by the distance to the last rank and no longer by the number of
 * micro-batches. Breadth-first is GPipe chunk by chunk: with parameters gathered per chunk it
 * gathers each once a direction, not once a micro-batch.
 */
#include "base/num.h"
#include "layout/pipeline_impl.h"

void write_gpipe(struct list_writer *writer, const struct pipeline_spec *spec, int rank)
{
    (void)rank;
    write_steps(writer, STEP_F, 0, spec->n_micro_batches);
    write_steps(writer, STEP_B, 0, spec->n_micro_batches);
}

void write_1f1b(struct list_writer *writer, const struct pipeline_spec *spec, int rank)
{
    int warmup = min_int(spec->n_ranks - 1 - rank, spec->n_micro_batches);

    write_steps(writer, STEP_F, 0, warmup);
    for (int m = warmup; m < spec->n_micro_batches; m++) {
        write_step(writer, STEP_F, 0);
        write_step(writer, STEP_B, 0);
    }
    write_steps(writer, STEP_B, 0, warmup);
}

void write_breadth_first(struct list_writer *writer, const struct pipeline_spec *spec, int rank)
{
    (void)rank;
    for (int chunk = 0; chunk < spec->n_chunks; chunk++)
        write_steps(writer, STEP_F, chunk, spec->n_micro_batches);
    for (int chunk = spec->n_chunks - 1; chunk >= 0; chunk--)
        write_steps(writer, STEP_B, chunk, spec->n_micro_batches);
}
