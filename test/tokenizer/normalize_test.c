/*
 * normalize_test.c - what normalizers and patterns of a file may take for a text, and that those of
 * real ones stay far below it
 */
#include <sys/resource.h>

#include "data/data_fixture.h"

#include "tokenizer/tokenizer_impl.h"

#define GOLDEN "test/tokenizer/golden/"
#define MB ((size_t)1 << 20)

static char *small;
static const char *folder;

static int set_up(void **state)
{
    size_t n;
    struct err err = { 0 };

    (void)state;
    folder = fixture_folder();
    return file_read(GOLDEN "small.json", 1 << 20, ERR_DATA, &small, &n, &err);
}

static int tear_down(void **state)
{
    (void)state;
    free(small);
    fixture_remove(folder);
    return 0;
}

/* small.json with another normalizer or pre_tokenizer. */
static struct tokenizer *open_with(const char *from, const char *to)
{
    struct tokenizer *tokenizer = NULL;
    char *path = fixture_path(folder, "tokenizer.json");
    const char *at = strstr(small, from);
    struct str json = { 0 };
    struct err err = { 0 };

    assert_non_null(at);
    str_add_bytes(&json, small, (size_t)(at - small));
    str_add(&json, to);
    str_add(&json, at + strlen(from));
    assert_int_equal(file_write(path, str_text(&json), json.length, &err), 0);
    if (tokenizer_open(&tokenizer, path, &err) < 0)
        fail_msg("%s", err.text);
    str_release(&json);
    free(path);
    return tokenizer;
}

static char *repeated(const char *text, size_t n)
{
    size_t n_text = strlen(text);
    char *out = malloc(n + 1);

    assert_non_null(out);
    for (size_t i = 0; i < n; i++)
        out[i] = text[i % n_text];
    out[n] = 0;
    return out;
}

static void refuses(const struct tokenizer *tokenizer, const char *text, size_t n, const char *says)
{
    struct token_list ids = { 0 };
    struct err err = { 0 };

    assert_int_equal(tokenizer_encode(tokenizer, text, n, &ids, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_int_equal(ids.n, 0);
    if (!strstr(err.text, says))
        fail_msg("'%s' does not say '%s'", err.text, says);
    assert_non_null(strstr(err.text, "tokenizer.json: "));
    token_list_release(&ids);
}

#define SEQUENCE(list) "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [" list "]}"
#define REPLACE(kind, from, to) \
    "{\"type\": \"Replace\", \"pattern\": {\"" kind "\": \"" from "\"}, \"content\": \"" to "\"}"
#define TEN "zzzzzzzzzz"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN

/* Each of them makes a hundred bytes of one. */
static void test_replacements(void **state)
{
    static const char *const chains[] = {
        SEQUENCE(REPLACE("String", "z", HUNDRED) "," REPLACE("String", "z", HUNDRED) "," //
                 REPLACE("String", "z", HUNDRED) "," REPLACE("String", "z", HUNDRED)),
        SEQUENCE(REPLACE("Regex", "z", HUNDRED) "," REPLACE("Regex", "[z]", HUNDRED) "," //
                 REPLACE("Regex", "z", HUNDRED)),
        /* What is made counts although it goes. */
        SEQUENCE(REPLACE("String", "z", HUNDRED) "," REPLACE("String", "z", HUNDRED) "," //
                 REPLACE("Regex", "z+", "b")),
        SEQUENCE("{\"type\": \"Prepend\", \"prepend\": \"yyyyyyyyyy\"}," //
                 REPLACE("String", "z", HUNDRED) "," REPLACE("String", "z", HUNDRED)),
    };
    struct rusage before, after;
    char *text = repeated("z", MB);

    (void)state;
    assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        struct tokenizer *t = open_with("\"normalizer\": null", chains[i]);

        refuses(t, text, MB, "the normalizer makes more than 68157440 bytes of a text of 1048576");
        tokenizer_close(t);
    }
    assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what was released */
    assert_in_range(after.ru_maxrss - before.ru_maxrss, 0, 400 << 10);
#endif
    free(text);
}

/* What grows little is as it was. */
static void test_small_replacements(void **state)
{
    struct tokenizer *t =
        open_with("\"normalizer\": null", SEQUENCE(REPLACE("String", "a", "bc") "," //
                                                   REPLACE("Regex", "c+", "dd") "," //
                                                   REPLACE("String", "d", "ee")));
    struct tokenizer_budget budget = { .n_text = 3 };
    struct str out = { 0 };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(tokenizer_normalize(t, "xay", 3, 0, &budget, &out, &err), 0);
    assert_string_equal(str_text(&out), "xbeeeey");
    assert_int_equal(budget.n_written, 4 + 5 + 7);
    str_release(&out);
    tokenizer_close(t);
}

#define SPLIT(regex) \
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", " \
    "\"pattern\": " \
    "{\"Regex\": \"" regex \
    "\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", " \
    "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]}, \"x\": {"

