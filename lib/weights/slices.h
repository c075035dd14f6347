/*
 * slices.h - what a rank has of a checkpoint
 *
 * A parameter (its master) is stored under its global name, its moments as NAME.m and NAME.v, its
 * moving average, if it has one, as NAME.ema (fp32), as rectangles of the whole, each in the dtype
 * that the run has it in: fp32, or bf16 where optimizer.states says so. A master that is split (the
 * weight and a cell of low words) is one fp32 there. They are read into whatever the reader has,
 * codes of moments and numbers by state_convert.h.
 * One that is frozen has no moments; a run that trains adapters of a model that lies elsewhere
 * stores what it trains alone.
 */
#ifndef WEIGHTS_SLICES_H
#define WEIGHTS_SLICES_H

#include <stdbool.h>

#include "ckpt/weights.h"
#include "run/run.h"

/* What the name of a moving average ends with; weights.c reads these. */
#define SLICES_EMA WEIGHTS_AVERAGE

struct slices {
    struct arena arena;
    struct store_slice *slices; /* their data is the run's memory */
    int n, capacity;
};

enum slices_of { SLICES_OF_ALL, SLICES_OF_TRAINED, SLICES_OF_MODEL }; /* model: no adapters */

/* All that the rank has; parts of parameters without their padding. */
void slices_to_read(struct slices *slices, const struct run *run, const struct program *program,
                    const struct mesh_place *place, enum slices_of of);

/* Of that the model's parameters alone, without their moments, and without adapters. */
void slices_of_masters(struct slices *slices, const struct run *run, const struct program *program,
                       const struct mesh_place *place);

/* So many ranks, far from each other, save what all along an axis have: a rank that resumes opens
 * all their files. */
enum { SLICES_SAVERS_MAX = 8 };

/*
 * Of that, what the rank saves: all ranks' together are the whole once. Along the axis over which
 * ZeRO shards, each rank saves what it keeps or, where all hold the same bits, its share of the
 * rows, if it is one of SLICES_SAVERS_MAX; what all ranks of another axis have is saved by the
 * first of them.
 */
void slices_to_save(struct slices *slices, const struct run *run, const struct program *program,
                    const struct mesh_place *place, enum slices_of of);

/*
 * Make each slice a tensor of its own, named after its place ("layers.0.qkv.weight@0:320,0:256"),
 * so that they are a whole checkpoint, of this rank alone; those without elements are left out.
 */
void slices_make_whole(struct slices *slices);

/* Which of how many parts of the parameter, with different elements, is that of the rank there: the
 * row of its moments' scales, which are stored as NAME.m.scale and NAME.v.scale. */
int slices_part_number(const struct program *program, const struct mesh_place *place, int parameter,
                       int *n);

/* Of slices with the same name keep one: a rank may have tied weights twice, with the same bits. */
void slices_keep_once(struct slices *slices);

void slices_release(struct slices *slices);

/*
 * What codecs have lost of the rank's gradients (program/compress.c), which no other rank has: of
 * a parameter NAME.error, of its second use NAME.error.1, in which the ranks' lie one below the
 * other.
 * Where is_saved, without what a lower rank has, too.
 */
void slices_of_errors(struct slices *slices, const struct run *run, const struct program *program,
                      const struct mesh_place *place, bool is_saved);

/* The factors from which powersgd goes on (program/low_rank.c), likewise: NAME.factor, [columns of
 * its matrices, one below the other, x rank], which all data-parallel ranks have. */
void slices_of_factors(struct slices *slices, const struct run *run, const struct program *program,
                       const struct mesh_place *place, bool is_saved);

/* Forget them: zeros, which are what a run begins with. */
void slices_clear_errors(struct run *run, const struct program *program);
void slices_clear_factors(struct run *run, const struct program *program);

/* Zero what the rank has of all parameters' states. */
void slices_clear(struct run *run, const struct program *program, const struct mesh_place *place);

/* Zero what the rank has of split parameters' states: no checkpoint has padding. */
void slices_clear_split(struct run *run, const struct program *program,
                        const struct mesh_place *place);

#endif
