/*
 * instruct_job.h - what a job says of its finetuning data, in the words of data/
 */
#ifndef TRAIN_INSTRUCT_JOB_H
#define TRAIN_INSTRUCT_JOB_H

#include "config/job.h"
#include "data/instruct/instruct.h"

/* Texts are the job's, arrays the arena's. inputs are data.train's paths, in order. 0, or -1 and
 * ERR_CONFIG: no tokenizer, a dataset with a weight. */
int instruct_of_job(struct instruct_options *options, const struct job *job, struct arena *arena,
                    struct err *err);

#endif
