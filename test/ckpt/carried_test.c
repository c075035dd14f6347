/*
 * carried_test.c - which files go along with a model, and links to them
 */
#include "data/data_fixture.h"

#include <cjson/cJSON.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/carried.h"

static const char *folder;

static const char *const tokenizer_files[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "qwen.tiktoken",
    "generation_config.json",
    "chat_template.jinja",
    "other.jinja",
    "additional_chat_templates/tool_use.jinja",
};
static const char *const model_files[] = { "README.md", "LICENSE", "modeling_own.py",
                                           "tokenization_own.py", "processor_config.json" };
static const char *const strangers[] = { "model.safetensors", "training_args.txt", ".hidden",
                                         "config.json.part-1", "notes" };

enum { N_TOKENIZER = 13, N_MODEL = 5, N_STRANGERS = 5 };

static const char *in(const char *of, const char *name)
{
    static char paths[4][4300];
    static int at;
    char *path = paths[at++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s/%s", folder, of, name);
    return path;
}

static void put(const char *name, const char *text)
{
    struct err err;

    assert_int_equal(file_write(in("from", name), text, strlen(text), &err), 0);
}

static int open_folder(void **state)
{
    struct err err;

    (void)state;
    folder = fixture_folder();
    if (file_make_folders(in("from", "additional_chat_templates"), &err) < 0)
        return -1;
    for (int i = 0; i < N_TOKENIZER; i++)
        put(tokenizer_files[i], tokenizer_files[i]);
    for (int i = 0; i < N_MODEL; i++)
        put(model_files[i], model_files[i]);
    for (int i = 0; i < N_STRANGERS; i++)
        put(strangers[i], strangers[i]);
    put("config.json", "{}");
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    fixture_remove(folder);
    return 0;
}

static int n_there(const char *of, const char *const *names, int n)
{
    int there = 0;

    for (int i = 0; i < n; i++)
        there += file_exists(in(of, names[i]));
    return there;
}

static void test_kinds(void **state)
{
    static const char *const names[] = { "of-tokenizer", "of-model", "of-config" };
    struct err err;

    (void)state;
    for (int kind = CARRIED_TOKENIZER; kind <= CARRIED_CONFIG; kind++) {
        const char *to = names[kind];

        assert_int_equal(file_make_folder(in(to, "."), &err), 0);
        assert_int_equal(carried_copy(in("from", "."), in(to, "."), (enum carried_kind)kind, &err),
                         0);
        assert_int_equal(n_there(to, tokenizer_files, N_TOKENIZER), N_TOKENIZER);
        assert_int_equal(n_there(to, model_files, N_MODEL),
                         kind == CARRIED_TOKENIZER ? 0 : N_MODEL);
        assert_int_equal(file_exists(in(to, "config.json")), kind == CARRIED_CONFIG);
        assert_int_equal(n_there(to, strangers, N_STRANGERS), 0);
        assert_true(carried_has_tokenizer(in(to, ".")));
    }
    /* Another tokenizer comes: what generation begins with stays. */
    assert_int_equal(carried_remove_tokenizer(in("of-config", "."), &err), 0);
    assert_int_equal(n_there("of-config", tokenizer_files, N_TOKENIZER), 1);
    assert_true(file_exists(in("of-config", "generation_config.json")));
    assert_int_equal(n_there("of-config", model_files, N_MODEL), N_MODEL);
    assert_false(carried_has_tokenizer(in("of-config", ".")));
    assert_int_equal(carried_remove_templates(in("of-model", "."), &err), 0);
    assert_false(file_exists(in("of-model", "chat_template.jinja")));
    assert_false(file_exists(in("of-model", "additional_chat_templates")));
    assert_false(carried_has_tokenizer(in("of-nothing", ".")));
}

static ino_t inode_of(const char *path)
{
    struct stat s;

    assert_int_equal(stat(path, &s), 0);
    return s.st_ino;
}

static void test_links(void **state)
{
    static const char *const linked[] = { "tokenizer.json", "config.json",
                                          "additional_chat_templates/tool_use.jinja" };
    struct err err;

    (void)state;
    assert_int_equal(carried_link(in("from", ""), in("to", ""), &err), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(inode_of(in("to", linked[i])), inode_of(in("from", linked[i])));
    /* Made anew: what is no longer there goes, and a file that is replaced is another's. */
    put("tokenizer.json", "new");
    assert_int_equal(unlink(in("from", "config.json")), 0);
    assert_true(inode_of(in("to", "tokenizer.json")) != inode_of(in("from", "tokenizer.json")));
    assert_int_equal(carried_link(in("from", ""), in("to", ""), &err), 0);
    assert_false(file_exists(in("to", "config.json")));
    assert_int_equal(inode_of(in("to", "tokenizer.json")), inode_of(in("from", "tokenizer.json")));
    assert_int_equal(carried_link(in("gone", ""), in("to", ""), &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.text, "gone/ is missing (hint: "));
}

static void test_hashes(void **state)
{
    struct arena arena = { 0 };
    struct str text = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(carried_describe(in("to", ""), &text, &err), 0);
    cJSON *hashes = cJSON_Parse(str_text(&text));
    assert_non_null(hashes);
    assert_int_equal(cJSON_GetArraySize(hashes), N_TOKENIZER - 1 + N_MODEL + 4);
    assert_string_equal(hashes->child->string, "LICENSE");
    assert_null(carried_changed(in("to", ""), hashes, &arena));
    cJSON_AddStringToObject(hashes, "../to/README.md", "0");
    cJSON_AddNumberToObject(hashes, "README.md", 1);
    assert_null(carried_changed(in("to", ""), hashes, &arena));
    assert_int_equal(file_write(in("to", "merges.txt"), "x", 1, &err), 0);
    assert_non_null(strstr(carried_changed(in("to", ""), hashes, &arena), "to//merges.txt"));
    assert_int_equal(unlink(in("to", "added_tokens.json")), 0);
    assert_non_null(strstr(carried_changed(in("to", ""), hashes, &arena), "added_tokens.json"));
    str_clear(&text);
    assert_int_equal(carried_describe(in("gone", ""), &text, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    cJSON_Delete(hashes);
    str_release(&text);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_hashes),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
