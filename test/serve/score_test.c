/*
 * score_test.c - continuations score what feeding them token by token says, whatever they share
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
#include "serve/decode.h"
#include "serve/ensemble.h"
#include "serve/score.h"
#include "support/trained.h"

#define VOCAB 64
#define LENGTH_MAX 60
#define N_TEXTS 40

static struct trained rig;
static struct served served;
static int32_t tokens[N_TEXTS][LENGTH_MAX];
static struct score scores[N_TEXTS];

static void open_model(const char *model, const char *const *overrides)
{
    struct err err;

    trained_open(&rig, model, overrides);
    trained_steps(&rig, 6);
    if (served_open(&served, trained_save(&rig, "step-00000006"), &err) < 0)
        fail_msg("%s", err.text);
}

static void close_model(void)
{
    served_close(&served);
    trained_close(&rig);
}

static int draw(uint64_t place, int n)
{
    return (int)(rng_at(17, RNG_TEST, 2, place).word[0] % (uint32_t)n);
}

/*
 * A tree of texts: each goes on from a part of an earlier one or begins anew; some are the same,
 * some the beginning of another, some differ in the last token alone.
 */
static void make_texts(void)
{
    for (int t = 0; t < N_TEXTS; t++) {
        uint64_t place = (uint64_t)t * 100;
        int from = t ? draw(place, t) : 0, shared = t ? draw(place + 1, scores[from].n + 1) : 0;
        int n = shared + draw(place + 2, 24);

        shared = t % 7 == 0 ? 0 : shared;
        n = n < 2 ? 2 : n > LENGTH_MAX ? LENGTH_MAX : n;
        if (t % 5 == 4) { /* another last token */
            n = scores[from].n;
            shared = n - 1;
        } else if (t % 11 == 10) { /* the same */
            n = shared = scores[from].n;
        }
        memcpy(tokens[t], tokens[from], sizeof *tokens[t] * (size_t)shared);
        for (int i = shared; i < n; i++)
            tokens[t][i] = draw(place + 3 + (uint64_t)i, VOCAB);
        scores[t] =
            (struct score){ .tokens = tokens[t], .n = n, .n_scored = 1 + draw(place + 99, n - 1) };
    }
}

/* One token after the other. */
static void expect_by_decoding(struct decoder *decoder, const struct score *text, double *sum,
                               int *is_greedy)
{
    struct err err;

    decoder_reset(decoder);
    *sum = 0;
    *is_greedy = 1;
    for (int i = 0; i + 1 < text->n; i++) {
        const int32_t *next = text->tokens + i;
        int one = 1;
        double top = -INFINITY, total = 0;

        if (decoder_feed(decoder, &next, &one, &err) < 0)
            fail_msg("%s", err.text);
        if (i + 1 < text->n - text->n_scored)
            continue;
        const float *logits = decoder_logits(decoder, 0);
        for (int v = 0; v < VOCAB; v++)
            top = fmax(top, (double)logits[v]);
        for (int v = 0; v < VOCAB; v++)
            total += exp((double)logits[v] - top);
        *sum += (double)logits[text->tokens[i + 1]] - top - log(total);
        *is_greedy &= (double)logits[text->tokens[i + 1]] == top;
    }
}

static void run_scorer(int n_rows, int64_t *n_fed)
{
    struct scorer_options options = { .max_positions = LENGTH_MAX, .n_rows = n_rows };
    struct scorer *scorer;
    struct err err;

    if (scorer_create(&scorer, &served, rig.kernels, &options, &err) < 0 ||
        scorer_run(scorer, scores, N_TEXTS, NULL, NULL, n_fed, &err) < 0)
        fail_msg("%s", err.text);
    scorer_destroy(scorer);
}

static void check_model(const char *model, const char *const *overrides, double tolerance)
{
    double first[N_TEXTS];
    int64_t n_fed, n_all = 0;
    struct decoder *decoder;
    struct err err;

    open_model(model, overrides);
    make_texts();
    assert_int_equal(decoder_create(&decoder, &served, rig.kernels, 1, LENGTH_MAX, &err), 0);
    run_scorer(512, &n_fed);
    for (int t = 0; t < N_TEXTS; t++) {
        double sum;
        int is_greedy;

        expect_by_decoding(decoder, &scores[t], &sum, &is_greedy);
        if (!(fabs(sum - scores[t].log_likelihood) < tolerance * (1 - sum)))
            fail_msg("%s, text %d: %.9g, by decoding %.9g", model, t, scores[t].log_likelihood,
                     sum);
        if (tolerance < 1e-3) /* bf16 has ties */
            assert_int_equal(scores[t].is_greedy, is_greedy);
        first[t] = scores[t].log_likelihood;
        n_all += scores[t].n - 1;
    }
    decoder_destroy(decoder);
    assert_in_range(n_fed, 1, n_all * 3 / 4); /* what is shared was computed once */
    static const int sizes[] = { 1, 7, 33 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_scorer(sizes[i], &n_fed);
        for (int t = 0; t < N_TEXTS; t++)
            assert_memory_equal(&scores[t].log_likelihood, &first[t], sizeof first[t]);
    }
    close_model();
}

