/*
 * pipeline_impl.h - what the families of schedules share
 */
#ifndef LAYOUT_PIPELINE_IMPL_H
#define LAYOUT_PIPELINE_IMPL_H

#include "layout/pipeline.h"

/*
 * Writes one rank's list. As all orders are increasing within a chunk, a step is named by kind and
 * chunk: the writer counts. What is counted beyond the last micro-batch is left out.
 */
struct list_writer {
    struct pipeline_list *list;
    int capacity;
    int n_micro_batches;
    int next[N_STEP_KINDS][PIPELINE_CHUNKS_MAX];
};

/* The next step of this kind and chunk; gives its micro-batch, even if that is left out. */
int write_step(struct list_writer *writer, enum pipeline_step_kind kind, int chunk);
void write_steps(struct list_writer *writer, enum pipeline_step_kind kind, int chunk, int n);

/* How many steps of this kind and chunk were written. */
int n_written(const struct list_writer *writer, enum pipeline_step_kind kind, int chunk);

/* One rank's list of each family. */
void write_gpipe(struct list_writer *writer, const struct pipeline_spec *spec, int rank);
void write_1f1b(struct list_writer *writer, const struct pipeline_spec *spec, int rank);
void write_breadth_first(struct list_writer *writer, const struct pipeline_spec *spec, int rank);
void write_interleaved(struct list_writer *writer, const struct pipeline_spec *spec, int rank);
void write_zb_h1(struct list_writer *writer, const struct pipeline_spec *spec, int rank);
void write_zb_h2(struct list_writer *writer, const struct pipeline_spec *spec, int rank);
void write_zb_v(struct list_writer *writer, const struct pipeline_spec *spec, int rank);

/* All ranks' lists of spec; spec is checked and, for dynamic, its group chosen. */
void build_lists(struct pipeline *pipeline, const struct pipeline_spec *spec, struct arena *arena);

/* The size of dynamic's groups, chosen as pipeline.h describes. */
int choose_group(const struct pipeline_spec *spec);

/* The largest of the groups into which interleaved cuts the micro-batches. */
int largest_group(const struct pipeline_spec *spec);

/* Steps begin .. begin + n * n_times - 1 of a list are n_times rounds of n steps, each round
 * `shift` micro-batches later than the one before. */
struct list_rounds {
    int begin, n, shift, n_times;
    int far_at; /* list_next_rounds': where it looks for long rounds next */
};

/* The next rounds from step i on, two of them or more. Where none are found begin is the end of the
 * list, n and n_times 0. Calls for one list use one *rounds, all zero at first. */
void list_next_rounds(const struct pipeline_list *list, int i, struct list_rounds *rounds);

/*
 * How many times, at most `most`, the n steps before step i are done again from there on, each time
 * `shift` micro-batches later than the time before.
 */
int list_count_rounds(const struct pipeline_list *list, int i, int n, int shift, int most);

/* pipeline_simulate with F = I = W = 1 (times sizes) and no transfer time. */
int simulate_units(struct pipeline_timing *timing, const struct pipeline *pipeline,
                   struct arena *arena, struct err *err);

/* "F3.1" of the header; returns buffer. */
const char *step_text(char *buffer, size_t size, const struct pipeline_spec *spec,
                      const struct pipeline_step *step);

#endif
