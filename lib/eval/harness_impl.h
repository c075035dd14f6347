/*
 * harness_impl.h - what the parts of the harness share
 */
#ifndef EVAL_HARNESS_IMPL_H
#define EVAL_HARNESS_IMPL_H

#include "base/str.h"
#include "eval/harness.h"

struct harness_run {
    struct harness *h;
    struct task *task;
    const struct items *items;
    struct item_result *results;
    struct tokenizer_cache *cache;
    int journal;             /* descriptor, or -1 */
    int64_t n_done, n_known; /* known: of those, by the journal */
    double sum;              /* of the first metric of those */
    double begin;
};

/* The ranks that compute; NULL: this one alone. And whether this one judges. */
const struct replica *harness_replica(const struct harness_run *run);
int harness_judges(const struct harness_run *run);

/* An item is done: journal and progress. */
int harness_note(struct harness_run *run, int64_t item, struct err *err);
void harness_show(struct harness_run *run, int64_t n_more);

/* Items of these kinds that are not done yet. */
int harness_choices(struct harness_run *run, struct err *err); /* harness_choice.c */
int harness_texts(struct harness_run *run, struct err *err);   /* harness_text.c */

/* What the text of an item is worth; notes it. harness_judge.c */
int harness_judge(struct harness_run *run, int64_t item, const struct str *text, struct err *err);

/* The journal: a header, and a line of JSON an item. harness_journal.c */
int journal_open(struct harness_run *run, struct err *err);
int journal_add(struct harness_run *run, int64_t item, struct err *err);

/* A sample as JSON: prompt hash, answer, log-likelihoods, values; as journal and report have it. */
void harness_print_item(struct task *task, const struct item *item,
                        const struct item_result *result, struct str *out);

#endif
