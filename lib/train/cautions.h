/*
 * cautions.h - what a job says that is allowed and most likely meant otherwise: said once, on rank
 * 0
 */
#ifndef TRAIN_CAUTIONS_H
#define TRAIN_CAUTIONS_H

#include "config/job.h"

/* Warn of deprecated keys, a rate no optimizer takes, positions that the model was not made for. */
void cautions_of_job(const struct job *job);

/* Detects a loss that stays at ln of the vocabulary, that of an untrained model. Initially all
 * zero. */
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
