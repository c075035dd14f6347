/*
 * tokenizer_hash_test.c - one tokenizer has one hash, whatever its JSON looks like; another has
 * another
 */
#include "data/data_fixture.h"

#include <cjson/cJSON.h>

#include "base/file.h"
#include "tokenizer/tokenizer.h"

#define KJV "data/kjv-tokenizer"
#define GOLDEN "test/tokenizer/golden/"

static const char *folder;

static void hash_of(const char *path, char out[TOKENIZER_HASH_BYTES])
{
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    if (tokenizer_open(&tokenizer, path, &err) < 0)
        fail_msg("%s", err.text);
    tokenizer_hash_text(tokenizer, out);
    tokenizer_close(tokenizer);
}

static cJSON *read_json(const char *path)
{
    struct err err = { 0 };
    size_t n_bytes;
    char *text;

    assert_int_equal(file_read(path, (size_t)64 << 20, ERR_DATA, &text, &n_bytes, &err), 0);
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    free(text);
    return root;
}

/* Of root as a file; root stays. */
static void hash_of_json(const cJSON *root, int indented, char out[TOKENIZER_HASH_BYTES])
{
    char *text = indented ? cJSON_Print(root) : cJSON_PrintUnformatted(root), path[512];
    struct err err = { 0 };

    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
    free(text);
    hash_of(folder, out);
}

/* The stored hashes of token files and checkpoints rest on this: a change of it needs a new version
 * in tokenizer_hash_text. */
static void test_it_stays(void **state)
{
    char hash[TOKENIZER_HASH_BYTES];

    (void)state;
    hash_of(KJV, hash);
    assert_string_equal(hash, "1-37aa4ec3f6eafdb2-eec1778a");
    hash_of(KJV "/tokenizer.json", hash);
    assert_string_equal(hash, "1-37aa4ec3f6eafdb2-eec1778a");
    hash_of(GOLDEN "bpe.model", hash);
    assert_string_equal(hash, "1-a22f267a7a9ec718-00000000");
}

/* Keys in reverse, merges as pairs, null keys, and what says nothing of ids. */
static void test_layout_does_not_count(void **state)
{
    static const char *const files[] = { KJV "/tokenizer.json", GOLDEN "llama.json" };
    char before[TOKENIZER_HASH_BYTES], after[TOKENIZER_HASH_BYTES];

    (void)state;
    for (int i = 0; i < 2; i++) {
        cJSON *root = read_json(files[i]), *other = cJSON_CreateObject(), *item;

        hash_of(files[i], before);
        hash_of_json(root, 1, after);
        assert_string_equal(after, before);
        hash_of_json(root, 0, after);
        assert_string_equal(after, before);
        cJSON *model = cJSON_GetObjectItem(root, "model");
        cJSON *merges = cJSON_DetachItemFromObject(model, "merges"), *pairs = cJSON_CreateArray();
        cJSON_ArrayForEach(item, merges)
        {
            int is_pair = cJSON_IsArray(item);
            const char *left = is_pair ? item->child->valuestring : item->valuestring;
            const char *space = is_pair ? left + strlen(left) : strchr(left, ' ');
            char *first = strndup(left, (size_t)(space - left));
            const char *both[] = { first, is_pair ? item->child->next->valuestring : space + 1 };

            cJSON_AddItemToArray(pairs, cJSON_CreateStringArray(both, 2));
            free(first);
        }
        cJSON_AddItemToObject(model, "merges", pairs);
        cJSON_Delete(merges);
        cJSON_AddNullToObject(model, "own");
        cJSON_DeleteItemFromObject(root, "truncation");
        cJSON_DeleteItemFromObject(root, "version");
        while (root->child) {
            item = cJSON_DetachItemViaPointer(root, root->child->prev);
            cJSON_AddItemToObject(other, item->string, item);
        }
        hash_of_json(other, 0, after);
        assert_string_equal(after, before);
        cJSON_Delete(root);
        cJSON_Delete(other);
    }
}

static void set_swapped_merges(cJSON *root)
{
    cJSON *merges = cJSON_GetObjectItem(cJSON_GetObjectItem(root, "model"), "merges");
    cJSON *a = merges->child, *b = a->next, *pair = a->child;

    assert_non_null(pair);
    a->child = b->child;
    b->child = pair;
}

