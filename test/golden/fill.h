/*
 * fill.h - weights, tokens and targets of the golden models, by formula
 *
 * The goldens beside this file are what PyTorch computes from exactly these numbers; the Python
 * twin is scripts/golden/fill.py. Element i of the thing called name is word i % 4 of the Philox
 * block at (GOLDEN_SEED, RNG_TEST, hash of the name, i / 4). init_weights_test.c holds the two
 * together.
 */
#ifndef GOLDEN_FILL_H
#define GOLDEN_FILL_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "data/stream/loader.h"

#define GOLDEN_SEED 1234

enum {
    GOLDEN_N_MICRO_BATCHES = 2,
    GOLDEN_MICRO_BATCH = 2, /* sequences */
    GOLDEN_SEQ_LEN = 16,
    GOLDEN_ROWS = GOLDEN_MICRO_BATCH * GOLDEN_SEQ_LEN, /* of a micro-batch */
    GOLDEN_BATCH_ROWS = GOLDEN_N_MICRO_BATCHES * GOLDEN_ROWS,
    GOLDEN_PROMPT_LEN = 5,
    GOLDEN_N_GREEDY = 12,
    GOLDEN_N_STEPS = 20,
    GOLDEN_NO_STEP = -1, /* the batch of loss, nll and the gradients */
};

static inline uint32_t golden_word(const char *name, int64_t i)
{
    uint64_t place = (uint64_t)i;

    return rng_at(GOLDEN_SEED, RNG_TEST, rng_hash_name(name), place / 4).word[place % 4];
}

/*
 * Element i of the parameter with this global name, i counted over the whole tensor, row after row:
 * uniform in +-0.1, around 1 for names that end in "norm.weight". In double and rounded once, so
 * that a contracted multiply-add would not show.
 */
static inline float golden_weight(const char *name, int64_t i)
{
    static const char norm[] = "norm.weight";
    size_t length = strlen(name), tail = sizeof norm - 1;
    double center = length >= tail && strcmp(name + length - tail, norm) == 0 ? 1.0 : 0.0;

    return (float)(center + ((double)rng_uniform(golden_word(name, i)) - 0.5) * 0.2);
}

/* The first n elements of a parameter, which is all of them if n is its size. */
static inline void golden_fill(const char *name, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = golden_weight(name, i);
}

/* base for GOLDEN_NO_STEP, "base.7" for step 7 (steps count from 0). */
static inline void golden_batch_name(char out[32], const char *base, int step)
{
    if (step == GOLDEN_NO_STEP)
        snprintf(out, 32, "%s", base);
    else
        snprintf(out, 32, "%s.%d", base, step);
}

/*
 * A whole batch, [GOLDEN_BATCH_ROWS] each, micro-batch after micro-batch, sequence after sequence.
 * The target of a row is the sequence's next token, or LABEL_IGNORED: for about a fifth of the
 * first micro-batch and half of the second, so that a mean of micro-batch means is not the batch's
 * mean.
 */
static inline void golden_batch(int step, int vocab_size, int32_t *tokens, int32_t *targets)
{
    char stream[32], ignored[32];

    golden_batch_name(stream, "tokens", step);
    golden_batch_name(ignored, "ignored", step);
    for (int row = 0; row < GOLDEN_BATCH_ROWS; row++) {
        int sequence = row / GOLDEN_SEQ_LEN, micro_batch = row / GOLDEN_ROWS;
        int64_t place = row + sequence; /* a sequence takes one word more than it has rows */
        uint32_t every = micro_batch == 0 ? 5 : 2, vocab = (uint32_t)vocab_size;

        tokens[row] = (int32_t)(golden_word(stream, place) % vocab);
        targets[row] = (int32_t)(golden_word(stream, place + 1) % vocab);
        if (golden_word(ignored, row) % every == 0)
            targets[row] = LABEL_IGNORED;
    }
}

/* The prompt of the greedy continuation: [GOLDEN_PROMPT_LEN]. */
static inline void golden_prompt(int vocab_size, int32_t *tokens)
{
    for (int i = 0; i < GOLDEN_PROMPT_LEN; i++)
        tokens[i] = (int32_t)(golden_word("prompt", i) % (uint32_t)vocab_size);
}

#endif
