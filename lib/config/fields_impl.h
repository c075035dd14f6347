/*
 * fields_impl.h - the table of a job's fields, and the reading and writing of one value
 *
 * A row says all that is known about a field. To add a field: a member in struct job, a row in its
 * section's fields_SECTION.inc, and if it depends on others a check in check.c. Parsing, printing,
 * explaining, the man page, the JSON Schema and, if it changes bits (.numerics), the description of
 * the numerics follow from the row.
 */
#ifndef CONFIG_FIELDS_IMPL_H
#define CONFIG_FIELDS_IMPL_H

#include <stddef.h>

#include "base/choice.h"
#include "base/yaml.h"
#include "config/diagnostics_impl.h"
#include "config/job.h"
#include "config/numerics_lines.h"
#include "config/quantities_impl.h"

enum field_type {
    FIELD_INT,    /* int */
    FIELD_I64,    /* int64_t */
    FIELD_U64,    /* uint64_t, at most INT64_MAX */
    FIELD_FLOAT,  /* double */
    FIELD_BYTES,  /* int64_t: "20 GiB", or a whole number; or word */
    FIELD_RATE,   /* double, bytes/s: "12 GB/s", or word */
    FIELD_BOOL,   /* int */
    FIELD_TEXT,   /* const char * */
    FIELD_CHOICE, /* an enum */
    FIELD_NAME,   /* char[128] */
    FIELD_KINDS,  /* an enum, or a list of items: then word_value, and at items_offset a struct
                       bitset with the value of each */
    FIELD_SIZES,  /* an enum, or a map of two of its words, the first one given by `word`, to
                       numbers of ranks: then the second's value, and at items_offset a struct
                       cp_sizes */
    FIELD_COUNTS, /* struct job_counts: a list of whole numbers, or word for none */
    FIELD_TEXTS,  /* struct job_texts: a text or a list of texts, or word for none */
    FIELD_PAIRS,  /* struct job_texts: a map of texts, or word for none; "KEY=TEXT" of each */
    FIELD_GROUPS, /* optimizer.groups: a list of {match, ...}, or word for none */
    FIELD_SPACE, /* sweep.parameters: a map of ranges and lists, a list of maps, or word for none */
    FIELD_DATASETS, /* data.train: a path, or a list of paths and {path, weight} */
};

#define FIELD_ITEMS_MAX BITSET_MAX

/* The word of parallel.schedule for breadth-first with late sums. */
#define SCHEDULE_FOLD3D "fold3d"

/* When a field has a line in the description of the numerics; others have no effect. */
enum numerics_when {
    WHEN_ALWAYS,
    WHEN_SET, /* its value is not 0 (of a choice: the first of its enum), not empty */
    WHEN_LEARNED,
    WHEN_ROPE,
    WHEN_SCALED,
    WHEN_SCALED_NOT_LINEAR,
    WHEN_LLAMA3,
    WHEN_YARN,
    WHEN_EXPERTS,
    WHEN_EXPERTS_AND_SET, /* there are experts, and its value is not 0 */
    WHEN_ROUTER_SCALED,   /* their weights, by another factor than 1 */
    WHEN_ROUTER_GROUPS,
    WHEN_ROUTER_BIAS,
    WHEN_WINDOW,
    WHEN_WINDOW_PERIOD,
    WHEN_ATTENTION_BIAS,    /* one of attention alone */
    WHEN_DROPOUT_IN_LAYERS, /* but not after the embedding */
    WHEN_ADAPTERS,
    WHEN_FP16,
    WHEN_TP,
    WHEN_TP_AND_SET,
    WHEN_CP,
    WHEN_DECAY, /* of the learning rate */
    WHEN_WSD,
    WHEN_MUON,  /* the optimizer */
    WHEN_BETA1, /* the optimizer has it */
    WHEN_BETA2,
    WHEN_MOMENTUM,
    WHEN_EPS,
    WHEN_INVERSE_SQRT,
    WHEN_SEVERAL,       /* its value is more than 1 */
    WHEN_SIZES_DIFFER,  /* of micro-batches */
    WHEN_COUNTS_DIFFER, /* of micro-batches, on data-parallel ranks */
};

/* What a field is of the numerics (config/numerics_lines.h); all 0: no part of them. */
struct field_numerics {
    enum numerics_change change;
    int place; /* orders the lines; 0: the value is a part of another field's line */
    enum numerics_when when;
    int or_zero; /* at other times its line says 0, else it has none */
    /* Append the value, where the line does not have it as it is; NULL: it has. */
    void (*print)(const struct job *job, struct str *out);
};

