/*
 * loader.h - micro-batches of a run, in an order determined by seed and sample number
 *
 * Sample k of a run (k = step * global_batch + index in the batch) has the same tokens for every
 * layout; the layout only determines which rank reads which k. Under data parallelism, micro-batch
 * m of data rank r holds samples (m * dp_size + r) * micro_batch ... of its step's batch; where
 * sizes s_m are given, (s_0 + ... + s_(m-1)) * dp_size + r * s_m .... A background thread
 * prefetches, so that loader_next rarely waits.
 *
 * It reads token files (sampler.h: every token has loss), or a file of samples (samples.h: with a
 * loss mask). With packing a sequence of a file of samples is a pack: as many samples as fit,
 * without attention between them. Without packing a sequence is one sample, right-padded; with
 * `lengths` the sequences of a step are assigned to its micro-batches by length, so that short ones
 * need less padding: the set of sequences of a step never depends on lengths or layout.
 *
 * Under context parallelism (layout/context.h) each rank gets its rows of the same sequences: they
 * are permuted once, here, and nothing behind the loader knows where they came from.
 */
#ifndef DATA_STREAM_LOADER_H
#define DATA_STREAM_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "layout/context.h"

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
    /* [dp_size]: micro-batches of each rank, copied; NULL: alike. Token files without sizes only.
     * The micro-batches of a step are then dealt in turn to the ranks that still take one. */
    const int *counts;
    int dp_rank, dp_size;
    uint64_t seed;
    double split;  /* fraction of samples held out, selected by a hash of dataset and sample */
    bool held_out; /* true: the held-out part (or, with split 0, all), once, in order: evaluation */
    int64_t first_step; /* first step to load, for a resumed run */
    int64_t n_steps;    /* total steps of the run: determines the number of epochs */

    const char *samples; /* prefix of a file of samples, in place of datasets; or NULL */
    bool blends_samples; /* samples: those of dataset i are in SAMPLES-i, drawn by its weight */
    bool packing;        /* samples: as many as fit share a sequence */
    const int *lengths;  /* samples, no packing: lengths that micro-batches may have, ascending, the
                            last is seq_len; copied */
    int n_lengths;       /* 0: all have seq_len */
    bool even_steps;     /* with lengths: all micro-batches of a step have the same length */
    double n_epochs;     /* samples: if > 0, n_steps is computed from this number of epochs */

    struct context_cut cut; /* of each sequence; all 0: not cut. It divides all lengths, or loading
                               is refused with ERR_CONFIG and the nearest lengths */
    int ulysses_rank, cp_rank; /* whose rows are wanted */
    int window;                /* of attention: window_first and window_last are wanted, if cut.keys
                                  > 1, of lengths with chunks of so many rows; 0: none */
    bool ring;                 /* ring_first and ring_last are wanted, if cut.keys > 1 */
    int ring_window;           /* of attention, for these; 0: none */
};

/*
 * A sequence has seq_len rows, of which this rank has n = seq_len / (ulysses * keys) local ones,
 * row s * n + i being its i-th of sequence s, and m = seq_len / keys attention rows, its pair's,
 * row s * m + i likewise. Without a cut both are all rows of the micro-batch, rows and last NULL.
 * Memory is owned by the loader. Content after the rows of a smaller micro-batch is undefined.
 */
struct micro_batch {
    /* Of local rows: */
    const int32_t *tokens;
    const int32_t *targets; /* LABEL_IGNORED for tokens without loss */
    const int32_t *positions;
    const int32_t *rows; /* the row's number among the micro-batch's: s * seq_len + row in its
                            sequence; NULL: its own */

    const int64_t *samples; /* [micro_batch] sample numbers */

    /* Of attention rows: */
    const int32_t *attention_positions;
    const int32_t *starts; /* offset in its sequence of the row's sample: keys before it are masked;
                              NULL without packing: all 0 */
    const int32_t *last;   /* the row's number in its sequence: keys behind it are masked; NULL with
                              keys 1: row i's is i */
    /* The keys that the row sees through the window, numbered as gather_window does: of its
     * sequence in what the rank's windows see. NULL unless wanted. */
    const int32_t *window_first, *window_last;
    /*
     * [keys x attention rows]: of the keys that step s of the ring has at hand, those of the pair
     * of cp rank (cp_rank - s) mod keys, numbered in that pair, the query sees first .. last, by
     * document and window. Neither decreases within a sequence; where it sees none, first is last
     * + 1, and last may be -1. NULL unless wanted.
     */
    const int32_t *ring_first, *ring_last;

    int seq_len; /* of this micro-batch: one of lengths */
};

struct loader;

int loader_open(struct loader **loader, const struct loader_options *options, struct err *err);
void loader_close(struct loader *loader);

/*
 * The next micro-batch, in order: all of first_step, then those of the next step, .... Valid until
 * the next call. Returns 0, or -1 and ERR_DATA. A held-out loader's last batch is filled up with
 * rows whose targets are LABEL_IGNORED.
 */
int loader_next(struct loader *loader, struct micro_batch *out, struct err *err);

/* Number of targets with loss in the global batch of this step, over all ranks: the divisor of the
 * loss. Same thread as loader_next, as the next two. */
int64_t loader_step_tokens(struct loader *loader, int64_t step);

/* Number of tokens of that global batch without padding, with and without loss. */
int64_t loader_step_read(struct loader *loader, int64_t step);

/* Sequence length of this micro-batch, equal on all dp ranks. Same thread as
 * loader_next. */
int loader_length(struct loader *loader, int64_t step, int micro_batch);

/* Steps of the run (n_steps, or what n_epochs came to), or of one evaluation. */
int64_t loader_n_steps(const struct loader *loader);

/* Statistics of an epoch of samples, for reports; unknown values are 0 (token files). */
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

/* xxh64 of everything that determines the order: sizes and first bytes of the datasets, weights,
 * seed, seq_len, split. */
uint64_t loader_fingerprint(const struct loader *loader);

/* Back to the first batch: for the next evaluation. Held-out loaders only. */
void loader_rewind(struct loader *loader);

#endif
