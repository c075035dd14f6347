/*
 * tokenizer_files_test.c - ranks, and vocabulary with merges, give the ids of the tokenizer.json
 * that they are made of here; what is missing or broken is named
 */
#include "data/data_fixture.h"

#include <cjson/cJSON.h>

#include "base/file.h"
#include "tokenizer/tokenizer_impl.h"

#define KJV "data/kjv-tokenizer/tokenizer.json"
#define GPT2_PATTERN \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|" \
    "\\\\s+(?!\\\\S)|\\\\s+"

static const char text[] =
    "In the beginning God created the heaven and the earth. It's 1611,  isn't it?\n\n\tAnd the "
    "waters\xc2\xa0were\xe2\x80\x99 \xe5\xa4\xa9\xe5\x9c\xb0 <|endoftext|>begat!!!! 42";

static char folder[] = "/tmp/lmtrain-files-XXXXXX";
static struct tokenizer *kjv;

static void write_text(const char *name, const char *bytes, size_t n)
{
    char path[256];
    struct err err = { 0 };

    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(file_write(path, bytes, n, &err), 0);
}

static void remove_file(const char *name)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(remove(path), 0);
}

static void check_ids(const char *path, const char *bytes, size_t n)
{
    struct token_list ids = { 0 }, expected = { 0 };
    struct tokenizer *tokenizer = NULL;
    struct str decoded = { 0 };
    struct err err = { 0 };

    if (tokenizer_open(&tokenizer, path, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(tokenizer_vocab_size(tokenizer), tokenizer_vocab_size(kjv));
    assert_int_equal(tokenizer_end_of_text(tokenizer), tokenizer_end_of_text(kjv));
    assert_int_equal(tokenizer_encode(kjv, bytes, n, &expected, &err), 0);
    assert_int_equal(tokenizer_encode(tokenizer, bytes, n, &ids, &err), 0);
    assert_int_equal(ids.n, expected.n);
    assert_memory_equal(ids.ids, expected.ids, (size_t)ids.n * sizeof *ids.ids);
    tokenizer_decode(tokenizer, ids.ids, ids.n, &decoded);
    assert_int_equal(decoded.length, n);
    assert_memory_equal(decoded.data, bytes, n);
    str_release(&decoded);
    token_list_release(&ids);
    token_list_release(&expected);
    tokenizer_close(tokenizer);
}

static void check_refused(const char *part)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    assert_int_equal(tokenizer_open(&tokenizer, folder, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    if (!strstr(err.text, part))
        fail_msg("'%s' does not say '%s'", err.text, part);
}

static cJSON *read_kjv(void)
{
    struct err err = { 0 };
    size_t n;
    char *json;

    assert_int_equal(file_read(KJV, 1 << 24, ERR_DATA, &json, &n, &err), 0);
    cJSON *root = cJSON_ParseWithLength(json, n);
    free(json);
    assert_non_null(root);
    return root;
}

static void write_vocab_merges(void)
{
    cJSON *root = read_kjv(), *model = cJSON_GetObjectItem(root, "model"), *item;
    char *vocab = cJSON_PrintUnformatted(cJSON_GetObjectItem(model, "vocab"));
    struct str merges = { 0 };

    str_add(&merges, "#version: 0.2\n");
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(model, "merges"))
    {
        if (cJSON_IsString(item))
            str_printf(&merges, "%s\n", item->valuestring);
        else
            str_printf(&merges, "%s %s\n", item->child->valuestring,
                       item->child->next->valuestring);
    }
    write_text("vocab.json", vocab, strlen(vocab));
    write_text("merges.txt", merges.data, merges.length);
    str_release(&merges);
    cJSON_free(vocab);
    cJSON_Delete(root);
}

static void test_vocab_merges(void **state)
{
    char path[256];

    (void)state;
    write_vocab_merges();
    check_ids(folder, text, sizeof text - 1);
    snprintf(path, sizeof path, "%s/merges.txt", folder); /* either file stands for both */
    check_ids(path, text, sizeof text - 1);
    write_text("tokenizer_config.json", "{\"tokenizer_class\": \"CTRLTokenizer\"}", 36);
    check_refused("CTRLTokenizer");
    remove_file("tokenizer_config.json");
    write_text("merges.txt", "a b c\n", 6);
    check_refused("merges[0]");
    write_text("merges.txt", "qq\xff z\n", 6);
    check_refused("not a string");
    remove_file("merges.txt");
    check_refused("tokenizer.json is not there, nor ");
    remove_file("vocab.json");
    write_text("vocab.txt", "[PAD]\n", 6);
    check_refused("WordPiece");
    remove_file("vocab.txt");
}

/* A text that would end at a NUL byte, were it read as a C string, is refused wherever it
 * stands. */
static void test_nul_bytes(void **state)
{
    static const char *const places[] = { "added_tokens", "normalizer", "vocab" };

    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        cJSON *root = read_kjv();
        char *json;

        if (i == 0)
            cJSON_AddStringToObject(root, "added", "MARK");
        else if (i == 1)
            cJSON_ReplaceItemInObject(
                root, "normalizer",
                cJSON_Parse("{\"type\": \"Replace\", \"pattern\": {\"String\": \"MARK\"}, "
                            "\"content\": \"b\"}"));
        else
            cJSON_AddNumberToObject(
                cJSON_GetObjectItem(cJSON_GetObjectItem(root, "model"), "vocab"), "MARK",
                kjv->bpe.n_ids);
        json = cJSON_PrintUnformatted(root);
        char *mark = strstr(json, "MARK");
        memcpy(mark, "a  b", 4);
        write_text("tokenizer.json", json, strlen(json));
        struct tokenizer *tokenizer = NULL;
        struct err err = { 0 };
        if (tokenizer_open(&tokenizer, folder, &err) < 0)
            fail_msg("%s: %s", places[i], err.text); /* without one it is fine */
        tokenizer_close(tokenizer);
        struct str with = { 0 };
        str_add_bytes(&with, json, (size_t)(mark - json));
        str_add(&with, "a\\u0000b");
        str_add(&with, mark + 4);
        write_text("tokenizer.json", with.data, with.length);
        check_refused("NUL byte");
        str_release(&with);
        cJSON_free(json);
        cJSON_Delete(root);
    }
    remove_file("tokenizer.json");
}

static void add_base64(struct str *out, const unsigned char *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t at = 0; at < n; at += 3) {
        uint32_t bits = (uint32_t)bytes[at] << 16;

        bits |= at + 1 < n ? (uint32_t)bytes[at + 1] << 8 : 0;
        bits |= at + 2 < n ? bytes[at + 2] : 0;
        str_add_char(out, digits[bits >> 18]);
        str_add_char(out, digits[bits >> 12 & 63]);
        str_add_char(out, at + 1 < n ? digits[bits >> 6 & 63] : '=');
        str_add_char(out, at + 2 < n ? digits[bits & 63] : '=');
    }
}

