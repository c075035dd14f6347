/*
 * init_weights.h - what cells hold at the very start
 */
#ifndef WEIGHTS_INIT_WEIGHTS_H
#define WEIGHTS_INIT_WEIGHTS_H

#include "config/model_spec.h"
#include "device/pool.h"
#include "run/run.h"

/*
 * Initial parameters, by seed, name and element of the whole alone (RNG_INIT): equal on every rank
 * and layout; padding is zero. Masters and the rounded weights are filled, of sharded ones what
 * this rank keeps; moments are zero from the start.
 */
void init_parameters(struct run *run, const struct program *program, const struct mesh_place *place,
                     struct pool *pool, uint64_t seed);

/* Round every master, or what this rank keeps of it, to its weight: after masters were loaded.
 * Returns 0, or -1 and ERR_DEVICE (of a GPU, which they are read from). */
int init_weights_from_masters(struct run *run, const struct program *program,
                              const struct mesh_place *place, struct pool *pool, struct err *err);

/* The constants: rope's cosines and sines. */
void init_constants(struct run *run, const struct program *program, const struct model_spec *spec);

#endif
