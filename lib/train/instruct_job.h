/*
 * instruct_job.h - what a job says of its finetuning data, in the words of data/
 */
#ifndef TRAIN_INSTRUCT_JOB_H
#define TRAIN_INSTRUCT_JOB_H

#include "config/job.h"
#include "data/instruct.h"

/* Texts are the job's, arrays the arena's. inputs are data.train's paths, in order. 0, or -1 and
 * ERR_CONFIG: no tokenizer, a dataset with a weight. */
int instruct_of_job(struct instruct_options *options, const struct job *job, struct arena *arena,
                    struct err *err);

/*
 * The lengths of micro-batches without packing, ascending, the last seq_len; in the arena. given:
 * data.lengths; where it is empty, halves of seq_len that tp ranks can split.
 */
const int *lengths_without_packing(const struct job_counts *given, int seq_len, int tp, int *n,
                                   struct arena *arena);

/* Those of a job; with packing n is 0 and NULL is returned. */
const int *lengths_of_job(const struct job *job, int *n, struct arena *arena);

#endif