static void against_decoding(void **state)
{
    static const char *const none[] = { NULL };
    static const char *const window[] = { "model.window=9", NULL };
    static const char *const alibi[] = { "model.position=alibi", NULL };
    static const char *const bf16[] = { "train.dtype=bf16", NULL };
    static const char *const lora[] = { "kind=lora", "lora.rank=4", NULL };

    (void)state;
    check_model("llama", lora, 2e-5);
    check_model("llama", none, 2e-5);
    check_model("gpt2", none, 2e-5);
    check_model("llama", window, 2e-5);
    check_model("llama", alibi, 2e-5);
    check_model("llama", bf16, 0.02);
}

/* Of one decoder, at each place of a text: the softmax of its logits. */
static void probabilities(struct decoder *decoder, const struct score *text, double *out)
{
    struct err err;

    decoder_reset(decoder);
    for (int i = 0; i + 1 < text->n; i++) {
        const int32_t *next = text->tokens + i;
        int one = 1;
        double total = 0;

        if (decoder_feed(decoder, &next, &one, &err) < 0)
            fail_msg("%s", err.text);
        const float *logits = decoder_logits(decoder, 0);
        for (int v = 0; v < VOCAB; v++)
            total += exp((double)logits[v]);
        for (int v = 0; v < VOCAB; v++)
            out[i * VOCAB + v] = exp((double)logits[v]) / total;
    }
}

/* Three models of one training: scores and decoded probabilities are those of their mean. */
static void an_ensemble_averages_probabilities(void **state)
{
    static const char *const none[] = { NULL };
    static double alone[3][LENGTH_MAX * VOCAB], together[LENGTH_MAX * VOCAB];
    static const char *const names[] = { "step-00000002", "step-00000004", "step-00000006" };
    const char *paths[3];
    struct decoder *decoder;
    struct err err;

    (void)state;
    trained_open(&rig, "llama", none);
    for (int i = 0; i < 3; i++) {
        trained_steps(&rig, 2);
        paths[i] = trained_save(&rig, names[i]);
    }
    assert_int_equal(served_open(&served, paths[0], &err), 0);
    make_texts();
    for (int i = 0; i < 3; i++) {
        struct served one;

        assert_int_equal(served_open(&one, paths[i], &err), 0);
        assert_int_equal(decoder_create(&decoder, &one, rig.kernels, 1, LENGTH_MAX, &err), 0);
        probabilities(decoder, &scores[3], alone[i]);
        decoder_destroy(decoder);
        served_close(&one);
    }
    assert_int_equal(ensemble_open(&served, paths + 1, 2, "trained", &err), 0);
    assert_int_equal(decoder_create(&decoder, &served, rig.kernels, 1, LENGTH_MAX, &err), 0);
    probabilities(decoder, &scores[3], together);
    for (int i = 0; i < (scores[3].n - 1) * VOCAB; i++) {
        double mean = (alone[0][i] + alone[1][i] + alone[2][i]) / 3;

        assert_true(fabs(together[i] - mean) < 1e-6);
    }
    run_scorer(33, NULL);
    for (int t = 0; t < N_TEXTS; t++) {
        double sum;
        int is_greedy;

        expect_by_decoding(decoder, &scores[t], &sum, &is_greedy);
        if (!(fabs(sum - scores[t].log_likelihood) < 2e-5 * (1 - sum)))
            fail_msg("text %d: %.9g, by decoding %.9g", t, scores[t].log_likelihood, sum);
    }
    decoder_destroy(decoder);
    close_model();
}

/* A model that does not fit the first. */
static void an_ensemble_has_one_vocabulary(void **state)
{
    static const char *const none[] = { NULL };
    struct err err;

    (void)state;
    open_model("llama", none);
    const char *path = trained_save(&rig, "step-00000006");
    served.job.model.vocab_size++;
    assert_int_equal(ensemble_open(&served, &path, 1, "trained", &err), -1);
    assert_non_null(strstr(err.text, "an ensemble needs one vocabulary"));
    close_model();
}

static void refused(void **state)
{
    static const char *const none[] = { NULL };
    struct scorer_options options = { .max_positions = 8 };
    struct scorer *scorer;
    struct err err;

    (void)state;
    open_model("llama", none);
    make_texts();
    assert_int_equal(scorer_create(&scorer, &served, rig.kernels, &options, &err), 0);
    scores[0].n = 10;
    scores[0].n_scored = 1;
    assert_int_equal(scorer_run(scorer, scores, 1, NULL, NULL, NULL, &err), -1);
    assert_string_equal(err.text, "a text of 10 tokens, more than the 9 allowed");
    scores[0].n = 9;
    tokens[0][8] = VOCAB;
    assert_int_equal(scorer_run(scorer, scores, 1, NULL, NULL, NULL, &err), -1);
    assert_string_equal(err.text, "token 64, but the model's vocabulary has 64");
    scorer_destroy(scorer);
    close_model();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_decoding),
        cmocka_unit_test(an_ensemble_averages_probabilities),
        cmocka_unit_test(an_ensemble_has_one_vocabulary),
        cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
