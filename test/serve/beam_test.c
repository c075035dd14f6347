/*
 * beam_test.c - the search finds the likeliest of all texts, and drawn beams follow the
 * distribution
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "serve/beam.h"

#define VOCAB 5
#define END 4
#define LENGTH 4

/* Logits after a text: some number for each beginning. */
static void logits_after(const int32_t *tokens, int n, float *out)
{
    uint64_t name = 1;

    for (int i = 0; i < n; i++)
        name = name * VOCAB + (uint64_t)tokens[i] + 1;
    for (uint64_t i = 0; i < VOCAB; i++)
        out[i] = 2 * rng_normal(rng_at(3, RNG_TEST, name, i).word[0],
                                rng_at(3, RNG_TEST, name, i).word[1]);
}

static double log_probability(const float *logits, int32_t token)
{
    double sum = 0;

    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i]);
    return (double)logits[token] - log(sum);
}

static struct beam_options options_of(int n_beams)
{
    static const int32_t ends[] = { END };

    return (struct beam_options){ .n_beams = n_beams,
                                  .vocab_size = VOCAB,
                                  .max_new_tokens = LENGTH,
                                  .length_penalty = 1,
                                  .repetition_penalty = 1,
                                  .early_stopping = EARLY_STOPPING_NEVER,
                                  .sampler = { .top_p = 1 },
                                  .ends = ends,
                                  .n_ends = 1 };
}

/* The whole search; returns its length. */
static int search(const struct beam_options *options, int32_t *best, double *score)
{
    int32_t texts[64][LENGTH + 1] = { { 0 } }, moved[64][LENGTH + 1], next[64];
    float logits[64][VOCAB];
    const float *pointers[64];
    struct beam_search *s;
    struct err err;
    int from[64], n = 0, n_best;

    assert_int_equal(beam_create(&s, options, NULL, 0, &err), 0);
    do {
        for (int b = 0; b < options->n_beams; b++) {
            logits_after(texts[b], n, logits[b]);
            pointers[b] = logits[b];
        }
        if (!beam_step(s, pointers, NULL, NULL, from, next))
            break;
        for (int b = 0; b < options->n_beams; b++) {
            memcpy(moved[b], texts[from[b]], sizeof moved[b]);
            moved[b][n] = next[b];
        }
        memcpy(texts, moved, sizeof texts);
        n++;
        assert_true(n < LENGTH);
    } while (1);
    const int32_t *found = beam_best(s, &n_best, score);
    memcpy(best, found, sizeof *best * (size_t)n_best);
    beam_destroy(s);
    return n_best;
}

/* Score of the best of all texts, by going through them: each is a number in base VOCAB. */
static double best_of_all(double length_penalty)
{
    double best = -INFINITY;

    for (int i = 0; i < VOCAB * VOCAB * VOCAB * VOCAB; i++) {
        int32_t tokens[LENGTH];
        double sum = 0;
        int n = 0, rest = i;

        for (; n < LENGTH; rest /= VOCAB) {
            float logits[VOCAB];

            logits_after(tokens, n, logits);
            tokens[n] = rest % VOCAB;
            sum += log_probability(logits, tokens[n]);
            if (tokens[n++] == END)
                break;
        }
        best = fmax(best, sum / pow(n, length_penalty));
    }
    return best;
}

static void enough_beams_find_the_best(void **state)
{
    static const double penalties[] = { 1, 0, 2, -1 };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct beam_options options = options_of(64);
        int32_t best[LENGTH];
        double score, sum = 0;

        options.length_penalty = penalties[i];
        int n = search(&options, best, &score);
        assert_true(fabs(score - best_of_all(penalties[i])) < 1e-5);
        for (int k = 0; k < n; k++) {
            float logits[VOCAB];

            logits_after(best, k, logits);
            sum += log_probability(logits, best[k]);
        }
        assert_true(fabs(score - sum / pow(n, penalties[i])) < 1e-5);
    }
}

static void one_beam_is_greedy(void **state)
{
    struct beam_options options = options_of(1);
    int32_t best[LENGTH], greedy[LENGTH];
    double score;
    int n = 0;

    (void)state;
    options.early_stopping = EARLY_STOPPING_YES;
    while (n < LENGTH && (n == 0 || greedy[n - 1] != END)) {
        float logits[VOCAB];

        logits_after(greedy, n, logits);
        greedy[n] = 0;
        for (int32_t i = 1; i < VOCAB; i++)
            if (logits[i] > logits[greedy[n]])
                greedy[n] = i;
        n++;
    }
    assert_int_equal(search(&options, best, &score), n);
    assert_memory_equal(best, greedy, sizeof *best * (size_t)n);
}

/* The greatest of logits and Gumbel numbers is drawn from the softmax: by chi-square, and the
 * second from what is left. */
static void lots_without_putting_back(void **state)
{
    static const double p[4] = { 0.5, 0.25, 0.15, 0.1 };
    enum { N_DRAWS = 40000 };
    struct sampling sampler = { .temperature = 1, .top_p = 1, .seed = 7 };
    int64_t counts[4][4] = { { 0 } };
    double sum = 0;

    (void)state;
    for (int i = 0; i < N_DRAWS; i++) {
        double keys[4];
        int first = 0, second = -1;

        for (int k = 0; k < 4; k++)
            keys[k] = log(p[k]) + sample_gumbel(&sampler, (uint64_t)i % 3, i / 3, (uint64_t)k);
        for (int k = 1; k < 4; k++)
            first = keys[k] > keys[first] ? k : first;
        for (int k = 0; k < 4; k++)
            if (k != first && (second < 0 || keys[k] > keys[second]))
                second = k;
        counts[first][second]++;
    }
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            double expected = a == b ? 0 : N_DRAWS * p[a] * p[b] / (1 - p[a]);

            if (a == b)
                assert_int_equal(counts[a][b], 0);
            else
                sum += ((double)counts[a][b] - expected) * ((double)counts[a][b] - expected) /
                       expected;
        }
    assert_true(sum < 48.7); /* 11 degrees: once in a million */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(enough_beams_find_the_best),
        cmocka_unit_test(one_beam_is_greedy),
        cmocka_unit_test(lots_without_putting_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
