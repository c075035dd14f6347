/*
 * gradients.h - the reverse walk, as seen by the backward of an op kind
 *
 * What carries an op's gradients is written in the kind's family file (ops/backward.h); here is
 * what that may do to the program: take and add gradients, make values, emit.
 */
#ifndef PROGRAM_GRADIENTS_H
#define PROGRAM_GRADIENTS_H

#include "ops/backward.h"
#include "program/program.h"

/*
 * The state of one reverse walk. gradient[v] is the value that holds the sum of v's gradients seen
 * so far, 0 if there is none.
 */
struct gradient_walk {
    struct backward calls; /* first: a backward is given this */
    struct program *program;
    int backward;      /* function that is emitted into */
    int layer;         /* of the op at hand */
    int n_values;      /* values of the forward */
    int *gradient;     /* by value id */
    const char *needs; /* by value id: does a trainable parameter lie behind it? */

    /*
     * By value id, of what is read by views: the gradient that ops write part by part, 0 if there
     * is none, and how many of its elements they have written.
     */
    int *parts;
    int64_t *n_written;
};

/* Fill walk->calls; everything else is there. */
void gradient_walk_init(struct gradient_walk *walk);

/* Emit the gradient of `op`, one of whose outputs has a gradient. Its kind has a backward. */
void gradient_emit(struct gradient_walk *walk, const struct op *op);

#endif
