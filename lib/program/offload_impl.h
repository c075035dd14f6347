/*
 * offload_impl.h - values that are to leave the device, and their stays in a function
 */
#ifndef PROGRAM_OFFLOAD_IMPL_H
#define PROGRAM_OFFLOAD_IMPL_H

#include <stdbool.h>

#include "program/passes.h"

struct offload {
    struct program *program;
    const struct offload_options *options;
    struct arena *arena;
};

/* Give a base a home in this space. */
void offload_send(const struct offload *o, int id, enum space space);

/* offload_kept.c: what forwards keep for backwards. */
void offload_send_kept(const struct offload *o);

/* offload_points.c: the times of a function's ops into ns [n_ops]. */
void offload_list_times(const struct offload *o, const struct function *f, int64_t *ns);

/* A stay that is to be: uses of a value in one function that lie close together. */
struct visit {
    int value;
    int first, last, last_write; /* ops; last_write -1: it only reads */
    bool reads_first;            /* what was there before */
    int64_t n_written;           /* elements */
    bool is_home;                /* a host op's, of the home */
    int before, after; /* 1 + the visit of the same value before it, and after it; 0 none */
    int bring_at;      /* the op ahead of which it is brought; -1: it is not */
    int await_at;      /* the op ahead of which its way home has ended; n_ops: the function's end */
};

struct visits {
    struct visit *list;
    int n, capacity;
    int *of;     /* by base value: 1 + its newest visit, 0 none */
    int *owners; /* by base value: that whose home it is, or 0 */
};

/* Cells have had something before; a plain value is what the function writes. */
bool offload_is_brought(const struct offload *o, const struct visit *v);

/*
 * offload_update.c: behind the choice of homes, before copies are inserted: ops of TRAIT_ON_HOST
 * whose states are all at home in host memory become host ops.
 */
void offload_update(const struct offload *o);

/*
 * offload_cut.c: ops of the update on cells that are away are cut into ops on pieces of them, each
 * of which comes and goes by itself, where the cells are large.
 */
void offload_cut_updates(const struct offload *o);

/* The same of those ops that are to become host ops: into ops on views, as homes stay where they
 * are. */
void offload_cut_moved(const struct offload *o,
                       bool (*moves)(const struct program *program, const struct op *op));

/* offload_points.c: set bring_at and await_at of all visits, in the order of their first ops, of
 * the function. */
void offload_find_points(const struct offload *o, struct visits *visits, const struct function *f);

#endif
