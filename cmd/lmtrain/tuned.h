/*
 * tuned.h - what finetune and lora leave beside checkpoints: the model, or the adapter, for others
 */
#ifndef TUNED_H
#define TUNED_H

#include <stdbool.h>

#include "config/job.h"

/*
 * Whether what the job will leave in its output folder would replace what is not of a run: a model,
 * an adapter or a tokenizer that was there before. Returns 0, or -1 and ERR_CONFIG.
 */
int tuned_check_output(const struct job *job, struct err *err);

/*
 * Before any rank starts, and in each: samples, tokenizer and steps of the job, whose output folder
 * is there from then on. Returns 0, or a status after a message.
 */
int tuned_prepare(struct job *job, struct arena *arena);

/*
 * The tokenizer alone: the job's, or its model's, with data.added_tokens, for which an extended one
 * is written to job->output. Returns 0, or -1: ERR_CONFIG, ERR_DATA, ERR_FAILED.
 */
int tuned_tokenizer(struct job *job, struct arena *arena, struct err *err);

/*
 * The vocabulary that the model of a run will have (as tuned_prepare grows it), without writing
 * anything: job->model.vocab_size, with a note. Where no tokenizer can be read yet it stays, which
 * is said if the job adds tokens.
 */
void tuned_foresee_vocabulary(struct job *job, struct arena *arena);

/*
 * A checkpoint is whole: put the adapter of a job with lora into it, in peft's format. context: the
 * job. What fails is said and no more.
 */
void tuned_saved(void *context, const char *folder);

/* Whether that of tuned_finish is not there: no run has ended in this folder. */
bool tuned_is_unfinished(const struct job *job);

/* At the end: OUTPUT/model or OUTPUT/adapter. Returns 0, or a status after a message. */
int tuned_finish(const struct job *job);

#endif
