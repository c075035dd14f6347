/*
 * exchange_impl.h - what the rows of collectives share
 */
#ifndef OPS_EXCHANGE_IMPL_H
#define OPS_EXCHANGE_IMPL_H

#include "ops/family_impl.h"

/* The spreads that the op requires and has over its own axis; over others the output has the
 * input's spread. Returns 0, or -1 and ERR_FAILED. */
int spread_over_axis(const struct spread_query *q, enum spread wanted, enum spread result);

/*
 * Adds to `to`'s gradient what a collective that undoes op makes of dfrom: in `to`'s place, if it
 * is a view.
 */
void return_gradient(struct backward *b, struct op_node undo, int to, int dfrom);

/* seq_len is an even number. Returns 0, or -1 and ERR_FAILED. */
int check_two_chunks(const struct op_shape *op, const char *why, struct err *err);

#endif
