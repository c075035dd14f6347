/*
 * job_layout.h - the fields of a job that are its layout: what a search chooses
 *
 * One table names the fields and where struct layout and struct job keep them. All that treats a
 * layout field by field follows from it: giving a job a layout, taking one from a job, comparing
 * two, printing one, what parallel.mode leaves open. To add a field: its row in
 * fields_parallel.inc, a member of struct layout, a key and a row in job_layout.c; then the search
 * lists its values (plan/search_space.c).
 */
#ifndef CONFIG_JOB_LAYOUT_H
#define CONFIG_JOB_LAYOUT_H

#include "config/job.h"

/* In the order in which two layouts are compared. */
enum layout_key {
    LAYOUT_TP,
    LAYOUT_PP,
    LAYOUT_DP,
    LAYOUT_CP,
    LAYOUT_CP_KIND,
    LAYOUT_EP,
    LAYOUT_CHUNKS,
    LAYOUT_SCHEDULE,
    LAYOUT_ZERO,
    LAYOUT_ZERO_GROUP,
    LAYOUT_HOLD,
    LAYOUT_BUCKET,
    LAYOUT_RECOMPUTE,
    LAYOUT_MICRO_BATCH,
    LAYOUT_ORDER,
    LAYOUT_STAGES,
    LAYOUT_COUNTS,
    LAYOUT_FULL_LAYERS,
    LAYOUT_SELECTIVE_LAYERS,
    N_LAYOUT_KEYS
};

struct layout {
    int tp, pp, dp, cp, chunks;
    int ep; /* of the dp ranks */
    enum cp_kind cp_kind;
    struct cp_sizes cp_sizes; /* of cp_kind, where they are given */
    enum pipeline_kind schedule;
    int zero, zero_group, bucket_mb, micro_batch;
    enum recompute_mode recompute;
    enum parameter_hold hold;
    enum rank_order order;
    struct job_counts stages; /* layers of each stage; none: cut by cost as compiling does */
    struct job_counts counts; /* micro-batches of each data-parallel rank; none: all alike */
    struct job_counts full_layers, selective_layers; /* of each stage, that are recomputed so */
};

/* The field's name: "parallel.zero_group"; and without its group: "zero_group". */
const char *layout_field(enum layout_key key);
const char *layout_word(enum layout_key key);

/* A key is a number (of an enum, its value), or a list: then layout_value is 0, else layout_list
 * NULL. */
int layout_value(const struct layout *layout, enum layout_key key);
const struct job_counts *layout_list(const struct layout *layout, enum layout_key key);

/* tp * pp * dp * cp. */
int layout_n_ranks(const struct layout *layout);

/* Whether, in the job's layout, the ranks of each sequence get equally many rows and heads. */
bool layout_divides_sequences(const struct job *job);

/* Below, equal to or above 0. A list is below those that it begins. */
int layout_compare(const struct layout *a, const struct layout *b);

/* The job's layout; lists are the job's. */
struct layout layout_of_job(const struct job *job);

/* Give the job the layout, as if it were given in its file; it is then resolved as usual. */
void layout_apply(struct job *job, const struct layout *layout);

/*
 * Give the job the values of all fields that make the numerics of a layout (tp, dp, micro_batch,
 * how gradients are summed, ...) as the run of an earlier job has them, as if the job gave them: a
 * search then finds layouts with the bits of the run.
 */
void layout_keep_numerics(struct job *job, const struct job *run, struct arena *arena);

/* Append the value of a key of the job's layout, as YAML. */
void layout_print_value(const struct job *job, enum layout_key key, struct str *out);

/* The word for a value of the key: "1f1b"; NULL where values are numbers, or lists. */
const char *layout_value_word(enum layout_key key, int value);

/* Whether parallel.mode leaves the key to a search: it is not in the job's file, say. */
bool layout_is_open(const struct job *job, enum layout_key key);

/* Whether a field of any name is one that parallel.mode chooses and the job does not give: where it
 * is not written, the job reads back as left to a search. */
bool layout_is_unset(const struct job *job, const char *field);

/* Whether parallel.mode refuses that the key is given, too. */
bool layout_is_refused(enum parallel_mode mode, enum layout_key key);

#endif
