/*
 * trained.h - a trainer of a tiny model in this process, and the checkpoints it leaves
 */
#ifndef SUPPORT_TRAINED_H
#define SUPPORT_TRAINED_H

#include "train/trainer.h"

struct trained {
    char folder[64]; /* of this rig's own, with its data: tokens.bin, tokens.idx */
    struct arena arena;
    struct job job;
    struct pool *pool;
    struct kernels *kernels;
    struct comm *comm;
    struct trainer *trainer;
    const char *samples; /* of law_write_samples, in place of tokens; NULL: the tokens */
    int accept_numerics; /* of trainers from now on: trainer_options */
};

/*
 * A folder with a few thousand random tokens, then trained_again. model: "llama" or "gpt2", of a
 * vocabulary of 64, in fp32. overrides: as --set, ending with NULL. Any error fails the test.
 */
void trained_open(struct trained *rig, const char *model, const char *const *overrides);

/* Another trainer, in the same folder, in place of the one there is. */
void trained_again(struct trained *rig, const char *model, const char *const *overrides);

/* Steps; returns the last one's loss. */
double trained_steps(struct trained *rig, int n);

/* Save as FOLDER/NAME; returns that path, which lives as long as the rig. */
const char *trained_save(struct trained *rig, const char *name);

/* Path in the rig's folder. */
const char *trained_path(struct trained *rig, const char *name);

void trained_close(struct trained *rig);

#endif
