/*
 * recheck_optimizer.h - does each rank update its shards as others would?
 *
 * Under zero 1 and more a shard is updated by one rank, so no replica can be compared with it. In a
 * step with a recheck (recheck.h) every data-parallel rank keeps what the update of a piece of its
 * shard of one bucket reads (gradient, master, moments, and the tables of its blocks), and a hash
 * of what it wrote. After the step the next ranks compute it again, by the same kernel, in memory
 * of their own. Learning rate, bias corrections, clip factor and, with tp, the number of the part
 * are those of the rank that computes, which are equal along the axis: so a rank with others is
 * found, too. Bucket and piece rotate (program/recheck_piece.h).
 *
 * Not covered: other pieces and steps; a state that changes between two updates (its new value is
 * what is kept), and what one data-parallel rank alone updates. Nothing is compared in a step whose
 * update is skipped.
 */
#ifndef TRAIN_RECHECK_OPTIMIZER_H
#define TRAIN_RECHECK_OPTIMIZER_H

#include "run/run.h"
#include "train/trainer.h"

struct recheck_optimizer;

/* Along which ranks compute each other's updates, of shards over it. */
enum mesh_axis recheck_optimizer_axis(const struct mesh *mesh);

/* *optimizer is NULL where no shards are updated: all else takes that too. It allocates memory of
 * the device, recheck_piece_bytes. 0, or -1 and ERR_DEVICE: on this rank alone. */
int recheck_optimizer_create(struct recheck_optimizer **optimizer, struct trainer *trainer,
                             struct err *err);
void recheck_optimizer_destroy(struct recheck_optimizer *optimizer);

/* Around the step with this number, while its ops are hashed. */
void recheck_optimizer_begin(struct recheck_optimizer *optimizer, int64_t step);
void recheck_optimizer_end(struct recheck_optimizer *optimizer);

/*
 * After the step: compute what the rank whose coordinate on the axis is `round` larger has
 * updated. Collective over all ranks. 0, or -1 and ERR_PEER or ERR_DEVICE.
 */
enum { RECHECK_OPTIMIZER_ROUNDS = 4 };
int recheck_optimizer_round(struct recheck_optimizer *optimizer, int round, struct err *err);

/* By round; 0 is the step itself. Each has one op, or none where nothing was updated. */
const struct op_hashes *recheck_optimizer_rounds(const struct recheck_optimizer *optimizer);

/* The hash of that round's op; 0 if it has none. */
uint64_t recheck_optimizer_hash(const struct recheck_optimizer *optimizer, int round);

#endif
