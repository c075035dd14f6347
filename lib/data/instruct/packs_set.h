/*
 * packs_set.h - the sequences of one file of samples, or of several that are blended by weights
 *
 * As with token files (stream/sampler.h), sequence k of training is the next one of the file that
 * the blend gives it (stream/blend.h), and each file runs through shuffled epochs of its own. Held
 * out, all files come once, one behind the other. With one file it is packs.h alone.
 */
#ifndef DATA_INSTRUCT_PACKS_SET_H
#define DATA_INSTRUCT_PACKS_SET_H

#include "data/instruct/packs.h"
#include "data/stream/blend.h"

struct packs_set {
    struct packs *packs; /* [n] heap */
    int n;
    bool held_out;
    struct blend blend;                                  /* of the weights, at sequence 0 */
    int64_t n_sequences, n_samples, n_tokens, n_learned; /* one epoch of each file */
};

/* A sequence; -1: behind the end of what is held out, and all else is 0. */
struct packs_place {
    int file;
    int64_t sequence;
    int32_t length, learned; /* tokens, and targets with loss */
};

/*
 * n 0: the file options->prefix. Else files PREFIX-0 to PREFIX-(n-1) with these weights. Returns 0,
 * or -1 as packs_open and blend_init.
 */
int packs_set_open(struct packs_set *set, const struct packs_options *options,
                   const double *weights, int n, struct err *err);
/* Safe on all zero. */
void packs_set_close(struct packs_set *set);

/* The sequence that comes k-th. cursor: a copy of set->blend, whose place is kept between calls;
 * each thread has its own. */
struct packs_place packs_set_find(const struct packs_set *set, struct blend *cursor, int64_t k);

/* A hash of the files' contents and weights. */
uint64_t packs_set_key(const struct packs_set *set);

#endif
