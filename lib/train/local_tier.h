/*
 * local_tier.h - local checkpoints: those of each rank on a disk of its node (checkpoint.local)
 *
 * In PATH/NAME-HASH/rank-R/ are a rank's checkpoints, each a checkpoint of one rank by itself
 * (trainer_save_local), of all that the rank reads at a resume. The name is that of the run folder,
 * the hash is of its path. A step counts only where every rank has it, of this layout and these
 * numerics, and written by the same attempt of this run: each has an identity for that, one half of
 * which is in the run folder's checkpoints/.local and so goes with it.
 *
 * It knows nothing of when to save or to resume (pretrain_local.c, resume.c).
 */
#ifndef TRAIN_LOCAL_TIER_H
#define TRAIN_LOCAL_TIER_H

#include <stdbool.h>

#include "train/trainer.h"

struct local_tier;

/*
 * Of the trainer's job, or NULL if it has no local checkpoints. is_new: those that are there are of
 * another run. Folders are made by local_tier_prepare alone. Collective. Returns 0, or -1 and
 * ERR_PEER.
 */
int local_tier_open(struct local_tier **tier, struct trainer *trainer, int local_rank, bool is_new,
                    struct err *err);
void local_tier_close(struct local_tier *tier);

/* What the extra text of a local checkpoint must have as "local". */
const char *local_tier_identity(const struct local_tier *tier);

/* Print the folder of this rank's checkpoint of a step into path. ERR_FAILED if it is too long. */
int local_tier_path(const struct local_tier *tier, int64_t step, char *path, size_t size,
                    struct err *err);

/*
 * The newest step before `before` and after `after` that all ranks have; -1: there is none. Sizes
 * are looked at, hashes are not. Collective. Returns 0, or -1 and ERR_PEER.
 */
int local_tier_find(struct local_tier *tier, int64_t before, int64_t after, int64_t *step,
                    struct err *err);

/* Of the last find: on how many hosts the ranks are; and in words which rank lacks the newest step
 * that another has, "" if all have it. */
int local_tier_n_hosts(const struct local_tier *tier);
const char *local_tier_lack(const struct local_tier *tier);
/* PATH/NAME-HASH. */
const char *local_tier_base(const struct local_tier *tier);

/*
 * The run goes on from this step, of a local checkpoint or (-1) of another: remove all others of
 * this run that could be taken for later ones, and folders of ranks that are now elsewhere. What
 * cannot be removed is a warning.
 */
void local_tier_go_on(struct local_tier *tier, int64_t step);

/* Make this rank's folder, and remove what is left there of interrupted saves. ERR_FAILED. */
int local_tier_prepare(const struct local_tier *tier, struct err *err);

/* All ranks have that of this step: older ones than checkpoint.local_keep go. */
void local_tier_keep(struct local_tier *tier, int64_t step);

/* A save failed on some rank: remove what this rank has of it. */
void local_tier_drop(const struct local_tier *tier);

/* The run has ended: remove all of it on this node. Called by each rank when all have ended. */
void local_tier_remove(const struct local_tier *tier);

#endif
