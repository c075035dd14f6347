/*
 * replicas.h - do data-parallel ranks still hold the same bits?
 *
 * Ranks that differ only in their dp coordinate compute the same updates of what the program says
 * is the same on all of them (weights, masters, moments; under zero 1 what is not sharded). A
 * memory or a processor that errs once makes them differ for ever, and nothing else tells: the loss
 * goes on falling. Here they compare 64-bit hashes. No bit of training changes.
 */
#ifndef TRAIN_REPLICAS_H
#define TRAIN_REPLICAS_H

#include "layout/mesh.h"
#include "train/trainer.h"

struct replicas;

/* The axis along which most is the same: dp, or another that divides tokens where dp has shards or
 * one rank, rather one that divides no parameters. */
enum mesh_axis replicas_axis(const struct trainer *trainer);

/* Of a trainer that outlives it. NULL where no rank has a replica: all else takes that too. */
struct replicas *replicas_create(struct trainer *trainer);
void replicas_destroy(struct replicas *replicas);

/*
 * Compare, at `step` for people. Collective over all ranks, 8 bytes each; allocates nothing while
 * they are equal. Returns 0, or -1 on every rank: ERR_PEER that names the ranks in the minority,
 * their hosts and the first cell that differs, or a rank that is gone. *differs is set to 1 in the
 * first case.
 *
 * Under zero 1 weights are equal from their gather in the forward to the update, which each rank
 * does of its own part alone: there it must be called from the trainer's gate. Under zero 3 nothing
 * is replicated (unless weights are held for a step), and so nothing ever differs.
 */
int replicas_compare(struct replicas *replicas, int64_t step, int *differs, struct err *err);

/*
 * For faults: flip a bit of the largest parameter's mantissa, on this rank alone; in fp32 as the
 * optimizer keeps it, or, where shards have that (zero 1), of the weight in its dtype, or of the
 * shard that it is in.
 */
void replicas_flip(struct trainer *trainer);

#endif
