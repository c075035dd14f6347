/*
 * beam.c - beam search
 */
#include "serve/beam.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"

#define NEVER (-1e9) /* a score that nothing gets near */

struct beam {
    double score;
    int n;
    bool is_finished;
    int32_t *tokens; /* [max_new_tokens] */
};

struct candidate {
    double score, key; /* key: what they are chosen by */
    int beam, stops;
    int32_t token;
};

struct beam_search {
    struct beam_options o;
    const int32_t *prompt;
    int n_prompt, length; /* new tokens of each running beam */
    int n_candidates;     /* looked at in each step */
    bool may_improve;
    struct beam *running, *finished, *next; /* [n_beams]; next: [n_candidates] */
    struct candidate *candidates;
    float *scores; /* [vocab_size] */
    int32_t *order, *seen;
    int32_t *memory; /* of all tokens */
};

static struct beam *make_beams(int n, int length, int32_t **memory, double score)
{
    struct beam *beams = calloc((size_t)n, sizeof *beams);

    for (int i = 0; beams && i < n; i++) {
        beams[i] = (struct beam){ .score = score, .tokens = *memory };
        *memory += length;
    }
    return beams;
}

int beam_create(struct beam_search **out, const struct beam_options *options, const int32_t *prompt,
                int n_prompt, struct err *err)
{
    struct beam_search *s = calloc(1, sizeof *s);
    int n = options->n_beams, length = options->max_new_tokens;

    if (!s)
        return err_set(err, ERR_DEVICE, "out of host memory");
    s->o = *options;
    s->prompt = prompt;
    s->n_prompt = n_prompt;
    s->n_candidates = max_int(2, 1 + options->n_ends) * n;
    s->may_improve = true;
    s->memory = calloc((size_t)(2 * n + s->n_candidates), sizeof *s->memory * (size_t)length);
    s->candidates = calloc((size_t)s->n_candidates + 1, sizeof *s->candidates);
    s->scores = calloc((size_t)options->vocab_size, sizeof *s->scores);
    s->order = calloc((size_t)options->vocab_size, sizeof *s->order);
    s->seen = calloc((size_t)(n_prompt + length), sizeof *s->seen);
    int32_t *memory = s->memory;
    if (memory) {
        s->running = make_beams(n, length, &memory, NEVER);
        s->finished = make_beams(n, length, &memory, NEVER);
        s->next = make_beams(s->n_candidates, length, &memory, NEVER);
    }
    if (!s->memory || !s->candidates || !s->scores || !s->order || !s->seen || !s->running ||
        !s->finished || !s->next) {
        beam_destroy(s);
        return err_set(err, ERR_DEVICE, "out of host memory");
    }
    /* At first all are the same: only one counts. */
    s->running[0].score = 0;
    *out = s;
    return 0;
}

void beam_destroy(struct beam_search *s)
{
    if (!s)
        return;
    free(s->running);
    free(s->finished);
    free(s->next);
    free(s->candidates);
    free(s->scores);
    free(s->order);
    free(s->seen);
    free(s->memory);
    free(s);
}

static double log_sum(const float *logits, int n)
{
    double top = -INFINITY, sum = 0;

    for (int i = 0; i < n; i++)
        top = fmax(top, (double)logits[i]);
    for (int i = 0; i < n; i++)
        sum += exp((double)logits[i] - top);
    return top + log(sum);
}

/* The list holds the best so far, the best first; equal ones stay in the order they came in. */
static int insert(struct candidate *list, int n, int capacity, const struct candidate *c)
{
    int at = n;

    while (at > 0 && list[at - 1].key < c->key)
        at--;
    if (at >= capacity)
        return n;
    memmove(&list[at + 1], &list[at], sizeof *list * (size_t)(min_int(n, capacity - 1) - at));
    list[at] = *c;
    return min_int(n + 1, capacity);
}

/* Log-probabilities of what may follow a beam: penalised and scaled as transformers does it. */
static int warp(struct beam_search *s, int beam, const float *logits, double *scale)
{
    int vocab = s->o.vocab_size, n = s->length;
    double sum = log_sum(logits, vocab), total, highest;

    for (int i = 0; i < vocab; i++)
        s->scores[i] = (float)((double)logits[i] - sum);
    if (s->o.repetition_penalty != 1) {
        memcpy(s->seen, s->prompt, sizeof *s->seen * (size_t)s->n_prompt);
        memcpy(s->seen + s->n_prompt, s->running[beam].tokens, sizeof *s->seen * (size_t)n);
        sample_penalize(s->scores, vocab, s->o.repetition_penalty, s->seen, s->n_prompt + n,
                        s->order);
    }
    *scale = s->o.sampler.temperature > 0 ? 1 / s->o.sampler.temperature : 1;
    if (s->o.sampler.temperature > 0)
        return sample_kept(&s->o.sampler, s->scores, vocab, s->order, &total, &highest);
    for (int32_t i = 0; i < vocab; i++)
        s->order[i] = i;
    return vocab;
}

