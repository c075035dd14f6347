/*
 * task.h - the description of an evaluation, a file of configs/tasks
 *
 * A task has parts (the subjects of MMLU), each with files of its own, and styles: the prompts and
 * metrics of published scores. Texts are Jinja (template/text_template.h) over the fields of an
 * item's record and over `part` ({name, title, file, shots}), `n_shots` and `is_shot`; part.shots
 * is there if a file of shots is (of JSON: what it has under the part's name, or all of it). A task
 * of a known kind takes no C. A file configs/tasks/NAME.yaml in the working folder comes before the
 * one in the binary.
 */
#ifndef EVAL_TASK_H
#define EVAL_TASK_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/yaml.h"
#include "eval/answer.h"
#include "template/text_template.h"

#define TASK_FILTERS_MAX 4
#define TASK_METRICS_MAX 4

enum task_kind {
    TASK_CHOICE,   /* the likeliest of some continuations */
    TASK_GENERATE, /* a text, in which the answer is looked for */
    TASK_CODE,     /* a text that makes a program, which has to run */
};

enum task_order {
    TASK_SHOTS_FIRST,  /* the first of them */
    TASK_SHOTS_RANDOM, /* as Python's random.Random(1234).sample draws them, item by item */
};

enum task_source {
    TASK_FROM_SHOTS, /* the set for them */
    TASK_FROM_TEST,  /* the items themselves, except the one that is evaluated */
    TASK_FROM_ITEMS, /* all of them: lm-evaluation-harness, where a task names no set for shots */
    TASK_FROM_DESCRIPTION, /* they are in the description, which has the variable n_shots */
};

struct task_texts {
    const char **items;
    int n;
};

/* One form in which a set is published. */
struct task_form {
    struct task_texts files;   /* globs with {part}, looked for in DATA/TASK and in DATA */
    const char *first_line;    /* only files that begin so are of this form; or NULL */
    struct task_texts columns; /* of CSV without a header */
    const char *list;          /* rows are in this list of each object, or NULL */
    const char *labels;        /* a file beside each: line by line the rows' `label`; or NULL */
    struct text_template
        *record; /* a row to a record (a JSON object), "" to leave it out; or NULL */
};

struct task_forms {
    struct task_form *forms;
    int n;
};

/* How an answer is found in a text: rendered first, then the first pattern that matches. */
struct task_filter {
    const char *name;
    struct text_template *render; /* over `text` and the record; or NULL */
    struct answer_pattern **find; /* [n_find]; none: the text itself */
    int n_find, which;
};

/* A part in a style. */
struct task_way {
    int kind; /* enum task_kind */
    struct text_template *description, *prompt, *target;
    struct text_template *choices;  /* renders a JSON list; or */
    struct task_texts choice_texts; /* these */
    /* Of code, over the record and `text`: what the model wrote as a program; trusted definitions
     * that the test uses (or NULL); the test, and the name that it sees of the program. */
    struct text_template *program, *given, *test, *entry;
    int n_shots, n_shots_most, order; /* most: -1 no limit */
    int shots_from;                   /* enum task_source */
    struct task_texts leave_out;      /* parts that the style doesn't know */
    struct task_texts shots_file; /* shots ready made, if the user has one of these: part.shots */
    const char *shots_instead;    /* for people: what stands in for it where there is none */
    int chat;       /* prompts go through the model's chat template, where it has one */
    int last_token; /* of a choice only the last token is scored, after the context alone */
    const char *shot_delimiter, *target_delimiter;
    int max_new_tokens, n_beams;
    double length_penalty, deadline; /* seconds a program may take */
    struct task_texts stops, metrics;
    struct task_filter filters[TASK_FILTERS_MAX];
    int n_filters;
    struct answer_pattern **ignore; /* [n_ignore]: removed on both sides before comparing */
    int n_ignore;
    bool ignore_case;
    int math_equal;
};

struct task_part {
    const char *name, *title, *category; /* title: the name without "_"; category NULL */
    struct task_way way;
};

struct task {
    const char *name, *style, *source; /* source: the file */
    struct arena arena;
    struct task_part *parts;
    int n_parts;
    struct task_forms test, shots;
    struct task_texts part_file; /* of texts that descriptions are made of */
    const char *get;             /* a command that gets the files into DATA/NAME; NULL: not said */
    int64_t n_items;             /* of the whole set as published; 0: not said */
    struct text_template **templates;
    struct answer_pattern **patterns;
    int n_templates, n_patterns, templates_capacity, patterns_capacity;
};

/*
 * Read a task in a style. ERR_CONFIG: there is no such task or style (with the nearest), or the
 * description is wrong (with the line).
 */
int task_open(struct task *task, const char *name, const char *style, struct err *err);

/* Add a line for each task in the binary: its name, and the command that gets its files. */
void task_print_sources(struct str *out);

/* The same from a text that messages call source. */
int task_parse(struct task *task, const char *name, const char *style, const char *text,
               const char *source, struct err *err);
void task_close(struct task *task);

/* Names of metrics: of choices as described, of texts METRIC or METRIC,FILTER. */
int task_n_metrics(const struct task_way *way);
const char *task_metric(struct task *task, const struct task_way *way, int metric);

#endif
