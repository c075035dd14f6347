/*
 * score.h - log-likelihoods of given continuations of given texts, in batches
 *
 * Common prefixes of texts are computed once: the sorted texts form a tree of segments, each of
 * which is computed once and kept in the KV cache as long as texts continue it. Segments are packed
 * into batches of rows without padding. The score of a text does not depend on the other texts.
 *
 * All ranks of served->replica have a scorer each, and make the same calls with the same texts;
 * creating and running are collective over them, and all get the scores.
 */
#ifndef SERVE_SCORE_H
#define SERVE_SCORE_H

#include <stdbool.h>

#include "serve/served.h"

struct scorer;

struct scorer_options {
    int max_positions; /* tokens of the longest text, without its last */
    int n_rows;        /* tokens per batch; 0: 512 */
};

int scorer_create(struct scorer **scorer, struct served *served, struct kernels *kernels,
                  const struct scorer_options *options, struct err *err);
void scorer_destroy(struct scorer *scorer);

/*
 * tokens: a text (context and continuation), of which the last n_scored are to be predicted, 1 <=
 * n_scored < n. log_likelihood: the sum of their natural log probabilities; is_greedy: whether each
 * is the most likely token there (of an ensemble: to each of its models).
 */
struct score {
    const int32_t *tokens;
    int n, n_scored;
    double log_likelihood;
    bool is_greedy;
};

/* done: texts so far, of total. */
typedef void (*score_progress_fn)(void *context, int64_t done, int64_t total);

/*
 * Fill in n scores, in any order. n_fed (may be NULL): the tokens that were computed. Returns 0, or
 * -1 and ERR_CONFIG (a text longer than the options allow, a token that the model lacks).
 */
int scorer_run(struct scorer *scorer, struct score *scores, int64_t n, score_progress_fn progress,
               void *context, int64_t *n_fed, struct err *err);

#endif
