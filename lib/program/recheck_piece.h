/*
 * recheck_piece.h - which part of a program's sharded update is computed once more by other ranks
 *
 * In a step with a recheck (train/recheck.h) that is some blocks of one bucket's shard, the same
 * ones of the shard of every data-parallel rank. The optimizer treats each element by itself, and
 * its tables (weight decay, sites of random numbers) have one entry a block of OPS_NORM_BLOCK
 * elements (TRAIT_BY_BLOCKS), so that any blocks can be computed alone. Bucket and blocks rotate.
 * Pure.
 */
#ifndef PROGRAM_RECHECK_PIECE_H
#define PROGRAM_RECHECK_PIECE_H

#include "program/program.h"

enum { RECHECK_PIECE_BLOCKS = 64 };

struct recheck_piece {
    int bucket;                    /* -1: no bucket has shards that are updated */
    int64_t first_block, n_blocks; /* of each rank's shard; at most RECHECK_PIECE_BLOCKS */
};

/* The bucket with gradients whose turn it is; -1: there is none with shards. */
int recheck_bucket(const struct program *program, int64_t turn);

/* turn: 0, 1, ...: as many as all buckets have pieces, one after the other, see all of them. */
struct recheck_piece recheck_piece_at(const struct program *program, int64_t turn);

/* The kind of the op that updates the bucket's shard. */
enum op_kind recheck_update_kind(const struct program *program, int bucket);

/* What the update of the largest piece reads and writes, each operand from a multiple of
 * RECHECK_ALIGNMENT bytes on; 0 where there is none. */
enum { RECHECK_ALIGNMENT = 64 };
size_t recheck_piece_bytes(const struct program *program);

#endif
