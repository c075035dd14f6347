/*
 * sampler.h - sample numbers to places in the data
 *
 * A dataset is cut into windows of seq_len + 1 tokens with stride seq_len: window w reads seq_len
 * tokens from position w * seq_len on, and learns the token after each. Of these, `split` is the
 * share held out: one window of every stratum of 1 / split neighbours, chosen by a hash of the
 * dataset's contents and the stratum. It depends neither on the seed nor on the other datasets.
 *
 * Training runs through shuffled epochs of the rest without end. Held out, every window comes once,
 * in order; with split 0 that is all of the data, a last short window too.
 */
#ifndef DATA_STREAM_SAMPLER_H
#define DATA_STREAM_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/stream/blend.h"
#include "data/stream/indexed.h"

struct sampler_dataset {
    const struct indexed *tokens; /* borrowed */
    uint64_t key;                 /* of the contents: chooses what is held out */
    int64_t n_windows;            /* whole ones */
    int64_t n_held_out;           /* of these, by split */
    int64_t n_samples;            /* in an epoch, or in the evaluation */
};

struct sampler {
    struct sampler_dataset *datasets; /* heap */
    int n_datasets;
    int seq_len;
    bool held_out;
    double split;
    uint64_t seed;
    int64_t n_samples, n_tokens; /* one epoch of each dataset, or the whole evaluation */
    struct blend blend;
};

/* Where a sample lies. */
struct sample_place {
    int dataset;
    int64_t first; /* position of its first token */
    /* tokens with loss: seq_len, or fewer in a last short window; 0 behind the end */
    int n_targets;
};

struct sampler_options {
    const struct indexed *const *datasets; /* borrowed until release */
    const double *weights;
    int n_datasets;
    int seq_len;
    bool held_out;
    double split;
    uint64_t seed;
};

/*
 * Returns 0, or -1: ERR_CONFIG if split or a weight is out of range, ERR_DATA if a dataset is too
 * short to give a sample.
 */
int sampler_init(struct sampler *sampler, const struct sampler_options *options, struct err *err);
void sampler_release(struct sampler *sampler);

/* Where sample k lies. Cheap when k does not decrease between calls, else see blend_seek. */
struct sample_place sampler_find(struct sampler *sampler, int64_t k);

/* Targets learned in samples k .. k + n - 1. */
int64_t sampler_count_targets(const struct sampler *sampler, int64_t k, int64_t n);

#endif
