/*
 * gradients.h - one rule per op kind: the ops that carry its outputs' gradients to its inputs
 */
#ifndef PROGRAM_GRADIENTS_H
#define PROGRAM_GRADIENTS_H

#include "program/program.h"

/*
 * The state of one reverse walk. gradient[v] is the value that holds the sum of v's gradients seen
 * so far, 0 if there is none.
 */
struct gradient_walk {
    struct program *program;
    int backward;      /* function that is emitted into */
    int layer;         /* of the op at hand */
    int n_values;      /* values of the forward */
    int *gradient;     /* by value id */
    const char *needs; /* by value id: does a trainable parameter lie behind it? */
};

/* Emit the gradient of `op`. Called only if one of its outputs has a gradient, or it needs none. */
void gradient_rule(struct gradient_walk *walk, const struct op *op);

/* Whether op_kind has a rule. */
int gradient_known(enum op_kind kind);

#endif
