/*
 * pipeline_flush.c - GPipe, 1F1B and breadth-first
 *
 * GPipe (Huang et al. 2019, figure 2c) runs all forwards first. 1F1B (Narayanan et al. 2021, figure
 * 3) begins backwards as soon as the later ranks are busy, so that live activations are bounded by
 * the distance to the last rank and not by the number of micro-batches. Breadth-first (Lamy-Poirier
 * 2023) is GPipe chunk by chunk: with parameters gathered per chunk it gathers each chunk once for
 * the forwards and once for the backwards, not once a micro-batch.
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
