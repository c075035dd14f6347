/*
 * harness.h - the items of a task put to a model, and what came of each
 *
 * Choices are scored by serve/score.h, part after part, so that the shots of a part are computed
 * once; texts are generated side by side, the longest prompts first. What is known of an item is
 * written to a journal at once; an evaluation that finds its own journal goes on from it.
 *
 * Over several ranks (served->replica) the items are shared out among replicas, round by round; the
 * first rank of all gets what comes of them, judges it and keeps the journal, and it alone has
 * results in the end. What an item scores does not depend on who has computed it.
 */
#ifndef EVAL_HARNESS_H
#define EVAL_HARNESS_H

#include <stdbool.h>

#include "eval/items.h"
#include "eval/sandbox.h"
#include "tokenizer/tokenizer.h"

struct served;
struct kernels;

struct item_result {
    bool is_done;
    int choice;              /* the likeliest, -1 for texts */
    double *log_likelihoods; /* [n_choices] heap */
    char *text;              /* heap: what was generated; U+FFFD for a NUL byte */
    char *answer;            /* heap: what was found in it; of choices that choice */
    double values[TASK_METRICS_MAX];
};

struct harness_progress {
    int64_t done, total; /* items */
    int64_t n_known;     /* of those done, what the journal had */
    double score;        /* mean of the first metric so far */
    double seconds;
};

typedef void (*harness_progress_fn)(void *context, const struct harness_progress *progress);

struct harness {
    struct served *served;
    struct kernels *kernels;
    const struct tokenizer *tokenizer;
    struct sandbox *sandbox;      /* for code, else NULL; the first rank's */
    const char *journal;          /* a file, or NULL; likewise */
    harness_progress_fn progress; /* may be NULL */
    void *context;
    /* What came of it, added up over calls: */
    int64_t n_tokens; /* fed to the model */
    int64_t n_asked;  /* tokens of all prompts and continuations, as if nothing were shared */
    int64_t n_resumed;
    double seconds;
};

/*
 * results [items->n], zeroed by the caller and released by harness_release. Collective over all
 * ranks, with the same task and items. Returns 0, or -1 and ERR_CONFIG (code without a sandbox),
 * ERR_DATA (a journal of other prompts), ERR_DEVICE or ERR_PEER.
 */
int harness_run(struct harness *harness, struct task *task, const struct items *items,
                struct item_result *results, struct err *err);
/* Sets ERR_CONFIG: the task's programs need a sandbox, and the user's leave; -1. */
int harness_refuse_code(const struct task *task, struct err *err);

void harness_release(struct item_result *results, int64_t n);

#endif
