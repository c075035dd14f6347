/*
 * packs.h - samples to the sequences that are trained on
 *
 * A sequence is one sample, or with packing as many as fit into seq_len: samples are shuffled once
 * by the seed, and windows of them are packed by best fit decreasing (pack_bins.h). Sequences then
 * come in shuffled epochs without end, or held out once each, the longest first.
 *
 * Held out is `split` of the samples: one of every stratum of 1 / split neighbours, chosen by a
 * hash of the file's contents, whatever the seed. With split 0 a held-out reader has all.
 */
#ifndef DATA_INSTRUCT_PACKS_H
#define DATA_INSTRUCT_PACKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/instruct/samples.h"

struct packs_options {
    const char *prefix; /* of samples.h */
    int vocab_size, seq_len;
    int packing;
    bool held_out;
    double split;
    uint64_t seed;
    int dataset; /* number of the file among those that are blended: each has an order of its own */
};

struct packs {
    struct samples file;
    uint64_t key; /* of the file's contents */
    uint64_t seed;
    int seq_len, packing, dataset;
    bool held_out;
    int32_t *members;           /* samples, sequence by sequence */
    int64_t *begins;            /* [n_sequences + 1] in members */
    int32_t *lengths, *learned; /* [n_sequences] tokens, and targets that are learned */
    int64_t n_sequences, n_samples, n_tokens, n_learned;
};

/* Returns 0, or -1: ERR_DATA if a sample is longer than seq_len or has a token outside the
 * vocabulary, or if there is nothing to train on; ERR_DEVICE. */
int packs_open(struct packs *packs, const struct packs_options *options, struct err *err);
void packs_close(struct packs *packs);

/* The sequence that comes k-th; -1 behind the end of what is held out. */
int64_t packs_find(const struct packs *packs, int64_t k);

/* Where the rows of a sequence go, n_rows each; starts may be NULL. */
struct packs_rows {
    int32_t *tokens, *targets, *positions, *starts;
    int n_rows;
};

/*
 * The rows of a sequence (-1: of none), which has at most n_rows tokens: positions count from each
 * sample's start, the last row of each learns nothing, and what is behind is padding: token 0 that
 * learns nothing and sees only padding.
 */
int packs_fill(const struct packs *packs, int64_t sequence, const struct packs_rows *rows,
               struct err *err);

#endif
