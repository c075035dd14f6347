/*
 * served.h - a trained model, found by its folder: its job, its weights
 *
 * A run that trained adapters alone is the model they were trained for with them added, found where
 * its job says; others can be added to any model.
 *
 * A checkpoint holds the job it was trained by and its tokenizer's files, so that a run, a run's
 * checkpoints/ or one checkpoint are enough to know the model, its tokenizer and its dtype. So is a
 * Hugging Face folder, whose job is its model alone, computed in the dtype of its weights.
 */
#ifndef SERVE_SERVED_H
#define SERVE_SERVED_H

#include <stdbool.h>

#include "ckpt/weights.h"
#include "config/job.h"
#include "run/run.h"
#include "serve/replica.h"
#include "tokenizer/tokenizer.h"

struct served {
    struct arena arena;
    const char *folder; /* of the checkpoint, or the HF folder */
    bool is_checkpoint; /* which of both */
    const char *base;   /* the same, or of the weights to which that one adds adapters */
    struct weights weights;
    struct job job; /* not resolved: ranks mean nothing here */
    /* As tokenizer_hash_text, of the tokenizer that it was trained with; "": not known. */
    char tokenizer_hash[TOKENIZER_HASH_BYTES];
    struct served *members; /* of an ensemble (ensemble.h): [n_members], further models */
    int n_members;
    const struct replica *
        /* the ranks that hold it, set by the caller after it was opened; NULL: this rank alone */
        replica;
};

/* Whether path looks like one of those that served_open takes; else hf_folder_refuse says why. */
bool served_is(const char *path);

/* path: a run, its checkpoints/, a checkpoint, or a HF folder. Returns 0, or -1 and ERR_DATA. */
int served_open(struct served *served, const char *path, struct err *err);

/* The family of Hugging Face that the model is of, or is most like. ERR_DATA. */
const char *served_family(struct served *served, struct err *err);

/*
 * Add the adapters of a peft folder, a run or a checkpoint to the model from now on. Returns 0, or
 * -1 and ERR_DATA: it has some already, or these are another model's.
 */
int served_adapt(struct served *served, const char *path, struct err *err);

/* Which of a checkpoint's weights: those that training goes on with, or their moving averages. */
enum served_weights { SERVED_TRAINED, SERVED_AVERAGES, N_SERVED_WEIGHTS };
extern const char *const served_weights_words[N_SERVED_WEIGHTS + 1]; /* "trained", "ema", NULL */

/* Read those from now on; word: one of served_weights_words. ERR_DATA: it has no averages. */
int served_use_weights(struct served *served, const char *word, struct err *err);

/* All three: adapter may be NULL, and so may weights: trained ones. */
int served_open_adapted(struct served *served, const char *path, const char *adapter,
                        const char *weights, struct err *err);
void served_close(struct served *served);

/*
 * Open the model's tokenizer, or the one at `other` if that is not NULL. ERR_CONFIG: the model has
 * none, which names the option to give one. ERR_DATA: unreadable, or the checkpoint's own is not
 * what it was saved with. That another one differs from it is a warning.
 */
int served_open_tokenizer(const struct served *served, const char *other,
                          struct tokenizer **tokenizer, struct err *err);

/* Fill the weights of a program's parameters, or the rank's parts of them, rounded to their
 * dtype as training rounds them. */
int served_load(struct served *served, struct run *run, const struct program *program,
                struct err *err);

/* Set the ranks of a program in its run options. */
void served_run_options(const struct served *served, struct run_options *options);

#endif
