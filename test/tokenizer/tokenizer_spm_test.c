/*
 * tokenizer_spm_test.c - a .model that is cut off or says what isn't supported is refused
 */
#include <math.h>

#include "data/fixture.h"

#include "tokenizer/tokenizer_impl.h"

static void expect_refused(const char *data, size_t n, const char *error)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    if (tokenizer_parse_spm(&tokenizer, "M", data, n, &err) == 0)
        fail_msg("taken, but should say '%s'", error);
    assert_null(tokenizer);
    assert_int_equal(err.code, ERR_DATA);
    if (!strstr(err.text, error))
        fail_msg("'%s' does not say '%s'", err.text, error);
}

/* A model of `pieces`, made of "text", type and score, and a trainer_spec. */
struct made {
    char bytes[4096];
    size_t n;
};

static void add_piece(struct made *made, const char *text, int type, float score)
{
    size_t n = strlen(text);
    char *at = made->bytes + made->n;

    *at++ = 0x0a;
    *at++ = (char)(2 + n + 5 + 2);
    *at++ = 0x0a;
    *at++ = (char)n;
    memcpy(at, text, n);
    at += n;
    *at++ = 0x15;
    memcpy(at, &score, 4);
    at += 4;
    *at++ = 0x18;
    *at++ = (char)type;
    made->n = (size_t)(at - made->bytes);
}

static void add_trainer(struct made *made, int model_type)
{
    const char bytes[] = { 0x12, 2, 0x18, (char)model_type };

    memcpy(made->bytes + made->n, bytes, sizeof bytes);
    made->n += sizeof bytes;
}

static void test_made(void **state)
{
    struct made made = { .n = 0 };

    (void)state;
    expect_refused("", 0, "it has 0 pieces");
    expect_refused("\x0a\x7f", 2, "the file is cut off or broken");
    expect_refused("\x0a\x02\x0a\x09", 4, "a piece is cut off or broken");
    expect_refused("\x0a\x02\x18\x01", 4, "piece 0 is empty");
    add_piece(&made, "a", 1, 0);
    expect_refused(made.bytes, made.n, "no piece is the unknown one");
    add_piece(&made, "?", 2, 0);
    size_t good = made.n;
    add_trainer(&made, 3);
    expect_refused(made.bytes, made.n, "model type 3 is not supported");
    made.n = good;
    add_piece(&made, "a", 1, 0);
    expect_refused(made.bytes, made.n, "piece 2 is there twice");
    made.n = good;
    add_piece(&made, "!", 2, 0);
    expect_refused(made.bytes, made.n, "pieces 1 and 2 are both unknown");
    made.n = good;
    add_piece(&made, "b", 7, 0);
    expect_refused(made.bytes, made.n, "no known type");
    made.n = good;
    add_piece(&made, "b", 1, NAN);
    expect_refused(made.bytes, made.n, "no finite score");
    made.n = good;
    add_piece(&made, "\xff", 1, 0);
    expect_refused(made.bytes, made.n, "no UTF-8");
    made.n = good;
    add_piece(&made, "b", 6, 0);
    expect_refused(made.bytes, made.n, "piece 2 is a byte, but byte_fallback is off");
    made.n = good;
    add_piece(&made, "b", 5, 0);
    add_trainer(&made, 2);
    expect_refused(made.bytes, made.n, "piece 2 is unused");
}

/* Every way to cut a real model off: most are refused, none does harm. */
static void test_cut(void **state)
{
    static const char *const models[] = { "bpe", "unigram" };
    struct err err = { 0 };

    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[64], *data;
        size_t n_bytes;

        snprintf(path, sizeof path, "test/tokenizer/golden/%s.model", models[i]);
        assert_int_equal(file_read(path, 1 << 20, ERR_DATA, &data, &n_bytes, &err), 0);
        for (size_t n = 0; n < n_bytes; n += 61) {
            struct tokenizer *tokenizer = NULL;
            char *cut = malloc(n + 1);

            assert_non_null(cut);
            memcpy(cut, data, n);
            if (tokenizer_parse_spm(&tokenizer, "M", cut, n, &err) == 0)
                tokenizer_close(tokenizer);
            free(cut);
        }
        free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made),
        cmocka_unit_test(test_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
