/*
 * parameter.h - parameters of a program, and the buckets that their gradients are in (program.h
 * includes this)
 */
#ifndef PROGRAM_PARAMETER_H
#define PROGRAM_PARAMETER_H

#include "base/init.h"
#include "ops/ops.h"

#define TENSOR_MAX_USES 4
#define PARAMETER_MAX_PIECES 3 /* q, k and v */

/*
 * How the ranks of an axis divide a parameter, along rows or columns. Each of its pieces (q heads,
 * k heads, v heads; gate, up) is divided by itself into as many equal parts as there are ranks; a
 * rank has one part of each piece, one after the other:
 *
 *     whole   | q0 q1 q2 q3 | k0 k1 | v0 v1 |
 *     rank 0  | q0 q1 | k0 | v0 |        rank 1  | q2 q3 | k1 | v1 |
 *
 * A piece that is not divisible (a vocabulary) is padded with zeros at its end, so that all ranks'
 * parts have one size. The list of pieces may be repeated: gate and up of each expert.
 */
struct parameter_split {
    enum spread along; /* SPREAD_SAME: every rank has all of it */
    int n_pieces;
    int64_t pieces[PARAMETER_MAX_PIECES]; /* rows or columns of each */
    int n_repeats;                        /* of all pieces; 0 is once */
    enum mesh_axis axis;                  /* set by program_split_parameter */
};

/* An expert's matrix may be split by experts, and each of them again. */
#define PARAMETER_MAX_SPLITS 2

/*
 * Which matrices a rank's part of a parameter is made of, for optimizers of whole matrices: these
 * pieces of rows (q, k, v; gate, up) one after the other, n_repeats times (for each expert). Ranks
 * of the axes in cut_axes have parts of each, along rows or columns; those of other axes that split
 * the parameter have other matrices.
 */
struct parameter_matrices {
    int n_pieces; /* 0: it has none, but is a table or a vector */
    int64_t pieces[PARAMETER_MAX_PIECES];
    int n_repeats;
    unsigned cut_axes; /* a set of 1 << axis */
    int by_columns;
};

/* Rows or columns [local, local + n) of a rank's part are [whole, whole + n) of the parameter. */
struct parameter_range {
    int64_t local, n, whole;
};

/*
 * With powersgd (low_rank.c), of one flat cell: the right factors of its matrices, as the last step
 * that counted left them, and this step's; which of its parts are matrices, and where their factors
 * are (struct ops_factored; tables of low_rank_basis).
 */
struct bucket_factors {
    int kept, found;
    int parts, left_parts, right_parts;
    int64_t n_left; /* elements of left factors, and of what travels as it is */
};

/*
 * Parameters whose gradients are reduced together. Where the optimizer is sharded (from zero 1 on)
 * weights and states have the layout of the gradients, in flat cells or shards of such: a parameter
 * begins at the same element of each, at an edge of a norm block, and its elements are contiguous.
 * A shard is one of as many equal parts as its axis has ranks. Where that is one, and other buckets
 * are sharded, a shard is all of the bucket. Ids are 0 where there is no such cell.
 */
struct bucket {
    enum mesh_axis axis;            /* of program_shard_axis, for all its parameters */
    int64_t n_elements;             /* a multiple of program_n_shards * OPS_NORM_BLOCK */
    int n_uses;                     /* a use has one accumulator of all the parameters; 0: frozen */
    int gradients[TENSOR_MAX_USES]; /* whole, this rank's sums: partial over the axis */
    int shards[TENSOR_MAX_USES];    /* reduced over the axis; 0 where no bucket is sharded */
    /* With a codec (compress.c): what it has lost of earlier steps' gradients; this step's sums
     * before they are encoded, and then what is lost of them. 0: none. */
    int errors[TENSOR_MAX_USES], left[TENSOR_MAX_USES];
    struct bucket_factors factors[TENSOR_MAX_USES];
    int weights;         /* whole: as the forward reads them; 0 where no cell holds that */
    bool gathered_ahead; /* a step begins and ends with all of them (zero_ahead.c) */
    int weight_shard;    /* the rank's own part of weights, or (zero 3) its shard */
    int codes; /* the bucket of the weights' codes, which has neither uses nor parameters of its
                * own (fp8_weights.c); 0: there is none */
    int master, moment1, moment2; /* shards; master is weight_shard where those are updated */
    int low; /* a shard, of masters whose upper words are weight_shard (base/halves.h); 0: none */
    int m_scale, v_scale; /* of the moments, where those have scales; else 0 */
    int ema;              /* a shard of masters' moving averages; 0: none */
};

/* Whose weights are rounded once a step (fp8_weights.c): with the scales of ops/fp8_recipe.h, where
 * those are of a rank's part alone in buckets of their own. */
enum parameter_in_fp8 { IN_FP8_NOT, IN_FP8, IN_FP8_BY_RANK };

/* A parameter, with its accumulators and optimizer states. */
struct parameter {
    const char *name;               /* global: "layers.0.qkv.weight" */
    int64_t rows, cols;             /* of the rank's part */
    int64_t whole_rows, whole_cols; /* of the whole parameter: equal where it is not split */
    int n_splits;                   /* each divides the part that the split before leaves */
    struct parameter_split splits[PARAMETER_MAX_SPLITS];
    struct parameter_matrices matrices;
    int n_dims; /* 1: rows is 1 and the logical shape is [cols] */
    enum init_kind init;
    double init_std; /* of INIT_UNIFORM the bound: from -init_std to init_std */
    int trainable;
    int stays_whole; /* every rank keeps all of it, though it is not trained: an op of the update
                        that is no optimizer's changes it */
    int weight, master, moment1, moment2; /* cells; master is weight where the optimizer updates
                                             the weight itself (fp32, or bf16 states); the last
                                             three are 0 where a bucket has the states. Under zero
                                             3 weight has no memory (zero3.c) */
    int codes; /* what products of fp8 read in the place of weight; 0: they read that */
    enum parameter_in_fp8 in_fp8; /* whether its readers in training are such products */
    int low; /* lower words of the master, whose upper ones are the weight; 0: there are none */
    int m_scale, v_scale; /* of the moments, where those have scales; else 0 */
    int ema;              /* moving average of the master; 0: there is none, or a bucket has it */
    int gradients[TENSOR_MAX_USES]; /* one accumulator a use, in use order */
    int errors
        [TENSOR_MAX_USES]; /* of each, in the layout of the parameter: what codecs have lost of
                                    it (a view of its bucket's); 0: no codec */
    int factors[TENSOR_MAX_USES]; /* of each, the right factors of its matrices, one below the
                                     other (a view of its bucket's `kept`); 0: there are none */
    int n_gradients;
    int group;             /* 1 + its number among update_options.groups; 0: it is in none */
    int n_uses_found;      /* by program_add_gradient, since program_repeat_uses */
    int is_copy;           /* of a tied parameter: the other stage's is saved and counted */
    int tied_peer;         /* +1, -1: the rank along pp that has another use of it; 0: none */
    int bucket;            /* the sharded bucket it lies in, or -1 */
    int64_t bucket_offset; /* its first element there */
};

#endif
