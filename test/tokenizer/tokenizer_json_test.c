/*
 * tokenizer_json_test.c - every part that would change ids is refused by its name
 */
#include "data/data_fixture.h"

#include "tokenizer/tokenizer_impl.h"

static char *small;
static size_t n_small;

static int set_up(void **state)
{
    struct err err = { 0 };

    (void)state;
    return file_read("test/tokenizer/golden/small.json", 1 << 20, ERR_DATA, &small, &n_small, &err);
}

static int tear_down(void **state)
{
    (void)state;
    free(small);
    return 0;
}

/* small.json with the first `from` made `to`; it must be there. */
static char *edited(const char *from, const char *to)
{
    const char *at = strstr(small, from);
    char *json = NULL;

    if (!at)
        fail_msg("small.json has no '%s'", from);
    assert_true(asprintf(&json, "%.*s%s%s", (int)(at - small), small, to, at + strlen(from)) > 0);
    return json;
}

static void expect_refused(const char *json, size_t n_bytes, const char *error)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    if (tokenizer_parse(&tokenizer, "T", json, n_bytes, &err) == 0)
        fail_msg("accepted what should say '%s'", error);
    assert_null(tokenizer);
    assert_int_equal(err.code, ERR_DATA);
    if (!strstr(err.text, error))
        fail_msg("'%s' does not say '%s'", err.text, error);
}

/* What small.json is edited to, and what the error then says. */
static const struct {
    const char *from, *to, *error;
} cases[] = {
    { "\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}", "normalizer Lowercase" },
    { "\"pre_tokenizer\": {\"type\": \"ByteLevel\"",
      "\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"", "pre_tokenizer BertPreTokenizer" },
    { "\"pre_tokenizer\": {", "\"pre_tokenizer\": null, \"x\": {", "decoder ByteLevel" },
    { "\"pre_tokenizer\": {",
      "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a(?<=b)\"}, "
      "\"behavior\": \"Isolated\"}, \"x\": {",
      "pattern 'a(?<=b)': an unsupported construct at byte 1" },
    { "\"pre_tokenizer\": {",
      "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, "
      "\"behavior\": \"Sometimes\"}, \"x\": {",
      "pre_tokenizer Split with this pattern, behavior" },
    { "\"normalizer\": null",
      "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Replace\", "
      "\"pattern\": {\"Regex\": \"a\"}, \"content\": 1}]}",
      "normalizer Replace" },
    { "\"add_prefix_space\": true", "\"add_prefix_space\": 1", "add_prefix_space" },
    { "\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\"}",
      "post_processor: its template must have exactly one sequence" },
    { "\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"WordPiece\"",
      "decoder WordPiece" },
    { "\"decoder\": {", "\"decoder\": null, \"x\": {", "decoder null" },
    { "\"type\": \"BPE\"", "\"type\": \"WordPiece\"", "model WordPiece" },
    { "\"model\": {", "\"model\": 3, \"x\": {", "model" },
    { "\"dropout\": null", "\"dropout\": 0.1", "model.dropout" },
    { "\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"##\"",
      "model.continuing_subword_prefix" },
    { "\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"",
      "model.end_of_word_suffix" },
    { "\"vocab\": {", "\"vocab\": 1, \"x\": {", "model.vocab is not an object" },
    { "\"merges\": [", "\"merges\": {}, \"x\": [", "model.merges is not a list" },
    { "\"!\": 0", "\"!\": -1", "the id of '!'" },
    { "\"!\": 0", "\"!\": 0.5", "the id of '!'" },
    { "\"!\": 0", "\"!\": 4194304", "not in 0..4194303" },
    { "\"!\": 0", "\"!\": 1e99", "the id of '!'" },
    { "\"!\": 0", "\"!\": \"0\"", "the id of '!'" },
    { "\"!\": 0", "\"!\": 1", "occurs twice" },
    { "\"!\": 0", "\"!\": 0, \"!\": 500", "occurs twice" },
    { "\"!\": 0", "\"nix\": 0", "no token for byte 0x21" },
    { "\"merges\": [", "\"merges\": [7, ", "model.merges[0] is not a pair" },
    { "\"merges\": [", "\"merges\": [\"a\", ", "model.merges[0] is not a pair" },
    { "\"merges\": [", "\"merges\": [\"a b c\", ", "model.merges[0] is not a pair" },
    { "\"merges\": [", "\"merges\": [[\"a\"], ", "model.merges[0] is not a pair" },
    { "\"merges\": [", "\"merges\": [[\"a\", 1], ", "model.merges[0] is not a pair" },
    { "\"merges\": [", "\"merges\": [[\"a\", \"b\", \"c\"], ", "model.merges[0] is not a pair" },
    { "\"merges\": [", "\"merges\": [[\"q\", \"q\"], ", "model.merges[0]: 'q', 'q' or both" },
    { "\"merges\": [", "\"merges\": [\"nix q\", ", "is not in the vocabulary" },
    { "\"added_tokens\": [", "\"added_tokens\": 1, \"x\": [", "added_tokens is not a list" },
    { "\"content\": \"<a>\"", "\"content\": \"\"", "added_tokens[1] has no content" },
    { "\"content\": \"<a>\"", "\"content\": 1", "added_tokens[1] has no content" },
    { "\"content\": \"<a>\"", "\"content\": \"!\"", "which conflicts with the vocabulary" },
    { "\"content\": \"<a>\"", "\"content\": \"<a><b>\"", "occurs twice" },
    { "\"content\": \"<a>\"", "\"content\": \"\\u0041DD\", \"normalized\": true", "occurs twice" },
    { "\"added_tokens\": [", "\"added_tokens\": [{\"id\": 5, \"content\": \"<x>\"}, ",
      "which conflicts with the vocabulary" },
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *json = edited(cases[i].from, cases[i].to);

        expect_refused(json, strlen(json), cases[i].error);
        free(json);
    }
}

