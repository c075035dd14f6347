/*
 * shard_impl.h - buckets while shard_gradients makes them: shard.c, buckets.c, gradient_staging.c
 */
#ifndef PROGRAM_SHARD_IMPL_H
#define PROGRAM_SHARD_IMPL_H

#include "program/passes.h"

/* The functions of a chunk, in the order in which a micro-batch runs them. */
enum chunk_part { PART_FORWARD, PART_BACKWARD, PART_WEIGHT };

/* The point of a micro-batch's backward at which an accumulator is complete, in the order of
 * time. */
struct completion_point {
    int turn; /* n_chunks - 1 - chunk */
    enum chunk_part part;
    int begun, done; /* first and last op that write it; -1: an earlier function did */
    int layer;       /* of the last op that writes it */
};

/* A member of a bucket: one accumulator, or all accumulators of a parameter. */
struct bucket_member {
    int parameter, use, n_uses;
    struct completion_point uses[TENSOR_MAX_USES];
    struct completion_point at; /* of the last of them */
    int bucket;
    int64_t offset;
    size_t n_bytes; /* of the bucket up to and with it */
};

/* One flat cell that is to be reduced. */
struct bucket_reduction {
    int bucket, use;
    struct completion_point at;
    int staging; /* the staging cell that it uses; 0: it is a cell of its own */
};

struct sharding {
    struct program *program;
    struct chunk_functions *sizes;  /* [n_sizes][n_chunks] */
    struct chunk_functions *chunks; /* of one size */
    int n_chunks, n_sizes;
    const struct shard_options *options;
    int early;       /* each micro-batch is summed over ranks, in the function that completes it */
    int together;    /* the optimizer is sharded: all uses of a parameter are in one bucket */
    int64_t n_zeros; /* elements of `zeros`: of the largest gap, at most ZEROS_MAX */
    int zeros[2];    /* constants for accumulators of fp32 and bf16; 0: not needed */
};

/* ---- shard.c ---- */

/* All-reduce a value in place, behind the function's op *index, over the axes of tokens that `axis`
 * has not and it is partial over. Returns a view that is the sum; *index is then of the last op. */
int sum_what_is_left(struct program *p, int function, int *index, int value, enum mesh_axis axis);

/* ---- buckets.c ---- */

/* The function for a part of the chunk whose backward is the turn-th to run. */
int completion_function(const struct sharding *s, int turn, enum chunk_part part);

/* The last function that writes the accumulator, and the ops that do. */
struct completion_point completion_of(const struct sharding *s, int value);

/* All accumulators, in the order in which the backwards complete them; in the program's arena. */
struct bucket_member *buckets_list_members(const struct sharding *s, int *n);

/* The accumulator of a member's use. */
int buckets_accumulator(const struct program *p, const struct bucket_member *m, int use);

/* Set each member's bucket. Returns the number of buckets. */
int buckets_assign(const struct sharding *s, struct bucket_member *list, int n,
                   size_t bucket_bytes);

/* Fill the program's buckets, and set each member's offset in its bucket. */
void buckets_measure(const struct sharding *s, struct bucket_member *list, int n);

/* The dtype of a bucket's accumulators. */
enum dtype buckets_dtype(const struct program *p, const struct bucket_member *list, int bucket);

/* All flat cells, in the order in which they are complete. */
struct bucket_reduction *buckets_list_reductions(const struct sharding *s,
                                                 const struct bucket_member *list, int n_members,
                                                 int *n);

/* The flat cell of one use of a bucket's members, whose accumulators become views of it. */
void buckets_make_cell(struct program *p, const struct bucket_member *list, int n,
                       const struct bucket_reduction *r);

/* ---- compress.c ---- */

/* Cells of a reduction with a codec: the error, and, under zero 0, that of the whole sums, which it
 * returns (else 0). */
int compress_make_cells(const struct sharding *s, const struct bucket_reduction *r, int zero);

/* Cells of all reductions' sums of squares. */
void compress_make_sums(struct program *p, int n_reductions);

/* Emit the reduction into the function behind its op `index`; number: of the reduction, whole: of
 * compress_make_cells. */
void compress_emit(struct program *p, int function, int index, const struct bucket_reduction *r,
                   int number, int whole);

/* Emit behind op `index`, which has written the decoded sum over the bucket's axis, what makes it
 * the update's: its shard, unless it is `whole`, and the sum over other axes. */
void compress_take_shard(struct program *p, int function, int index,
                         const struct bucket_reduction *r, int sum, int whole);

/* The last place of the function at which what its op `after` exchanges may be waited for: behind
 * it there is another op of its stream, or nothing. */
int compress_wait_place(const struct function *f, int after);

/* ---- low_rank.c ---- */

/* Cells of a reduction with powersgd, whose parameters' errors are known: factors, and tables. */
void low_rank_make_cells(struct program *p, const struct bucket_reduction *r);

/* Emit the reduction into the function behind its op `index`; sums: of squares, whole: of
 * compress_make_cells. */
void low_rank_emit(struct program *p, int function, int index, const struct bucket_reduction *r,
                   int sums, int whole);

/* Emit at the end of a function, of steps before the codec's first, what leaves factors as they
 * are. */
void low_rank_emit_unchanged(struct program *p, int function, const struct bucket_reduction *r);

/* ---- gradient_staging.c: zero 2 ---- */

/* Assign each reduction a staging cell, and create the constants of zeros. */
void staging_share(struct sharding *s, const struct bucket_member *members,
                   struct bucket_reduction *list, int n_members, int n);

/* Emit, after the reduction, ops that write zeros between the members, where other buckets have
 * written. */
void staging_clear_gaps(const struct sharding *s, const struct bucket_member *list, int n,
                        const struct bucket_reduction *r, int function);

#endif
