/*
 * ensemble.h - models whose token probabilities are averaged
 *
 * An ensemble is a served model with members: the probability of a token is the arithmetic mean of
 * what each of the models gives it. decode.h and score.h (and what stands on them: generating,
 * beams, benchmarks, perplexity) do that wherever served->members are; each model has its own
 * weights and cache, and computes each text. Models may differ in size and layers, but have one
 * vocabulary, one tokenizer, and no fewer positions than the first.
 */
#ifndef SERVE_ENSEMBLE_H
#define SERVE_ENSEMBLE_H

#include "serve/served.h"

/*
 * Open n further models and make them members of one that is open, which closes them with itself,
 * also after a failure. weights: of served_weights_words. Returns 0, or -1: ERR_DATA, or ERR_CONFIG
 * where one does not fit the first.
 */
int ensemble_open(struct served *served, const char *const *paths, int n, const char *weights,
                  struct err *err);

/* logits [vocab_size] become the log of the mean of their softmax and that of all others. */
void ensemble_average(float *logits, const float *const *others, int n_others, int vocab_size);

/* log((exp(logs[0]) + ... + exp(logs[n - 1])) / n); of one number that number, to the bit. */
double ensemble_log_mean(const double *logs, int n);

#endif
