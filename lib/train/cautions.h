/*
 * cautions.h - what a job says that is allowed and most likely meant otherwise: said once, on rank
 * 0
 */
#ifndef TRAIN_CAUTIONS_H
#define TRAIN_CAUTIONS_H

#include <stdbool.h>

#include "config/job.h"

/* Warn of deprecated keys, a rate no optimizer takes, positions that the model was not made for. */
void cautions_of_job(const struct job *job);

enum { N_LEARNING_LOSSES = 20 };

/* Detects a run that does not learn. Initially all zero, and again where a run went back. */
struct learning {
    int n_flat; /* steps in a row */
    int64_t n;  /* finite losses so far */
    double recent[N_LEARNING_LOSSES];
    double lowest; /* mean of so many in a row */
    bool is_flat_told, is_rise_told;
};

/*
 * A step's loss: NULL, or an event's name once in a process, with the message in text. "flat loss":
 * for 50 steps after the warm-up it stood at about ln of the vocabulary, that of an untrained
 * model. "rising loss": the mean of the last 20 is more than 3 times the lowest such mean, and half
 * a nat above it.
 */
const char *learning_note(struct learning *learning, const struct job *job, int64_t step,
                          double loss, char *text, size_t size);

#endif
