/*
 * token_finder_test.c - the token of every byte of a text, by what the ids before it decode to
 */
#include "data/data_fixture.h"

#include "tokenizer/tokenizer.h"

#define GOLDEN "test/tokenizer/golden/"

struct found {
    struct tokenizer *tokenizer;
    struct token_list ids;
    struct token_sections sections;
    struct token_finder finder;
};

static void open_found(struct found *f, const char *path, const char *text)
{
    struct err err = { 0 };

    *f = (struct found){ 0 };
    if (tokenizer_open(&f->tokenizer, path, &err) < 0 ||
        tokenizer_encode_sections(f->tokenizer, NULL, text, strlen(text), &f->ids, &f->sections,
                                  &err) < 0)
        fail_msg("%s: %s", path, err.text);
    token_finder_init(&f->finder, f->tokenizer, &f->sections, text, f->ids.ids);
}

static void close_found(struct found *f)
{
    token_finder_release(&f->finder);
    token_sections_release(&f->sections);
    token_list_release(&f->ids);
    tokenizer_close(f->tokenizer);
}

/* The first id behind whose text more than `at` bytes are; n_front of them are no bytes of the
 * text. */
static int64_t expected_token(const struct found *f, size_t at, size_t n_front)
{
    struct str text = { 0 };
    int64_t i = 0;

    for (; i < f->ids.n && text.length <= at + n_front; i++)
        tokenizer_decode(f->tokenizer, &f->ids.ids[i], 1, &text);
    str_release(&text);
    return i - 1;
}

static void check_text(const char *path, const char *text, size_t n_front)
{
    struct found f;

    open_found(&f, path, text);
    for (size_t at = 0; text[at]; at++) {
        int64_t expected = at == 0 ? 0 : expected_token(&f, at, n_front);

        assert_int_equal(token_finder_find(&f.finder, at), expected);
    }
    for (size_t at = strlen(text); at-- > 1;)
        assert_int_equal(token_finder_find(&f.finder, at), expected_token(&f, at, n_front));
    assert_int_equal(token_finder_find(&f.finder, strlen(text)), f.ids.n);
    close_found(&f);
}

static void test_every_byte(void **state)
{
    static const char plain[] = "And the evening and the morning, 1611:  two  spaces\n\n\n'tis "
                                "\xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80\xf0\x9f\x94\xa5!";

    (void)state;
    check_text("data/kjv-tokenizer", plain, 0);
    check_text("data/kjv-tokenizer", "A<|endoftext|>B <|endoftext|> c", 0);
    check_text(GOLDEN "qwen.json", plain, 0);
    check_text(GOLDEN "deepseek.json", plain, 0);
    check_text(GOLDEN "llama.json", plain, 1);
    check_text(GOLDEN "bpe.model", "And the evening and the morning, 1611: \xe4\xb8\xad.", 1);
}

/* The index of the token in which the part of text begins. */
static int64_t find_part(struct found *f, const char *text, const char *part)
{
    const char *at = strstr(text, part);

    assert_non_null(at);
    return token_finder_find(&f->finder, (size_t)(at - text));
}

static void token_is(const struct found *f, int64_t i, const char *expected)
{
    struct str shown = { 0 };

    assert_in_range(i, 0, f->ids.n - 1);
    tokenizer_decode(f->tokenizer, &f->ids.ids[i], 1, &shown);
    assert_string_equal(str_text(&shown), expected);
    str_release(&shown);
}

/* NFC makes one character of two, so that the text's places are not the words'. */
static void test_normalized(void **state)
{
    static const char text[] = "e\xcc\x81 e\xcc\x81 e\xcc\x81 light, and light";
    struct found f;

    (void)state;
    open_found(&f, GOLDEN "qwen.json", text);
    token_is(&f, find_part(&f, text, ", and"), ",");
    token_is(&f, find_part(&f, text, " and"), " and");
    close_found(&f);
}

/* Unknown characters are one token or several, and what comes behind them is found. */
static void test_unknown(void **state)
{
    static const char text[] = "the \xe4\xb8\xad\xe6\x96\x87 light \xf0\x9f\x98\x80 the";
    struct found f;

    (void)state;
    open_found(&f, GOLDEN "unigram.model", text);
    int64_t light = find_part(&f, text, "light");
    int64_t last = token_finder_find(&f.finder, strlen(text) - 2);

    assert_true(light > 1 && light < last);
    assert_int_equal(token_finder_find(&f.finder, strlen(text) - 1), f.ids.n - 1);
    close_found(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_normalized),
        cmocka_unit_test(test_unknown),
    };

    return cmocka_run_group_tests_name("token_finder", tests, NULL, NULL);
}
