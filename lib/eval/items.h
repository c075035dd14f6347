/*
 * items.h - the items of a task: its files found and read, its prompts made
 */
#ifndef EVAL_ITEMS_H
#define EVAL_ITEMS_H

#include <stdbool.h>

#include "eval/task.h"
#include "template/chat.h"

#define ITEM_GOLDS_MAX 16

struct item {
    int part;              /* of the task */
    int64_t number;        /* in its part, from 0 */
    const char *record;    /* JSON */
    const char *context;   /* all that stands before the answer */
    const char *target;    /* as the description renders it */
    const char **choices;  /* [n_choices]: with the delimiter in front of each */
    int n_choices, n_skip; /* n_skip: bytes of that delimiter */
    bool is_framed;        /* the context has its special tokens: a chat template put them there */
    int golds[ITEM_GOLDS_MAX], n_golds; /* right choices */
    uint64_t hash;                      /* XXH3 of the context */
};

struct items_options {
    const char *data; /* the folder */
    int n_shots;      /* -1: as the style says */
    int64_t limit;    /* of each part; 0: all */
    const char
        *parts; /* names split by commas, or of categories; "present": those with files; or NULL */
};

struct items {
    struct arena arena;
    struct item *items; /* part after part */
    int64_t n;
    int n_shots;      /* of the first part; -1: those of a file */
    struct str found; /* lines for people: the files of each part, how many items */
};

/*
 * Returns 0, or -1: ERR_DATA (no file; the message says which were looked for; too few shots; a
 * broken row; less items than the set has), ERR_CONFIG (options).
 */
int items_load(struct items *items, const struct task *task, const struct items_options *options,
               struct err *err);
/*
 * Put the prompts of parts whose way is chat, as a user's only message, through a template, as
 * ModelLink does (apply_chat_template: nothing in front of the answer). Their hashes are new ones.
 */
int items_chat(struct items *items, const struct task *task, const struct chat_template *template,
               struct err *err);

/* Lines of JSON: task, part, item, prompt, choices (as they follow it), target. */
void items_print(const struct items *items, const struct task *task, struct str *out);
void items_release(struct items *items);

#endif
