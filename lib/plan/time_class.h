/*
 * time_class.h - what the time of a rank goes into, predicted and measured
 *
 * One list for the table of a step's time, the slices of timelines and what a run measured.
 */
#ifndef PLAN_TIME_CLASS_H
#define PLAN_TIME_CLASS_H

#include "program/program.h"

/* What a rank's time goes into. Of an async op it is what waiting for it counts as. */
enum time_class {
    TIME_PRODUCTS,
    TIME_ATTENTION,
    TIME_MEMORY, /* ops bound by memory */
    TIME_RECOMPUTE,
    TIME_UPDATE,
    TIME_TENSOR,    /* collectives of tensor parallelism that are not hidden */
    TIME_CONTEXT,   /* of context parallelism: heads, keys and values, not hidden */
    TIME_EXPERTS,   /* of expert parallelism: rows of tokens and their choices, not hidden */
    TIME_STAGES,    /* waiting for other stages: the bubble */
    TIME_TRANSFERS, /* of activations and their gradients between stages, not hidden */
    TIME_GRADIENTS, /* sums of gradients, not hidden */
    TIME_GATHERS,   /* of parameters, not hidden */
    TIME_COPIES,    /* between the device's memory and the host's, not hidden */
    TIME_OVERLAP,   /* compute is slower beside async ops */
    TIME_ISSUE,     /* the host issues ops more slowly than they run */
    N_TIME_CLASSES
};
/* "products" */
const char *time_class_name(enum time_class class);

/* Of an op's own time, or, of one that runs beside compute, of waiting for it. */
enum time_class time_class_of(const struct op *op);

/* Of waiting for what a stream carries: for transfers it is the other stage that is waited for,
 * as far as one can tell. */
enum time_class time_class_of_stream(enum stream stream);

#endif
