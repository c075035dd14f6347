/*
 * gradients.h - the reverse walk, as seen by the backward of an op kind
 *
 * The backward of each kind is in its family file in ops/ (ops/backward.h); this is what it may do
 * to the program: take and add gradients, create values, emit ops.
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
    struct backward calls; /* first member: the pointer that a kind's backward gets */
    struct program *program;
    int forward;       /* that is differentiated */
    int backward;      /* function that is emitted into */
    int layer;         /* of the op at hand */
    int n_values;      /* values of the forward */
    int *gradient;     /* by value id */
    const char *needs; /* by value id: whether it depends on a trainable parameter */

    /*
     * By value id, for values that are read by views: the gradient that ops write part by part, or
     * 0, and the number of elements written so far.
     */
    int *parts;
    int64_t *n_written;

    int *gathered; /* by value id: all_parts's answer; 0: not asked for */

    struct op_node made; /* maker's answer */
};

/* Set walk->calls; all other members must be set. */
void gradient_walk_init(struct gradient_walk *walk);

/* Emit the backward of `op`, one of whose outputs has a gradient. Its kind must have a backward. */
void gradient_emit(struct gradient_walk *walk, const struct op *op);

#endif