/* Patterns that read on to the end from every place and fail there, or match little. */
static void test_slow_patterns(void **state)
{
    static const char *const patterns[] = { "(a+)+b", "a+b|a", "(a|aa)+c|[^a]", "(?:a*a)*d|a" };
    char *text = repeated("a", MB);

    (void)state;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        struct str split = { 0 }, says = { 0 };

        str_printf(&split, SPLIT("%s"), patterns[i]);
        struct tokenizer *t = open_with("\"pre_tokenizer\": {", str_text(&split));
        str_printf(&says, "pattern '%s' takes more than", patterns[i]);
        refuses(t, text, MB, str_text(&says));
        tokenizer_close(t);
        str_release(&says);
        str_clear(&split);
        str_printf(&split, "\"normalizer\": " REPLACE("Regex", "%s", "e"), patterns[i]);
        t = open_with("\"normalizer\": null", str_text(&split));
        refuses(t, text, MB, "takes more than 83886080 steps for a text of 1048576 bytes");
        tokenizer_close(t);
        str_release(&split);
    }
    free(text);
}

/* Real ones of all sorts of text, the monotonous included, read next to nothing in vain: they
 * must never come near the limit. */
static void test_real_patterns(void **state)
{
    static const char *const tokenizers[] = { "data/kjv-tokenizer", GOLDEN "qwen.json",
                                              GOLDEN "deepseek.json", GOLDEN "llama.json" };
    static const char *const texts[] = {
        "a",     " ",     "1",   "\n",  " \n",          "\n ",
        "a ",    "'s",    "'",   "\t ", "\xe4\xb8\xad", "!",
        "  \n1", "\r\n ", "1a!", "  a", "\xc2\xa0 ",    "\xcc\x81"
    };

    (void)state;
    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
        struct tokenizer *t = NULL;
        struct err err = { 0 };

        assert_int_equal(tokenizer_open(&t, tokenizers[i], &err), 0);
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            size_t n = (size_t)1 << 18, n_vain = 0;
            char *text = repeated(texts[k], n - n % strlen(texts[k]));

            n = strlen(text);
            for (int s = 0; s < t->n_splits; s++)
                for (size_t at = 0, length; at < n; at += length) {
                    size_t n_char;

                    length = pattern_match(&t->splits[s].pattern, text + at, n - at, &n_vain);
                    for (n_char = 1; (text[at + n_char] & 0xc0) == 0x80; n_char++)
                        ;
                    length = length ? length : n_char;
                }
            if (n_vain > 2 * n)
                fail_msg("%s reads %zu of %zu bytes of '%s' in vain", tokenizers[i], n_vain, n,
                         texts[k]);
            struct token_list ids = { 0 };
            if (tokenizer_encode(t, text, n, &ids, &err) < 0)
                fail_msg("%s", err.text);
            token_list_release(&ids);
            free(text);
        }
        tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replacements),
        cmocka_unit_test(test_small_replacements),
        cmocka_unit_test(test_slow_patterns),
        cmocka_unit_test(test_real_patterns),
    };

    return cmocka_run_group_tests_name("normalize", tests, set_up, tear_down);
}
