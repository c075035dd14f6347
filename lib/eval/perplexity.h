/*
 * perplexity.h - the mean loss of a model over a tokenised text
 */
#ifndef EVAL_PERPLEXITY_H
#define EVAL_PERPLEXITY_H

#include "serve/served.h"

struct perplexity {
    double loss;    /* nats a token */
    int64_t tokens; /* predicted */
};

typedef void (*perplexity_progress_fn)(void *context, int64_t done, int64_t total);

/*
 * Every token of the dataset (prefix of .bin/.idx) is predicted once, from what stands before it in
 * its window of the job's seq_len. limit > 0: only so many windows. on_batch may be NULL. Over
 * several ranks (served->replica) collective; all get the result, on_batch is of the first alone.
 */
int perplexity_measure(struct served *served, struct kernels *kernels, const char *data,
                       int64_t limit, perplexity_progress_fn on_batch, void *context,
                       struct perplexity *out, struct err *err);

#endif
