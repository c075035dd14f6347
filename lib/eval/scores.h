/*
 * scores.h - from answers to scores: of parts, categories and the whole
 *
 * Means over items. The standard error of a part is that of a mean (n - 1); several parts have
 * their weighted mean and the pooled error, as lm-evaluation-harness 0.4.13 has them.
 */
#ifndef EVAL_SCORES_H
#define EVAL_SCORES_H

#include <stdbool.h>

#include "eval/harness.h"

struct score_line {
    const char *name; /* a part, a category or the task */
    int level;        /* 0 the task, 1 a category, 2 a part */
    int64_t n;
    int n_metrics;
    const char *metrics[TASK_METRICS_MAX];
    double values[TASK_METRICS_MAX], errors[TASK_METRICS_MAX]; /* error NAN of a single item */
};

struct scores {
    struct score_line *lines; /* the task, then categories each with its parts */
    int n;
};

/* In the arena. */
void scores_compute(struct scores *scores, struct task *task, const struct items *items,
                    const struct item_result *results, struct arena *arena);

/* A table for people; columns are the metrics. */
void scores_print(const struct scores *scores, const struct task *task, int n_shots,
                  const struct harness *harness, struct str *out);

/*
 * One JSON object: task, style, shots, items, seconds, tokens, scores of the whole, categories,
 * subjects; with samples each item's prompt hash, answer, score.
 */
void scores_print_json(const struct scores *scores, struct task *task, const struct items *items,
                       const struct item_result *results, const struct harness *harness,
                       bool with_samples, struct str *out);

/* {"model":..,"tasks":[..]}; tasks: the objects above, split by commas. */
void scores_print_report(const char *model, const char *tasks, struct str *out);

#endif
