/*
 * decode_test.c - however a text is fed, alone or beside others, its logits are the same
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

#include "base/num.h"
#include "base/rng.h"
#include "serve/decode.h"
#include "support/trained.h"

#define VOCAB 64
#define LENGTH 150 /* more than one piece of the prefill */
#define CACHE 160
#define TOLERANCE 1e-5

static int32_t text[LENGTH];

/* A model that has learned a little, so that its logits differ. */
static void open_served(struct trained *rig, struct served *served, const char *model,
                        const char *const *overrides)
{
    struct err err;

    trained_open(rig, model, overrides);
    trained_steps(rig, 6);
    if (served_open(served, trained_save(rig, "step-00000006"), &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < LENGTH; i++)
        text[i] = (int32_t)(rng_at(11, RNG_TEST, 1, (uint64_t)i).word[0] % VOCAB);
}

static void close_served(struct trained *rig, struct served *served)
{
    served_close(served);
    trained_close(rig);
}

static struct decoder *make(struct trained *rig, struct served *served, int n_sequences)
{
    struct decoder *decoder;
    struct err err;

    if (decoder_create(&decoder, served, rig->kernels, n_sequences, CACHE, &err) < 0)
        fail_msg("%s", err.text);
    return decoder;
}

static void feed(struct decoder *decoder, const int32_t *const *tokens, const int *counts)
{
    struct err err;

    if (decoder_feed(decoder, tokens, counts, &err) < 0)
        fail_msg("%s", err.text);
}

static void feed_one(struct decoder *decoder, int begin, int n)
{
    const int32_t *tokens = text + begin;

    feed(decoder, &tokens, &n);
}

static void logits_are(const struct decoder *decoder, int sequence, const float *wanted,
                       const char *how)
{
    const float *got = decoder_logits(decoder, sequence);
    double worst = 0, largest = 0;

    for (int i = 0; i < VOCAB; i++) {
        worst = fmax(worst, fabs((double)got[i] - (double)wanted[i]));
        largest = fmax(largest, fabs((double)wanted[i]));
    }
    assert_true(largest > 0.01);
    if (!(worst <= TOLERANCE * largest))
        fail_msg("%s: logits differ by %g of %g", how, worst, largest);
}

static void pieces(const char *model)
{
    struct trained rig;
    struct served served;
    float whole[VOCAB];

    open_served(&rig, &served, model, NULL);
    struct decoder *decoder = make(&rig, &served, 1);
    feed_one(decoder, 0, LENGTH);
    assert_int_equal(decoder_length(decoder, 0), LENGTH);
    memcpy(whole, decoder_logits(decoder, 0), sizeof whole);

    decoder_reset(decoder);
    assert_int_equal(decoder_length(decoder, 0), 0);
    for (int i = 0; i < LENGTH; i++)
        feed_one(decoder, i, 1);
    logits_are(decoder, 0, whole, "token by token");

    static const int lengths[] = { 1, 7, 30, 1, 111 };
    int begin = 0;
    decoder_reset(decoder);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; begin += lengths[i++])
        feed_one(decoder, begin, lengths[i]);
    assert_int_equal(begin, LENGTH);
    logits_are(decoder, 0, whole, "in pieces");

    decoder_reset(decoder);
    feed_one(decoder, 0, LENGTH);
    assert_memory_equal(decoder_logits(decoder, 0), whole, sizeof whole);
    decoder_destroy(decoder);
    close_served(&rig, &served);
}

static void pieces_of_llama(void **state)
{
    (void)state;
    pieces("llama");
}

static void pieces_of_gpt2(void **state)
{
    (void)state;
    pieces("gpt2");
}

/* Sequences of unequal length side by side, one of which pauses and one of which ends early. */
static void side_by_side(void **state)
{
    static const int lengths[4] = { 3, 140, 1, 64 }, more[4] = { 2, 0, 5, 1 };
    const int32_t *tokens[4];
    float alone[4][VOCAB];
    struct trained rig;
    struct served served;

    (void)state;
    open_served(&rig, &served, "llama", NULL);
    struct decoder *one = make(&rig, &served, 1), *four = make(&rig, &served, 4);
    for (int s = 0; s < 4; s++) {
        tokens[s] = text + s;
        decoder_reset(one);
        feed_one(one, s, lengths[s]);
        memcpy(alone[s], decoder_logits(one, 0), sizeof alone[s]);
    }
    feed(four, tokens, lengths);
    for (int s = 0; s < 4; s++)
        logits_are(four, s, alone[s], "side by side");
    for (int s = 0; s < 4; s++)
        tokens[s] = text + s + lengths[s];
    feed(four, tokens, more);
    for (int s = 0; s < 4; s++) {
        assert_int_equal(decoder_length(four, s), lengths[s] + more[s]);
        decoder_reset(one);
        feed_one(one, s, lengths[s]);
        if (more[s])
            feed_one(one, s + lengths[s], more[s]);
        logits_are(four, s, decoder_logits(one, 0), "and going on");
    }
    decoder_destroy(one);
    decoder_destroy(four);
    close_served(&rig, &served);
}

static void bf16_is_close(void **state)
{
    static const char *const bf16[] = { "train.dtype=bf16", NULL };
    struct trained rig;
    struct served served;
    float whole[VOCAB];
    double worst = 0, largest = 0;

    (void)state;
    open_served(&rig, &served, "llama", bf16);
    struct decoder *decoder = make(&rig, &served, 1);
    feed_one(decoder, 0, 40);
    memcpy(whole, decoder_logits(decoder, 0), sizeof whole);
    decoder_reset(decoder);
    for (int i = 0; i < 40; i++)
        feed_one(decoder, i, 1);
    for (int i = 0; i < VOCAB; i++) {
        worst = fmax(worst, fabs((double)whole[i] - (double)decoder_logits(decoder, 0)[i]));
        largest = fmax(largest, fabs((double)whole[i]));
    }
    /* A few roundings to 8 bits apart. */
    assert_true(worst <= 0.05 * largest);
    decoder_destroy(decoder);
    close_served(&rig, &served);
}

static void no_room(void **state)
{
    const int32_t *tokens = text;
    struct trained rig;
    struct served served;
    struct err err;
    int n = LENGTH;

    (void)state;
    open_served(&rig, &served, "llama", NULL);
    struct decoder *decoder = make(&rig, &served, 1);
    assert_true(decoder_bytes(decoder) > (size_t)CACHE * 2 * 24 * 2 * sizeof(float));
    feed_one(decoder, 0, LENGTH);
    assert_int_equal(decoder_feed(decoder, &tokens, &n, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "300 tokens, more than the 160 allowed"));
    assert_int_equal(decoder_length(decoder, 0), LENGTH);
    n = CACHE - LENGTH;
    feed(decoder, &tokens, &n);
    decoder_destroy(decoder);
    close_served(&rig, &served);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_llama), cmocka_unit_test(pieces_of_gpt2),
        cmocka_unit_test(side_by_side),    cmocka_unit_test(bf16_is_close),
        cmocka_unit_test(no_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
