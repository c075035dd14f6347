/*
 * ensemble.c - models whose token probabilities are averaged: opened together, and the average
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "serve/ensemble.h"
#include "tokenizer/tokenizer.h"

/* Whether a text's tokens, and positions, are the same to both. */
static int check_member(const struct served *first, const struct served *member, struct err *err)
{
    const struct model_spec *ours = &first->job.model, *theirs = &member->job.model;

    if (ours->vocab_size != theirs->vocab_size)
        return err_set(err, ERR_CONFIG,
                       "an ensemble needs one vocabulary: %s has %d tokens, %s has %d",
                       member->folder, theirs->vocab_size, first->folder, ours->vocab_size);
    if (*first->tokenizer_hash && *member->tokenizer_hash &&
        tokenizer_hash_compare(first->tokenizer_hash, member->tokenizer_hash) == TOKENIZER_OTHER)
        return err_set(err, ERR_CONFIG,
                       "an ensemble needs one tokenizer: that of %s is not that of %s",
                       member->folder, first->folder);
    if (theirs->max_seq_len < ours->max_seq_len)
        return err_set(err, ERR_CONFIG,
                       "%s has %d positions, fewer than the %d of %s (hint: name it first)",
                       member->folder, theirs->max_seq_len, ours->max_seq_len, first->folder);
    return 0;
}

int ensemble_open(struct served *served, const char *const *paths, int n, const char *weights,
                  struct err *err)
{
    struct served *members = calloc((size_t)n, sizeof *members);
    int n_open = 0, status = 0;

    if (!members)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (; n_open < n && !status; n_open += !status) {
        status = served_open_adapted(&members[n_open], paths[n_open], NULL, weights, err);
        if (!status && check_member(served, &members[n_open], err) < 0) {
            served_close(&members[n_open]);
            status = -1;
        }
    }
    served->members = members;
    served->n_members = n_open;
    return status;
}

/* The log of the sum of exp over n numbers, which are not all -INFINITY. */
static double log_sum(const float *logits, int n)
{
    double most = (double)logits[0], sum = 0;

    for (int i = 1; i < n; i++)
        most = fmax(most, (double)logits[i]);
    for (int i = 0; i < n; i++)
        sum += exp((double)logits[i] - most);
    return most + log(sum);
}

void ensemble_average(float *logits, const float *const *others, int n_others, int vocab_size)
{
    double *sums = malloc((size_t)(n_others + 1) * sizeof *sums);

    CHECK(sums);
    sums[0] = log_sum(logits, vocab_size);
    for (int m = 0; m < n_others; m++)
        sums[m + 1] = log_sum(others[m], vocab_size);
    for (int i = 0; i < vocab_size; i++) {
        double sum = exp((double)logits[i] - sums[0]);

        for (int m = 0; m < n_others; m++)
            sum += exp((double)others[m][i] - sums[m + 1]);
        logits[i] = (float)log(sum / (n_others + 1));
    }
    free(sums);
}

double ensemble_log_mean(const double *logs, int n)
{
    double most = logs[0], sum = 0;

    for (int i = 1; i < n; i++)
        most = fmax(most, logs[i]);
    for (int i = 0; i < n; i++)
        sum += exp(logs[i] - most);
    return n == 1 ? logs[0] : most + log(sum / n);
}
