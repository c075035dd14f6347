/*
 * update_impl.h - the update while it is built: update.c (whole parameters) and update_shards.c
 */
#ifndef PROGRAM_UPDATE_IMPL_H
#define PROGRAM_UPDATE_IMPL_H

#include "layout/axes.h"
#include "program/passes.h"

struct update {
    struct program *program;
    int function;
    const struct update_options *options;
    int *part_numbers; /* [N_AXES]: what update_part_number has made; 0: nothing yet */
};

/* An op of the update function. */
void update_emit(const struct update *u, struct op op);

/* Add what the tied use on another stage has summed. */
void update_add_other_use(const struct update *u, int peer, int own);

/* The gradient norm of whole parameters, in the order of names. */
void update_norm(const struct update *u, const int *order, int n);

/* Sums of squares that are this rank's: how they lie over the ranks. */
void update_mark_local_sums(struct program *p, int sums);

/* All ranks' sums over an axis, rank by rank. own is the rank's. */
int update_gather_sums(const struct update *u, int own, enum mesh_axis axis);

/* The norm, from the sums of blocks: those of this rank's parameters in name order, or, where
 * blocks (a table) is given, in its order. */
void update_norm_of_blocks(const struct update *u, const int *order, int n, int sums, int blocks);

/* Whether the weight is what the optimizer updates: no copy of more digits is kept beside it. */
int update_is_master(const struct update *u, enum dtype weight);

/* adamw's attributes, but for its rng site. */
struct op_attributes update_adamw(const struct update *u, double weight_decay);

/* What is rounded stochastically on ranks that each have a part of it: the number of the part. 0
 * where none is read. */
int update_part_number(const struct update *u, int gradient);

/* The rng site of the parameter's first block. */
uint64_t update_rng_site(const struct parameter *q);

/* Norm blocks of this rank's part of a parameter. */
int64_t update_n_blocks(const struct parameter *q);

/* ---- update_shards.c ---- */

/* The update of buckets' shards; order: trainable parameters [n] by name. */
void update_shards(const struct update *u, const int *order, int n);

#endif
