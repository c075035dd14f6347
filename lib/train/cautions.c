/*
 * cautions.c - what is allowed and most likely meant otherwise
 */
#include "train/cautions.h"

#include <math.h>
#include <stdio.h>

#include "base/log.h"

/* All but SGD move each parameter by about lr a step; models have weights of about 0.02. */
#define LR_LARGE 0.1

/* Nats. Logits that are all alike give ln of the vocabulary to several digits. */
#define FLAT_BAND 0.01
#define FLAT_LOGGED 10

void cautions_of_job(const struct job *job)
{
    const struct model_spec *s = &job->model;

    job_log_warnings(job);
    if (job->optimizer.lr > LR_LARGE && job->optimizer.name != RULE_SGD)
        log_warn("optimizer.lr is %g: with %s each step changes a parameter by about that much "
                 "(hint: rates from 1e-5 to 1e-2 are usual)",
                 job->optimizer.lr, choice_word(optimizer_choices, (int)job->optimizer.name));
    if (job->data.seq_len > s->max_seq_len)
        log_warn("data.seq_len is %d, longer than model.max_seq_len %d: eval and generate are "
                 "limited to that length (hint: model.max_seq_len: %d, or a smaller data.seq_len)",
                 job->data.seq_len, s->max_seq_len, job->data.seq_len);
}

int flat_loss_note(struct flat_loss *flat, const struct job *job, int64_t step, double loss,
                   char *text, size_t size)
{
    double untrained = log((double)job->model.vocab_size);
    int is_flat = fabs(loss - untrained) <= FLAT_BAND;

    flat->n_logged = is_flat && step > job->optimizer.warmup_steps ? flat->n_logged + 1 : 0;
    if (flat->is_reported || flat->n_logged < FLAT_LOGGED)
        return 0;
    flat->is_reported = 1;
    snprintf(text, size,
             "for %d logged steps the loss is %.3f, which is ln of the vocabulary size %d: the "
             "model predicts a uniform distribution (hint: optimizer.lr %g is too large if the "
             "loss was different before, else too small)",
             FLAT_LOGGED, loss, job->model.vocab_size, job->optimizer.lr);
    return 1;
}
