/*
 * collective_play.h - one collective over threads as ranks, on host memory
 *
 * Ranks' inputs are numbers of many magnitudes, so that every order of adding rounds differently.
 * Scratch is exactly as large as is asked for, with a guard behind it; it is NaN at first, and so
 * are outputs.
 */
#ifndef SUPPORT_COLLECTIVE_PLAY_H
#define SUPPORT_COLLECTIVE_PLAY_H

#include <stddef.h>

#include "comm/comm.h"
#include "ops/ops.h"

struct comm_hub;

enum { PLAY_RANKS_MAX = 8, PLAY_N_NUMBERS = 36001 };

struct collective_play {
    struct op_shape shape;
    int size;
    int adds;                                   /* to what is there */
    int in_place;                               /* out is in's memory */
    int n_on_node;                              /* ranks of a node; 0: it does not go by node */
    int is_staged;                              /* operands are a device's, moves the host's */
    size_t n_staged[PLAY_RANKS_MAX];            /* bytes copied between them, in each run */
    const int32_t *choices;                     /* the second input of all ranks, or NULL */
    const unsigned char *given[PLAY_RANKS_MAX]; /* the input in the place of numbers, or NULL */
    unsigned char *in[PLAY_RANKS_MAX], *out[PLAY_RANKS_MAX], *before[PLAY_RANKS_MAX];
    size_t in_bytes, out_bytes;
    struct comm_hub *hub;
};

/* A group's set-up: before all others. */
int play_fill_numbers(void **state);

struct tensor play_dense(int64_t rows, int64_t cols, enum dtype dtype);

/* Over the axis tp of `size` ranks. Further attributes are the caller's to set. */
struct collective_play play_make(enum op_kind kind, int size, struct tensor in, struct tensor out);

/* Afterwards play has what each rank was given, in `before`, and got, in `out`. */
void play_run(struct collective_play *play);
void play_release(struct collective_play *play);

/* Element i of a tensor's memory. */
double play_get(enum dtype dtype, const void *values, int64_t i);

/* The sum of n numbers, rounded to fp32 at each add but for fp64. */
double play_tree(enum dtype dtype, const double *x, int n);

/* The tree sum over ranks [first, first + n) of their inputs' element i. */
double play_sum_at(const struct collective_play *play, int first, int n, int64_t i);

/* Fails where element i of rank r's output is not this, rounded; where what lies between the rows
 * of outputs was written. */
void play_expect(const struct collective_play *play, int r, int64_t i, double wanted);
void play_expect_gaps(const struct collective_play *play);

#endif
