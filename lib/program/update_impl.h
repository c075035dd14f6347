/*
 * update_impl.h - the update while it is built: update.c (whole parameters) and update_shards.c
 */
#ifndef PROGRAM_UPDATE_IMPL_H
#define PROGRAM_UPDATE_IMPL_H

#include "layout/axes.h"
#include "program/parameter_update.h"

struct update {
    struct program *program;
    int function;
    const struct update_options *options;
    int *part_numbers; /* by set of axes: values of update_part_number; 0: not created yet */
    struct muon_targets *muon;
};

/* Emit an op into the update function. */
void update_emit(const struct update *u, struct op op);

/* Add the accumulator of the tied use on another stage. */
void update_add_other_use(const struct update *u, int peer, int own);

/* The gradient norm of whole parameters, in the order of names. */
void update_norm(const struct update *u, const int *order, int n);

/* Set the spreads of sums of squares that differ between ranks. */
void update_mark_local_sums(const struct update *u, int sums);

/* Gather the ranks' sums over an axis, rank by rank, into all (0: a new value), which is returned,
 * or own, if there is one rank; own is this rank's. */
int update_gather_sums(const struct update *u, int own, enum mesh_axis axis, int all);

/* The norm, from the sums of blocks: in the order of this rank's parameters by name, or, if there
 * is a table `blocks`, in its order. */
void update_norm_of_blocks(const struct update *u, const int *order, int n, int sums, int blocks);

/* Whether states and weights of bf16 are rounded by chance (ops.h). */
bool update_rounds_by_chance(const struct update *u);

/* Whether the optimizer updates the weight itself, without an fp32 master. */
int update_is_master(const struct update *u, enum dtype weight);

/* Whether it does, but for the lower words of an fp32 master, whose upper ones are the weight. */
int update_has_low(const struct update *u, enum dtype weight);

/* The optimizer's attributes, except rng_site. */
struct op_attributes update_attributes(const struct update *u, const struct parameter_update *how);

/* The value that has the number of this rank's part, for stochastic rounding of a parameter whose
 * ranks have different parts, not counting shards over the axis; 0 if it is not needed. */
int update_part_number(const struct update *u, int gradient, enum mesh_axis shard_axis);

/* Emit the moving average of a master, whose lower words are low (or 0), into that cell. */
void update_average(const struct update *u, int master, int low, int average);

/* Declare the scalars of each update, and those of groups with another learning rate
 * (update_groups.c). */
void update_declare_scalars(const struct update *u);

/* The scalars of the update of a group's parameters (parameter.h). */
int update_scalars_of(const struct update *u, int group);

/* The rng site of the parameter's first block. */
uint64_t update_rng_site(const struct parameter *q);

/* Norm blocks of this rank's part of a parameter. */
int64_t update_n_blocks(const struct parameter *q);

/* ---- update_muon.c ---- */

/* What Muon updates at once: a parameter of matrices, or a bucket of such. */
struct muon_target {
    int parameter, bucket; /* bucket -1: a parameter of its own */
    int gradient, moment, master;
    int weight; /* rounded from the master; 0: the master is it */
    int decay;  /* by block; 0: weight_decay is everyone's */
    double weight_decay;
    int scalars, average; /* of its group of parameters; of the master, or 0 */
    int direction;        /* by update_muon */
};

struct muon_targets {
    struct muon_target *list;
    int n, capacity;
};

void update_muon_add(const struct update *u, const struct muon_target *target);

/* Behind the norm, the update of all that were added; their cells exist. */
void update_muon(const struct update *u);

/* ---- update_shards.c ---- */

/* The update of buckets' shards; order: trainable parameters [n] by name. */
void update_shards(const struct update *u, const int *order, int n);

#endif