static int look(struct beam_search *s, const float *const *logits)
{
    int n = 0;

    for (int b = 0; b < s->o.n_beams; b++) {
        double scale;
        int n_kept = s->running[b].score > NEVER / 2 ? warp(s, b, logits[b], &scale) : 0;

        for (int i = 0; i < n_kept; i++) {
            int32_t token = s->order[i];
            struct candidate c = { .beam = b, .token = token };

            c.score = s->running[b].score + (double)s->scores[token] * scale;
            c.key = c.score;
            if (s->o.sampler.temperature > 0)
                c.key += sample_gumbel(&s->o.sampler, s->o.sequence, s->length,
                                       (uint64_t)b * (uint64_t)s->o.vocab_size + (uint64_t)token);
            n = insert(s->candidates, n, s->n_candidates, &c);
        }
    }
    return n;
}

static bool is_end(const struct beam_search *s, int32_t token)
{
    for (int i = 0; i < s->o.n_ends; i++)
        if (s->o.ends[i] == token)
            return true;
    return false;
}

static void copy_beam(struct beam *to, const struct beam *from)
{
    to->score = from->score;
    to->n = from->n;
    to->is_finished = from->is_finished;
    memcpy(to->tokens, from->tokens, sizeof *to->tokens * (size_t)from->n);
}

/* Among the finished, sorted by score; the worst goes. */
static void keep_finished(struct beam_search *s, const struct beam *beam, double score)
{
    int n = s->o.n_beams, at = n;

    while (at > 0 && s->finished[at - 1].score < score)
        at--;
    if (at == n)
        return;
    struct beam last = s->finished[n - 1];
    memmove(&s->finished[at + 1], &s->finished[at], sizeof *s->finished * (size_t)(n - 1 - at));
    s->finished[at] = last;
    copy_beam(&s->finished[at], beam);
    s->finished[at].score = score;
    s->finished[at].is_finished = true;
}

static int all_finished(const struct beam_search *s)
{
    return s->finished[s->o.n_beams - 1].is_finished;
}

/* Whether the best that runs may still get better than the worst that is finished. */
static int could_improve(const struct beam_search *s)
{
    bool by_any_length = s->o.early_stopping == EARLY_STOPPING_NEVER && s->o.length_penalty > 0;
    double length = by_any_length ? s->o.max_new_tokens : s->length;
    double best = s->running[0].score / pow(length, s->o.length_penalty), worst = NEVER;

    if (all_finished(s))
        worst = s->finished[s->o.n_beams - 1].score;
    return best > worst;
}

static int by_score(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return x->score > y->score ? -1 : x->score < y->score ? 1 : 0;
}

int beam_step(struct beam_search *s, const float *const *logits, beam_stop_fn stop, void *context,
              int *from, int32_t *next)
{
    int n = look(s, logits), n_running = 0, n_beams = s->o.n_beams;
    int full = all_finished(s) && s->o.early_stopping == EARLY_STOPPING_YES;
    double divisor = pow(s->length + 1, s->o.length_penalty);

    for (int i = 0; i < n; i++) {
        struct candidate *c = &s->candidates[i];
        struct beam *beam = &s->next[i];

        copy_beam(beam, &s->running[c->beam]);
        beam->tokens[beam->n++] = c->token;
        beam->score = c->score;
        c->stops = is_end(s, c->token) || beam->n == s->o.max_new_tokens ||
                   (stop && stop(context, beam->tokens, beam->n));
        /* Of those that end only the n_beams best count. */
        if (c->stops && i < n_beams && !full && s->may_improve)
            keep_finished(s, beam, c->score / divisor);
        c->key = i;
    }
    if (s->o.sampler.temperature > 0)
        qsort(s->candidates, (size_t)n, sizeof *s->candidates, by_score);
    for (int i = 0; i < n && n_running < n_beams; i++) {
        const struct candidate *c = &s->candidates[i];

        if (c->stops)
            continue;
        from[n_running] = c->beam;
        next[n_running] = c->token;
        copy_beam(&s->running[n_running++], &s->next[(int)c->key]);
    }
    s->length++;
    int goes_on = n_running > 0;
    for (int i = n_running; i < n_beams; i++) {
        s->running[i].score = NEVER;
        s->running[i].n = s->length;
        from[i] = 0;
        next[i] = next[0];
    }
    s->may_improve = s->may_improve && could_improve(s);
    full = all_finished(s) && s->o.early_stopping == EARLY_STOPPING_YES;
    return goes_on && s->may_improve && !full;
}

const int32_t *beam_best(const struct beam_search *s, int *n, double *score)
{
    const struct beam *best = s->finished[0].is_finished ? &s->finished[0] : &s->running[0];

    *n = best->n;
    *score = best->score;
    return best->tokens;
}
