/*
 * items_impl.h - the items of one part of a task while they are made: items.c, shots in
 * items_shots.c
 *
 * All that return int: 0, or -1 and ERR_DATA (a file or record) or ERR_CONFIG (an option). Texts
 * are in the arena of the items.
 */
#ifndef EVAL_ITEMS_IMPL_H
#define EVAL_ITEMS_IMPL_H

#include <stdbool.h>

#include "base/str.h"
#include "eval/items.h"
#include "eval/python_random.h"
#include "eval/records.h"

struct items_loader {
    const struct task *task;
    const struct items_options *o;
    struct items *items;
    int64_t capacity;
    struct str missing;      /* names of parts without files */
    struct str looked;       /* the files searched for this part */
    struct str looked_first; /* the files searched for the first part that is missing */
    int n_missing, first_part;
};

/* One part while its items are made. */
struct item_maker {
    struct items_loader *l;
    const struct task_part *part;
    int part_index, n_shots;
    const char *variables, *shot_variables;   /* JSON, for the templates of items and of shots */
    const char *file_shots, *file_shots_path; /* JSON, and where it is from; or NULL */
    struct records test, shots; /* shots.items: the records that shots are drawn from */
    const char **shot_texts;    /* [shots.n]: made when first needed */
    struct python_random random;
    uint32_t *chosen, *pool;
    struct str description;
};

/* Append what a template (NULL: nothing) makes of a record. */
int item_maker_render(struct item_maker *m, const struct text_template *template,
                      const char *record, bool is_shot, struct str *out, struct err *err);

/* A copy of text in the arena of the items. */
char *item_maker_keep(struct item_maker *m, const struct str *text);

/* The n choices of a record. */
int item_maker_choices(struct item_maker *m, const char *record, bool is_shot,
                       const char ***choices, int *n, struct err *err);

/*
 * The indices of right choices, 1 to ITEM_GOLDS_MAX: target is one ("2"), a list ("[0, 2]"), or the
 * text of a choice.
 */
int item_golds(const char *target, const char *const *choices, int n_choices, int *golds, int *n,
               struct err *err);

/* Whether the style of the part allows this number of shots. */
int item_maker_check_shots(const struct item_maker *m, struct err *err);

/* Finished shots of a file, if the style has one and --shots is absent. */
int item_maker_read_shots(struct item_maker *m, struct err *err);

/* The records that shots are drawn from; m->test has been read. */
int item_maker_prepare_shots(struct item_maker *m, struct err *err);

/* Append the shots of a record to its prompt. */
int item_maker_add_shots(struct item_maker *m, const char *record, struct str *out,
                         struct err *err);

#endif
