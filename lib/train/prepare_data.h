/*
 * prepare_data.h - a job's instruction data made into samples, and how many steps it takes
 *
 * Of finetune and lora data.train is files of rows, or prefixes of token files as in pretraining.
 * Rows become OUTPUT/samples/train (and eval): made once, by whichever process of the job is first,
 * while others wait at a lock; who comes later finds them there. Where a weight of data.train is
 * not 1, each input has its own file (train-0, train-1, ...), and sequences are drawn from them by
 * weight.
 */
#ifndef TRAIN_PREPARE_DATA_H
#define TRAIN_PREPARE_DATA_H

#include "config/job.h"

/* Called with progress messages; may be NULL. */
struct prepare_data_hooks {
    void (*progress)(void *context, int64_t n_rows, int64_t n_tokens);
    void (*report)(void *context, const char *text); /* lines, each with its newline */
    void *context;
};

/*
 * Fill job->samples and, where it is left to epochs, train.steps with what follows from it. The
 * job's data.tokenizer must be set where rows are read. Returns 0, or -1: ERR_CONFIG, ERR_DATA.
 */
int prepare_data(struct job *job, const struct prepare_data_hooks *hooks, struct arena *arena,
                 struct err *err);

/*
 * Wait until no other process makes files that all of the job share: OUTPUT/samples/lock, which is
 * made with its folders. Where a file system has no locks that is said, and the first process is
 * ahead by enough. Returns a file descriptor, whose closing unlocks, or -1: ERR_FAILED.
 */
int prepare_data_lock(const struct job *job, struct arena *arena, struct err *err);

/*
 * For what compiles a job before its samples are made (plan): of finetune and lora job->samples
 * says where they will be, so that its programs are those of packing or of several lengths. Nothing
 * is read but whether inputs are token files, nothing is written.
 */
void prepare_data_foresee(struct job *job, struct arena *arena);

#endif
