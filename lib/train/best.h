/*
 * best.h - the checkpoints of a run with the lowest held-out loss (checkpoint.keep_best)
 *
 * A list that checkpoints keep with the run's other state: it has those of steps that were
 * evaluated, of which at most n stay. It knows no files.
 */
#ifndef TRAIN_BEST_H
#define TRAIN_BEST_H

#include <stdint.h>

#include "base/str.h"

enum { N_BEST_MAX = 32 };

struct best_checkpoints {
    int n;
    struct best_checkpoint {
        int64_t step;
        double loss;
    } list[N_BEST_MAX]; /* lowest loss first; of equal ones the earlier step */
};

/* The checkpoint of a step was evaluated; at most n_max stay. A loss that is not finite is none,
 * and what was known of the step before is replaced. */
void best_note(struct best_checkpoints *best, int n_max, int64_t step, double loss);

/* There is no checkpoint of this step. */
void best_forget(struct best_checkpoints *best, int64_t step);

/* {"metric":…,"steps":[[step,loss],…]} */
void best_print(const struct best_checkpoints *best, const char *metric, struct str *out);

/* What best_print wrote; empty where the text is damaged, or of another metric. */
void best_read(struct best_checkpoints *best, const char *metric, const char *json);

#endif
