/*
 * routing_impl.h - the experts that tokens go to
 */
#ifndef MODEL_ROUTING_IMPL_H
#define MODEL_ROUTING_IMPL_H

#include "model/emitter_impl.h"

/* The routing of tokens: weights and experts of each, the positions of its rows after sorting by
 * expert, and the end of each expert's rows. */
struct routes {
    int weight, expert, place, ends;
};

/* Rows that a rank sends to experts: where tp ranks have whole ones, the rank's own. */
static inline int64_t routing_rows(const struct emitter *e)
{
    return e->b->whole_experts ? e->rows / e->tp : e->rows;
}

/* Route the rows of a norm's output. */
struct routes routing_emit(const struct emitter *emitter, int y);

/* Choices of an expert that are kept, of a rank's in a micro-batch; 0: all are. */
int64_t routing_capacity(const struct emitter *emitter);

#endif
