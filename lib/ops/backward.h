/*
 * backward.h - how the backward of a kind is written
 *
 * A row's backward (op_info.h) is given one op of the forward, of which at least one output has a
 * gradient. It takes the gradients of the outputs, emits the ops that carry them to the inputs, and
 * adds what these give to the inputs' gradients. Values are named by ids of the program that is
 * differentiated, 0 is none. How the functions change that program is known to program/gradients.c,
 * which fills the struct; here is what a backward may rely on.
 */
#ifndef OPS_BACKWARD_H
#define OPS_BACKWARD_H

#include <stdbool.h>

#include "ops/op_info.h"

/*
 * Ops of the first class lie on the path to gradients of inputs (phase B); those of the second
 * accumulate gradients of parameters alone (phase W), and zero-bubble schedules may run them later.
 */
enum gradient_class { GRADIENT_OF_INPUTS, GRADIENT_OF_PARAMETERS };

/* An op whose operands are values. */
struct op_node {
    enum op_kind kind;
    struct op_attributes attributes;
    int in[OPS_MAX_INPUTS];
    int out[OPS_MAX_OUTPUTS];
    enum gradient_class gradient_of; /* of what is emitted */
};

struct backward {
    /*
     * The sum of v's gradients so far, 0 if there are none; v has none from then on, the caller
     * carries on what it took. take_gradient's is reduced over each axis on which it is partial and
     * v is not; take_summand's is not: for what treats the summands of a gradient one by one.
     */
    int (*take_gradient)(struct backward *b, int v);
    int (*take_summand)(struct backward *b, int v);

    /* v's gradient grows by g. Nothing happens where no trainable parameter lies behind v. */
    void (*add_gradient)(struct backward *b, int v, int g);
    bool (*needs_gradient)(const struct backward *b, int v);

    /*
     * The same for n operands that may be views: new_gradients makes values that an op then writes
     * (of a view, as it lies in its base, a view of a gradient of the base), add_gradients adds
     * them. Views of one value lie apart and are all of it together, whichever ops read them: when
     * the last of them has its gradient, the value has.
     */
    void (*new_gradients)(struct backward *b, const int *x, int n, int *dx);
    void (*add_gradients)(struct backward *b, const int *x, int n, const int *dx);

    /* The gradient accumulator for this use of a parameter; 0 if it is frozen, or w is none. */
    int (*accumulator)(struct backward *b, int w);

    /* Is w the same on all ranks, over every axis on which y's gradient so far is partial? */
    bool (*is_whole)(const struct backward *b, int w, int y);

    /* Is g partial over the axis, and v is not? */
    bool (*is_partial)(const struct backward *b, int v, int g, enum mesh_axis axis);

    enum dtype (*dtype)(const struct backward *b, int v);

    /* A new value of v's shape; of n rows, else as v. */
    int (*new_like)(struct backward *b, int v, enum dtype dtype);
    int (*new_rows)(struct backward *b, int v, int64_t n);

    int64_t (*rows)(const struct backward *b, int v);
    int64_t (*cols)(const struct backward *b, int v);

    /* v, or a cast of it, if it has another dtype. */
    int (*cast)(struct backward *b, int v, enum dtype dtype);

    /* v with the rows of all ranks that have parts of the same sequences, in an order of its own; v
     * itself where there are no others. Gathered once for all that ask. */
    int (*all_parts)(struct backward *b, int v);

    /* v, summed over every axis on which it is partial: no gradient, but what one needs. */
    int (*sum)(struct backward *b, int v);

    /* Views: n columns of v from `first` on; the rank's own part of v over the axis. */
    int (*columns)(struct backward *b, int v, int64_t first, int64_t n);
    int (*local_shard)(struct backward *b, int v, enum mesh_axis axis);

    /* The op of the forward that makes v; NULL: none does. Until the next call. */
    const struct op_node *(*maker)(struct backward *b, int v);

    /* What v is a view of; 0 if it is none. */
    int (*base)(const struct backward *b, int v);

    /* Append the op to the backward. A collective travels over its axis. */
    void (*emit)(struct backward *b, const struct op_node *op);

    int gradient_scale; /* the scalar by which gradients are too large; 0: by 1 */
};

/* A new value for the gradient of v: of its shape and dtype. */
static inline int backward_like(struct backward *b, int v)
{
    return b->new_like(b, v, b->dtype(b, v));
}

#endif
