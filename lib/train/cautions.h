/*
 * cautions.h - what a job says that is allowed and most likely meant otherwise: said once, on rank 0
 */
#ifndef TRAIN_CAUTIONS_H
#define TRAIN_CAUTIONS_H

#include "config/job.h"

/* Warn of the job's values: a rate no optimizer takes, positions that the model was not made for. */
void cautions_of_job(const struct job *job);

/* A loss that stands where a model is that knows nothing: ln of the vocabulary. All zero at first. */
struct flat_loss {
    int n_logged; /* in a row */
    int is_reported;
};

/*
 * A logged step: 1, once in a run, when the loss has stood at ln of the vocabulary for ten of them
 * after the warm-up; the message is in text then.
 */
int flat_loss_note(struct flat_loss *flat, const struct job *job, int64_t step, double loss,
                   char *text, size_t size);

#endif