static void test_same_id_twice(void **state)
{
    const char *at = strstr(small, "{\"id\": ");
    char *end, *to = NULL, *json;

    (void)state;
    assert_non_null(at);
    long id = strtol(at + 7, &end, 10);
    assert_true(asprintf(&to, "\"added_tokens\": [{\"id\": %ld, \"content\": \"<x>\"}, ", id) > 0);
    json = edited("\"added_tokens\": [", to);
    expect_refused(json, strlen(json), "have the same id");
    free(json);
    free(to);
}

static void test_no_json(void **state)
{
    static const char *const bad[] = { "", " ", "{", "[]", "3", "{} x", "{\"a\": }", "nul" };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_refused(bad[i], strlen(bad[i]), "T: not a JSON object");
    expect_refused("{}", 2, "model");
    expect_refused("{\"a\": \"\xff\"}", 9, "byte 7 is not valid UTF-8");
    for (size_t n = 0; n + 1 < n_small; n += 97) {
        char *cut = strndup(small, n);

        expect_refused(cut, n, " not ");
        free(cut);
    }
    size_t depth = 100000;
    char *deep = malloc(depth + 1);
    assert_non_null(deep);
    memset(deep, '[', depth);
    deep[depth] = 0;
    expect_refused(deep, depth, "not a JSON object");
    free(deep);
}

static int64_t count_ids(const char *json, const char *text)
{
    struct tokenizer *tokenizer = NULL;
    struct token_list ids = { 0 };
    struct err err = { 0 };

    if (tokenizer_parse(&tokenizer, "T", json, strlen(json), &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), &ids, &err), 0);
    int64_t n = ids.n;
    token_list_release(&ids);
    tokenizer_close(tokenizer);
    return n;
}

/* Merges as "a b" and as ["a", "b"] are the same, and may be mixed. */
static void test_merges_spelled_as_lists(void **state)
{
    char *json = edited("[\"t h\"", "[[\"t\", \"h\"]");
    char *without = edited("[\"t h\", ", "[");

    (void)state;
    assert_int_equal(count_ids(small, " qthq"), 4);
    assert_int_equal(count_ids(json, " qthq"), 4);
    free(json);
    /* Without it, merges that build on "th" still stand, but nothing makes their left half. */
    assert_int_equal(count_ids(without, " qthq"), 5);
    free(without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_same_id_twice),
        cmocka_unit_test(test_no_json),
        cmocka_unit_test(test_merges_spelled_as_lists),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