static void set_swapped_ids(cJSON *root)
{
    cJSON *vocab = cJSON_GetObjectItem(cJSON_GetObjectItem(root, "model"), "vocab");
    cJSON *a = vocab->child->next->next->next->next->next, *b = a->next;
    double id = a->valuedouble;

    cJSON_SetNumberValue(a, b->valuedouble);
    cJSON_SetNumberValue(b, id);
}

static void set_normalizer(cJSON *root)
{
    cJSON *part = cJSON_CreateObject();

    cJSON_AddStringToObject(part, "type", "NFC");
    cJSON_DeleteItemFromObject(root, "normalizer");
    cJSON_AddItemToObject(root, "normalizer", part);
}

static void set_token(cJSON *root)
{
    cJSON *token = cJSON_Duplicate(cJSON_GetObjectItem(root, "added_tokens")->child, 1);

    cJSON_ReplaceItemInObject(token, "id", cJSON_CreateNumber(4096));
    cJSON_ReplaceItemInObject(token, "content", cJSON_CreateString("<|new|>"));
    cJSON_AddItemToArray(cJSON_GetObjectItem(root, "added_tokens"), token);
}

static void test_what_changes_ids_counts(void **state)
{
    static void (*const changes[])(cJSON * root) = { set_swapped_merges, set_swapped_ids,
                                                     set_normalizer, set_token };
    enum { N = sizeof changes / sizeof *changes };
    char hashes[N + 1][TOKENIZER_HASH_BYTES];

    (void)state;
    hash_of(KJV, hashes[N]);
    for (int i = 0; i < N; i++) {
        cJSON *root = read_json(KJV "/tokenizer.json");

        changes[i](root);
        hash_of_json(root, 0, hashes[i]);
        cJSON_Delete(root);
        for (int k = 0; k <= N; k++)
            if (k < i || k == N) {
                assert_string_not_equal(hashes[i], hashes[k]);
                assert_int_equal(tokenizer_hash_compare(hashes[i], hashes[k]),
                                 i == 3 && k == N ? TOKENIZER_OTHER_ADDED : TOKENIZER_OTHER);
            }
    }
}

static void test_likeness(void **state)
{
    (void)state;
    assert_int_equal(tokenizer_hash_compare("1-a-b", "1-a-b"), TOKENIZER_SAME);
    assert_int_equal(tokenizer_hash_compare("1-a-b", "1-a-c"), TOKENIZER_OTHER_ADDED);
    assert_int_equal(tokenizer_hash_compare("1-a-b", "1-aa-b"), TOKENIZER_OTHER);
    assert_int_equal(tokenizer_hash_compare("1-a-b", "2-a-b"), TOKENIZER_UNKNOWN);
    assert_int_equal(tokenizer_hash_compare("1-a-b", ""), TOKENIZER_UNKNOWN);
    assert_int_equal(tokenizer_hash_compare("x", "y"), TOKENIZER_UNKNOWN);
}

static void test_files(void **state)
{
    static const char *const cases[][3] = {
        { "a/b/tokenizer.json", "tokenizer.json", NULL },
        { "my.json", "tokenizer.json", NULL },
        { "x/spm.model", "tokenizer.model", NULL },
        { "x/qwen.tiktoken", "qwen.tiktoken", NULL },
        { "x/gpt2-vocab.json", "gpt2-vocab.json", "gpt2-merges.txt" },
        { "merges.txt", "merges.txt", "vocab.json" },
    };
    const char *other;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(tokenizer_file_name(cases[i][0], &other), cases[i][1]);
        if (cases[i][2])
            assert_string_equal(other, cases[i][2]);
        else
            assert_null(other);
    }
    assert_true(tokenizer_is_in(KJV));
    assert_false(tokenizer_is_in(KJV "/tokenizer.json"));
    assert_false(tokenizer_is_in("test"));
    assert_false(tokenizer_is_in("/nonexistent"));
}

static int open_folder(void **state)
{
    (void)state;
    folder = fixture_folder();
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    fixture_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_stays),
        cmocka_unit_test(test_layout_does_not_count),
        cmocka_unit_test(test_what_changes_ids_counts),
        cmocka_unit_test(test_likeness),
        cmocka_unit_test(test_files),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
