/*
 * zero3_impl.h - the gathers of zero 3 while they are made: zero3.c, and those ahead of their
 * functions, zero3_prefetch.c
 */
#ifndef PROGRAM_ZERO3_IMPL_H
#define PROGRAM_ZERO3_IMPL_H

#include "program/passes.h"

struct zero3 {
    struct program *program;
    int n_values;      /* values before this pass */
    int *parameter_of; /* by value: 1 + the parameter whose weight it is, if that is sharded */
};

/* What the whole bucket is called. */
char *zero3_bucket_name(struct program *p, int bucket);

/* How many actions of an entry are ahead of all that is for a micro-batch: what they write may be
 * gathered behind them. */
int zero3_n_leading(const struct entry *e);

/* The gather of a bucket into a value. */
struct op zero3_gather_op(const struct zero3 *h, int bucket, int gathered, enum phase phase);

/*
 * zero3_prefetch.c: where gathers are within functions (PASS), take those of the first n_ahead
 * buckets that a function's products read, and of what it reads before them, out of it. They go
 * into cells, which these buckets share where no function reads one of them and the next function
 * another, and into functions of their own, "ahead N", which an entry runs ahead of the function
 * before the one that reads them; at its front if there is none before. What a cell has already is
 * not gathered again.
 */
void zero3_prefetch(const struct zero3 *h, int n_ahead);

#endif
