/*
 * beam.h - beam search over one prompt, as transformers does it (generation/utils.py, _beam_search)
 *
 * n_beams unfinished sequences run side by side; of their continuations the 2 n_beams best (more
 * where there are several end tokens) are looked at, so that enough of them go on. Those that end
 * are kept with their score: the sum of log-probabilities over length^length_penalty. The search is
 * over when no running one can get better than the worst of those kept. Pure: from logits it
 * chooses the tokens that come next.
 */
#ifndef SERVE_BEAM_H
#define SERVE_BEAM_H

#include <stdint.h>

#include "base/err.h"
#include "serve/sample.h"

/* When a search with n_beams finished sequences is over: once none seems able to get better (by
 * their present length), at once, or once none can by any length. */
enum early_stopping { EARLY_STOPPING_NO, EARLY_STOPPING_YES, EARLY_STOPPING_NEVER };

struct beam_options {
    int n_beams, vocab_size, max_new_tokens;
    double length_penalty;
    double repetition_penalty; /* 1: none */
    enum early_stopping early_stopping;
    struct sampling sampler; /* temperature 0: the best; else drawn without putting back */
    uint64_t sequence;       /* names the draws */
    const int32_t *ends;
    int n_ends;
};

struct beam_search;

/* Whether a sequence of n new tokens is to end for another reason than an end token (stop texts).
 */
typedef int (*beam_stop_fn)(void *context, const int32_t *tokens, int n);

/* prompt [n_prompt] counts for the repetition penalty only. Returns 0, or -1 and ERR_DEVICE. */
int beam_create(struct beam_search **search, const struct beam_options *options,
                const int32_t *prompt, int n_prompt, struct err *err);
void beam_destroy(struct beam_search *search);

/*
 * Take logits[b] of each running beam, and say what each does next: beam b becomes what from[b] was
 * with next[b] behind it. Returns whether the search goes on; else they mean nothing.
 */
int beam_step(struct beam_search *search, const float *const *logits, beam_stop_fn stop,
              void *context, int *from, int32_t *next);

/* The new tokens of the best, an end token included; they belong to the search. */
const int32_t *beam_best(const struct beam_search *search, int *n, double *score);

#endif
