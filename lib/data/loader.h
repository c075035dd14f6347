/*
 * loader.h - micro-batches of a run, in the order that seed and sample number decide
 *
 * Sample k of a run (k = step * global_batch + index in the batch) is the same tokens whatever the
 * layout; the layout only says which rank reads which k. Under data parallelism, micro-batch m of
 * data rank r holds samples (m * dp_size + r) * micro_batch ... of its step's batch; where sizes s_m
 * are given, (s_0 + ... + s_(m-1)) * dp_size + r * s_m .... A background thread prepares what comes next, so that loader_get seldom waits.
 *
 * It reads token files (sampler.h: every token is learned), or a file of samples (samples.h: each
 * token says whether it is learned). Of samples, with packing a sequence is a pack: as many samples
 * as fit, none of which attends to another. Without packing a sequence is a sample, padded behind;
 * `lengths` lets a step's sequences be dealt to its micro-batches by length, so that short ones are
 * padded to less: which sequences make up a step never depends on it, nor on the layout.
 */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include <stdint.h>

#include "base/err.h"

#define LABEL_IGNORED (-100)

struct loader_dataset {
    const char *path; /* prefix of .bin/.idx */
    double weight;
};

struct loader_options {
    const struct loader_dataset *datasets;
    int n_datasets;
    int vocab_size; /* a token outside 0..vocab_size-1 is ERR_DATA */
    int seq_len;
    int global_batch, micro_batch;
    const int *sizes; /* sequences of each micro-batch of a step, at most micro_batch; copied */
    int n_sizes;      /* 0: all are micro_batch */
    int dp_rank, dp_size;
    uint64_t seed;
    double split; /* share of the samples held out: hashed by dataset and sample, never by order */
    int held_out; /* 1: the held-out part (or, with split 0, all), once, in order: evaluation */
    int64_t first_step; /* where a resumed run goes on */
    int64_t n_steps;    /* steps the run has in all: how many epochs are laid out */

    const char *samples; /* prefix of a file of samples, in place of datasets; or NULL */
    int packing;         /* samples: as many as fit share a sequence */
    const int *lengths;  /* samples, no packing: lengths that micro-batches may have, ascending, the
                            last is seq_len; copied */
    int n_lengths;       /* 0: all have seq_len */
    int even_steps;      /* with lengths: all micro-batches of a step have one */
    double n_epochs;     /* samples: > 0 sets n_steps, to as many as so many epochs take */
};

/*
 * rows = micro_batch * seq_len; row i of sequence s is s * seq_len + i, with the micro-batch's own
 * seq_len. Memory is the loader's. What lies behind a smaller micro-batch is anything.
 */
struct micro_batch {
    const int32_t *tokens;    /* [rows] */
    const int32_t *targets;   /* [rows]; LABEL_IGNORED where nothing is learned */
    const int32_t *positions; /* [rows] */
    const int64_t *samples;   /* [micro_batch] sample numbers */
    const int32_t *starts;    /* [rows] where in its sequence the row's sample begins: keys before
                                 it are not seen; NULL without packing: 0 everywhere */
    int seq_len;              /* of this micro-batch: one of lengths */
};

struct loader;

int loader_open(struct loader **loader, const struct loader_options *options, struct err *err);
void loader_close(struct loader *loader);

/*
 * The next micro-batch, in order: all of first_step, then the next step's, .... It stays until the
 * next call. Returns 0, or -1 and ERR_DATA. A held-out loader's last batch is filled up with rows
 * whose targets are LABEL_IGNORED.
 */
int loader_next(struct loader *loader, struct micro_batch *out, struct err *err);

/* Targets learned in the whole global batch of this step, over all ranks: the loss's divisor. */
int64_t loader_step_tokens(const struct loader *loader, int64_t step);

/* Tokens of it that are read, padding left out: of samples more than are learned. */
int64_t loader_step_read(const struct loader *loader, int64_t step);

/* How long the sequences of this micro-batch are, on every rank of dp. For one thread, as
 * loader_next is. */
int loader_length(struct loader *loader, int64_t step, int micro_batch);

/* Steps of the run (n_steps, or what n_epochs came to), or of one evaluation. */
int64_t loader_n_steps(const struct loader *loader);

/* What an epoch of samples comes to, for people: 0 of what it does not know (token files). */
struct loader_usage {
    int64_t n_samples;   /* as in the file: a pack holds several */
    int64_t n_sequences; /* = loader_n_samples */
    int64_t n_tokens, n_learned;
    int64_t n_rows; /* with padding: n_tokens / n_rows is the efficiency */
};
struct loader_usage loader_usage(struct loader *loader);

/* Sequences and tokens in one epoch (training), or in all (held out). */
int64_t loader_n_samples(const struct loader *loader);
int64_t loader_n_tokens(const struct loader *loader);

/* xxh64 of what decides the order: datasets' sizes and contents' heads, weights, seed, seq_len,
 * split. */
uint64_t loader_fingerprint(const struct loader *loader);

/* Back to the first batch: for the next evaluation. Held-out loaders only. */
void loader_rewind(struct loader *loader);

#endif
