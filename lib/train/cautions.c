/*
 * cautions.c - what is allowed and most likely meant otherwise
 */
#include "train/cautions.h"

#include <math.h>
#include <stdio.h>

#include "base/log.h"

/* All but SGD move each parameter by about lr a step; models have weights of about 0.02. */
#define LR_LARGE 0.1

/* Nats around ln of the vocabulary. Logits that are all alike give it to several digits, those of
 * random weights some more, by half their variance; micro-batches add noise. */
#define FLAT_BELOW 0.05
#define FLAT_ABOVE 0.25
#define FLAT_STEPS 50

/* Of means of losses. In nats, too: a loss near 0 triples easily. */
#define RISE_FACTOR 3.0
#define RISE_NATS 0.5

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

/* The mean of the last losses, once there are enough. */
static double recent_mean(const struct learning *l)
{
    double sum = 0;

    for (int i = 0; i < N_LEARNING_LOSSES; i++)
        sum += l->recent[i];
    return sum / N_LEARNING_LOSSES;
}

static bool is_flat(struct learning *l, const struct job *job, int64_t step, double loss)
{
    double untrained = log((double)job->model.vocab_size);
    bool is_near = loss >= untrained - FLAT_BELOW && loss <= untrained + FLAT_ABOVE &&
                   step > job->optimizer.warmup_steps;

    l->n_flat = is_near ? l->n_flat + 1 : 0;
    return l->n_flat == FLAT_STEPS;
}

static bool is_rising(struct learning *l)
{
    if (l->n < N_LEARNING_LOSSES)
        return false;
    double mean = recent_mean(l);

    l->lowest = l->n == N_LEARNING_LOSSES ? mean : fmin(l->lowest, mean);
    return mean > RISE_FACTOR * l->lowest && mean > l->lowest + RISE_NATS;
}

const char *learning_note(struct learning *l, const struct job *job, int64_t step, double loss,
                          char *text, size_t size)
{
    if (isfinite(loss))
        l->recent[l->n++ % N_LEARNING_LOSSES] = loss;
    if (is_flat(l, job, step, loss) && !l->is_flat_told) {
        l->is_flat_told = true;
        snprintf(text, size,
                 "for %d steps the loss is %.3f, about ln of the vocabulary size %d, %.3f: the "
                 "model predicts a uniform distribution (hint: optimizer.lr %g is too large if the "
                 "loss was different before, else too small)",
                 FLAT_STEPS, loss, job->model.vocab_size, log((double)job->model.vocab_size),
                 job->optimizer.lr);
        return "flat loss";
    }
    if (!isfinite(loss) || !is_rising(l) || l->is_rise_told)
        return NULL;
    l->is_rise_told = true;
    snprintf(text, size,
             "the mean loss of %d steps is %.3f, it was %.3f: the run diverges (hint: a lower "
             "optimizer.lr than %g, more optimizer.warmup_steps, or train.on_spike: rewind)",
             N_LEARNING_LOSSES, recent_mean(l), l->lowest, job->optimizer.lr);
    return "rising loss";
}