/* The special token has id 0: the ranks begin at 1, and a side file names it. */
static void write_ranks(void)
{
    struct str ranks = { 0 };

    for (int id = 1; id < kjv->bpe.n_ids; id++) {
        const struct bpe_token *token = &kjv->bpe.tokens[id];

        add_base64(&ranks, (const unsigned char *)token->bytes, token->n_bytes);
        str_printf(&ranks, " %d\n", id);
    }
    write_text("kjv.tiktoken", ranks.data, ranks.length);
    str_release(&ranks);
}

static void test_ranks(void **state)
{
    static const char config[] =
        "{\"pat_str\": \"" GPT2_PATTERN "\", \"added_tokens_decoder\": {\"0\": {\"content\": "
        "\"<|endoftext|>\", \"special\": true}}}";

    (void)state;
    write_ranks();
    check_refused("pat_str");
    write_text("tokenizer_config.json", config, sizeof config - 1);
    check_ids(folder, text, sizeof text - 1);
    write_text("other.tiktoken", "IQ== 0\n", 7);
    check_refused("2 files *.tiktoken");
    remove_file("kjv.tiktoken");
    check_refused("no token for byte 0x00");
    write_text("other.tiktoken", "IQ== 0\nIg== 0\n", 14);
    check_refused("token 2");
    write_text("other.tiktoken", "IQ== 0\nI=== 1\n", 14);
    check_refused("token 2 is not a line");
    write_text("other.tiktoken", "IQ== 0\nIg== 99999999\n", 21);
    check_refused("token 2 is not a line");
    remove_file("other.tiktoken");
    remove_file("tokenizer_config.json");
}

/* Small enough to be seen through: the ways compete by the sums of their scores. */
static void test_unigram(void **state)
{
    static const char json[] =
        "{\"normalizer\": {\"type\": \"Strip\", \"strip_left\": true, \"strip_right\": true}, "
        "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
        "\"WhitespaceSplit\"}, {\"type\": \"Metaspace\", \"replacement\": \"\xe2\x96\x81\", "
        "\"prepend_scheme\": \"always\"}]}, \"model\": {\"type\": \"Unigram\", \"unk_id\": 0, "
        "\"vocab\": [[\"<unk>\", 0], [\"\xe2\x96\x81\", -2], [\"a\", -1], [\"b\", -1], [\"ab\", "
        "-1.5], [\"\xe2\x96\x81"
        "ab\", -5], [\"ba\", -3]]}}";
    static const int32_t expected[] = { 1, 4, 2, 1, 0, 3, 1, 4 };
    struct token_list ids = { 0 };
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(tokenizer_parse(&tokenizer, "unigram", json, sizeof json - 1, &err), 0);
    assert_int_equal(tokenizer_encode(tokenizer,
                                      "  aba \xc3\xa9\xc3\xa9"
                                      "b  ab ",
                                      15, &ids, &err),
                     0);
    assert_int_equal(ids.n, 8);
    assert_memory_equal(ids.ids, expected, sizeof expected);
    token_list_release(&ids);
    tokenizer_close(tokenizer);
}

static int set_up(void **state)
{
    struct err err = { 0 };

    (void)state;
    return mkdtemp(folder) && tokenizer_open(&kjv, KJV, &err) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    struct err err = { 0 };

    (void)state;
    tokenizer_close(kjv);
    return file_remove_tree(folder, &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocab_merges),
        cmocka_unit_test(test_nul_bytes),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_unigram),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
