/*
 * read_impl.h - what the parts of job_read share
 */
#ifndef CONFIG_READ_IMPL_H
#define CONFIG_READ_IMPL_H

#include "base/num.h"
#include "config/deprecated_impl.h"
#include "config/diagnostics_impl.h"
#include "config/fields_impl.h"

#define JOB_MAX_NOTES 48

struct job_reader {
    struct job *job;
    struct arena *arena;
    struct diagnostics mistakes;
    const struct yaml_node **given; /* by index in job_fields: the node it came from, or NULL */
    char *refused; /* by index in job_fields: it was meant to be given, and what is wrong is said */
    const struct deprecated_keys *deprecated;
    /* By index in job_fields: the deprecated key that gave it, or NULL. */
    const struct deprecated_key **deprecated_by;
    int n_warnings_max;
    const char *model_folder; /* that the key model names, where weights are too; or NULL */
    int model_failed;         /* said so already: its missing fields are no news */
    int model_only;           /* what is missing beside the model's fields is none */
};

/* The node that a field was given by, or NULL. The key must be a field's. */
const struct yaml_node *reader_given(const struct job_reader *reader, const char *key);

/* Read a map of fields whose keys begin with prefix ("" or "model"); "model" itself only in a job.
 */
void reader_take_map(struct job_reader *reader, const struct yaml_node *map, const char *prefix);

/* The value of the key model: a name, a HF folder, or a map of fields with an optional from. */
void reader_take_model(struct job_reader *reader, const struct yaml_node *node);

/*
 * Fill the model from the config.json of a HF folder; given says at which node that was asked for.
 * Families and features that lmtrain does not have are mistakes that name them. Returns 0 or -1.
 */
int hf_config_read(struct job_reader *reader, const struct yaml_node *node, const char *folder);

/* The same from the file's text; path (it must live on) names it in messages. */
int hf_config_take(struct job_reader *reader, const char *path, const char *text, size_t n_bytes);

/* Fill the fields that follow from others, with a note each, then hold fields against each other.
 */
void reader_derive(struct job_reader *reader);
/* And parallel.bucket_mb, of a job that has been checked. */
void reader_derive_buckets(struct job_reader *reader);
void reader_check(struct job_reader *reader);

/* check_overlap.c: after sequence_parallel is known. */
void reader_check_overlap(struct job_reader *reader);

/* Of reader_check, what parallel.cp and cp_kind ask of the model and of lengths; and the cp_kind of
 * auto. */
void reader_check_context(struct job_reader *reader);

/* check_schedule.c: of the learning rate. */
void reader_check_schedule(struct job_reader *reader);

/* groups.c: patterns of optimizer.groups; after what is trained is known. */
void reader_check_groups(struct job_reader *reader);

/* check_eval.c: of evaluations, and of the checkpoints that are kept by them. */
void reader_check_eval(struct job_reader *reader);

/* check_sweep.c: sweep.*, of a job that has a sweep. */
void reader_check_sweep(struct job_reader *reader);

/* check_experts.c: of a model with experts; and of it with the job's ranks. */
void reader_check_experts(struct job_reader *reader);
void reader_check_expert_ranks(struct job_reader *reader);
void context_resolve(struct job *job, struct arena *arena);

/* Refuse what parallel.compress cannot be given with; with one data-parallel rank there is none.
 * After gradient_sum. Returns 0, or -1 and ERR_CONFIG. */
int compress_resolve(struct job *job, struct arena *arena, struct err *err);

/* fp8_layers.c: of reader_check, what train.fp8 requires; and notes of what it leaves out. */
void reader_check_fp8(struct job_reader *reader);
void fp8_note(struct job *job, struct arena *arena);

/* check_optimizer.c */
void reader_check_optimizer(struct job_reader *reader);

/* Of reader_check, how memory.* must fit together. */
void reader_check_memory(struct job_reader *reader);

/* Of reader_derive, what is trained: job.tuning, and targets and modules that follow from
 * others. */
void reader_derive_tuning(struct job_reader *reader);

/*
 * Note that a field, or all fields of a group, were meant to be given by what is wrong, so that
 * they are not said to be missing besides. Any other text is none of them.
 */
void reader_refuse(struct job_reader *reader, const char *key);

/* job_read_text with another table of deprecated keys, for tests of them. */
int job_read_text_with(struct job *job, const char *text, size_t n_bytes, const char *source,
                       const char *const *overrides, int n_overrides,
                       const struct deprecated_keys *deprecated, struct arena *arena,
                       struct err *err);

/* Put down that a key is unknown, with what was probably meant. */
void reader_add_unknown(struct job_reader *reader, const struct yaml_node *node, const char *key);

/*
 * Where the first of these fields, ended by NULL, that the job file or an override gives stands,
 * for messages of what is found later; the job's name if it gives none.
 */
const char *job_place(const struct job *job, const char *const *keys);

/* Add a note on a derived value. */
void job_note(struct job *job, struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline int largest_count(const struct job_counts *counts)
{
    int largest = 0;

    for (int i = 0; i < counts->n; i++)
        largest = max_int(largest, counts->values[i]);
    return largest;
}

#endif