void numerics_print_norm(const struct job *job, struct str *out);
void numerics_print_router_balance(const struct job *job, struct str *out);
void numerics_print_capacity(const struct job *job, struct str *out);
void numerics_print_original_seq_len(const struct job *job, struct str *out);
void numerics_print_alpha(const struct job *job, struct str *out);
void numerics_print_gradient_sum(const struct job *job, struct str *out);
void numerics_print_reductions(const struct job *job, struct str *out);
void numerics_print_compress(const struct job *job, struct str *out);
void numerics_print_fp8(const struct job *job, struct str *out);
void numerics_print_compress_activations(const struct job *job, struct str *out);
void numerics_print_cp_kind(const struct job *job, struct str *out);
void numerics_print_groups(const struct job *job, struct str *out);
void numerics_print_spikes(const struct job *job, struct str *out);
void numerics_print_optimizer(const struct job *job, struct str *out);
void numerics_print_states(const struct job *job, struct str *out);

struct field {
    const char *key; /* "train.steps"; the fields of a group stand together */
    enum field_type type;
    size_t offset;                /* in struct job */
    const char *initial;          /* default as YAML; NULL: must be given; "": none */
    double min, max;              /* numbers */
    int above_min;                /* min itself is out of range */
    const char *unit;             /* or NULL */
    const char *help;             /* a sentence without a full stop */
    const struct choice *choices; /* ended by word NULL */
    /* List what a list may have: values below FIELD_ITEMS_MAX, ended likewise. Returns how many. */
    int (*list_items)(struct choice items[FIELD_ITEMS_MAX + 1]);
    size_t items_offset;
    const char *item;    /* what each is, for messages: "an op of the forward" */
    const char *word;    /* "auto", if that may stand for a number */
    int word_value;      /* what is stored for the word */
    size_t given_offset; /* an int that is 1 if the value is given and not auto; 0: none */
    size_t auto_offset;  /* of FIELD_COUNTS: an int that is 1 if the value is the word auto, for a
                            list that is chosen later; 0: it has no such word */
    const struct choice *synonyms; /* words that are read as others of choices; ended likewise */
    int built_max;                 /* of FIELD_INT: job_check_built refuses larger ones; 0: none */
    const char *not_built;         /* the word of choices that it refuses, or NULL */
    struct field_numerics numerics;
};

extern const struct field job_fields[];
extern const int n_job_fields;

/* A field by its whole key, or NULL. */
const struct field *field_find(const char *key);

/* The whole key of the field that a wrong key most likely meant, or NULL. */
const char *field_suggest(const char *key);

/* Whether some field's key begins with "GROUP.". */
int field_is_group(const char *group);

/*
 * Set the field in the job from a node. A value of the wrong type or out of range is put down in
 * mistakes, and the job is left as it was. Returns 0 or -1.
 */
int field_set(const struct field *field, struct job *job, const struct yaml_node *node,
              struct diagnostics *mistakes);

/* The word of the field's choices that a synonym stands for; the text itself where it is none. */
const char *field_word(const struct field *field, const char *text);

/* Set every field to its default; those that must be given stay zero. */
void field_set_defaults(struct job *job, struct arena *arena);

/* The field's value as YAML flow text; *out grows. */
void field_print(const struct field *field, const struct job *job, struct str *out);

/* Both of a FIELD_GROUPS (groups.c). */
int field_set_groups(const struct field *field, struct job *job, const struct yaml_node *node,
                     struct diagnostics *mistakes);
void field_print_groups(const struct field *field, const struct job *job, struct str *out);

/* Both of a FIELD_SPACE (sweep_space.c). */
int field_set_space(const struct field *field, struct job *job, const struct yaml_node *node,
                    struct diagnostics *mistakes);
void field_print_space(const struct field *field, const struct job *job, struct str *out);

/* BYTES or RATE, of a FIELD_BYTES or FIELD_RATE. */
enum quantity field_quantity(const struct field *field);

/* Whether it is a FIELD_KINDS with a list; the list, with this around each word. */
int field_has_list(const struct field *field, const struct job *job);
void field_print_kinds(const struct field *field, const struct job *job, const char *quote,
                       struct str *out);

/* Text as a YAML scalar: plain if it can be, else in double quotes; "${" is written "$${". */
void field_print_text(struct str *out, const char *text);

/* The next character of UTF-8 text, between double quotes of YAML or JSON. Returns its bytes. */
int field_print_escaped(struct str *out, const char *text);

/* Text as a JSON string. */
void field_print_json_text(struct str *out, const char *text);

/* The shortest decimal that reads back to the same double. */
void field_print_float(struct str *out, double value);

/*
 * "a whole number, 1 to 10", "true or false", "one of fp32, bf16": what may be written, and which
 * of it is not built yet.
 */
void field_print_range(const struct field *field, struct str *out);

/* Add "above 1" or "auto", the values that are not built yet. Returns 0, adding nothing, if all
 * are. */
int field_print_not_built(const struct field *field, struct str *out);

#endif
