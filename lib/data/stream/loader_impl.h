/*
 * loader_impl.h - the loader from the inside
 *
 * Micro-batches are numbered from first_step on without a gap. They are the jobs of an ordered pool
 * with one thread, which fills them: no more than N_SLOTS - 1 ahead of the one that the caller
 * holds. All memory is allocated by loader_open.
 *
 *   loader_open.c   checks, files, memory
 *   loader_fill.c   the sequences of a micro-batch, in the thread
 *   loader_cut.c    this rank's rows of them, likewise
 *   loader.c        the ring, and what the caller may ask
 */
#ifndef DATA_STREAM_LOADER_IMPL_H
#define DATA_STREAM_LOADER_IMPL_H

#include <stdbool.h>

#include "data/instruct/packs_set.h"
#include "data/stream/indexed.h"
#include "data/stream/loader.h"
#include "data/stream/ordered_pool.h"
#include "data/stream/sampler.h"

#define N_SLOTS 8

/* Which sequence each place of a step's batch gets, and how long its micro-batches are. */
struct step_deal {
    int64_t step; /* -1: none yet */
    struct dealt_sequence {
        int64_t k;
        struct packs_place from;
    } * places;          /* [global_batch] */
    int *lengths;        /* [n_micro_batches] */
    struct blend cursor; /* of the files of samples */
};

/* A rank's rows of a slot's sequences, in one piece of memory; NULL: these are the sequences', or
 * not wanted. */
struct cut_slot {
    int32_t *memory;
    int32_t *tokens, *targets, *positions, *rows;
    int32_t *attention_positions, *last, *starts, *window_first, *window_last;
    int32_t *ring_first, *ring_last;
};

/* A micro-batch: a job of the pool. */
struct loader_slot {
    int64_t number;
    int32_t *tokens, *targets, *positions, *starts; /* of whole sequences */
    int64_t *samples;
    int seq_len;
    struct cut_slot cut;
    bool failed;
    struct err err;
};

struct loader {
    struct loader_options options;  /* its datasets pointer is not kept */
    struct packs_set samples;       /* of samples; else all zero */
    int *lengths;                   /* of samples: [n_lengths] */
    struct step_deal filled, asked; /* the thread's, and the caller's */
    struct indexed *files;
    int n_files;               /* opened so far */
    struct sampler sampler;    /* the thread's, once it runs; its sizes never change */
    int rows, n_micro_batches; /* of a micro-batch, at most; per step, on this rank */
    int *begins;               /* [n_micro_batches + 1]: sequences before each in a step */
    int *turns;        /* [n_micro_batches]: of the step's micro-batches, where ranks have different
                   numbers; else NULL */
    int64_t n_steps;   /* of the run, or of one evaluation */
    int64_t n_batches; /* in all */
    uint64_t fingerprint;
    int32_t *window;   /* the thread's: seq_len + 1 tokens */
    int32_t *cut_rows; /* the thread's: rows of a sequence that the rank has; NULL: all */

    struct ordered_pool *pool;
    int64_t n_submitted, n_taken; /* batches */
    bool failed;                  /* the next one: each call fails with err */
    struct err err;
};

/* Fill the slot with the micro-batch of its number; failed and err tell how it went. */
void loader_fill(struct loader *loader, struct loader_slot *slot);

/* Options whose cut does not divide a length are ERR_CONFIG. Memory: of the loader, and of a slot,
 * all zero (-1: there is none). */
int loader_cut_check(const struct loader_options *options, struct err *err);
int loader_cut_open(struct loader *loader, struct err *err);
int loader_cut_start(const struct loader *loader, struct loader_slot *slot);

/* Take this rank's rows of the slot's sequences; what the caller sees of it. */
void loader_cut_fill(struct loader *loader, struct loader_slot *slot, int n_sequences);
struct micro_batch loader_cut_batch(const struct loader_slot *slot);

/* Deal the sequences of a step, unless deal has them already. */
void loader_deal_step(const struct loader *loader, struct step_deal *deal, int64_t step);

/* Submit micro-batches until the ring is full, or there are no more. */
void loader_prefetch(struct loader *loader);

#endif
