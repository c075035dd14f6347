/*
 * yaml_test.c - trees with places, and every text that is refused
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "base/yaml.h"
#include "support/temporary.h"

static struct yaml_node *parse(const char *text, struct arena *arena, struct err *err)
{
    return yaml_parse(text, strlen(text), "t.yaml", arena, err);
}

static void test_places(void **state)
{
    static const char text[] = "# a comment\n"
                               "model: llama\n"
                               "data:\n"
                               "  train:\n"
                               "    - a\n"
                               "    - {path: 'b c', weight: 2}\n"
                               "  note: \"é \\\"x\\\"\"  # text\n"
                               "empty:\n";
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    struct yaml_node *root = parse(text, &arena, &err);
    assert_non_null(root);
    assert_int_equal(root->kind, YAML_MAP);
    struct yaml_node *model = yaml_get(root, "model");
    assert_string_equal(model->text, "llama");
    assert_true(model->plain);
    assert_string_equal(model->source, "t.yaml");
    assert_int_equal(model->line, 2);
    assert_int_equal(model->column, 8);
    assert_int_equal(model->key_line, 2);
    assert_int_equal(model->key_column, 1);
    struct yaml_node *train = yaml_get(yaml_get(root, "data"), "train");
    assert_int_equal(train->kind, YAML_LIST);
    assert_int_equal(train->key_line, 4);
    assert_int_equal(train->key_column, 3);
    assert_string_equal(train->first->text, "a");
    assert_null(train->first->key);
    struct yaml_node *second = train->first->next;
    assert_ptr_equal(second, train->last);
    assert_null(second->next);
    assert_int_equal(second->line, 6);
    assert_int_equal(second->column, 7);
    assert_string_equal(yaml_get(second, "path")->text, "b c");
    assert_false(yaml_get(second, "path")->plain);
    assert_int_equal(yaml_get(second, "weight")->column, 29);
    assert_string_equal(yaml_get(yaml_get(root, "data"), "note")->text, "é \"x\"");
    assert_true(yaml_is_null(yaml_get(root, "empty")));
    assert_null(yaml_get(root, "absent"));
    assert_null(yaml_get(train, "path"));
    arena_release(&arena);
}

static void test_null(void **state)
{
    static const struct {
        const char *text;
        int is_null;
    } rows[] = { { "", 1 },     { "# only words\n", 1 },
                 { "~", 1 },    { "null", 1 },
                 { "NULL", 1 }, { "'~'", 0 },
                 { "\"\"", 0 }, { "no", 0 },
                 { "0", 0 },    { "nULL", 0 },
                 { "[]", 0 },   { "{}", 0 },
                 { "---\n", 1 } };
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct yaml_node *root = parse(rows[i].text, &arena, &err);
        assert_non_null(root);
        assert_int_equal(yaml_is_null(root), rows[i].is_null);
    }
    arena_release(&arena);
}

static void test_refusals(void **state)
{
    static const char *const rows[][2] = {
        { "a: &x 1\nb: 2\n", "t.yaml:1:4: anchor &x" },
        { "a: [&x 1]\n", "t.yaml:1:5: anchor &x" },
        { "a: &x [1]\n", "t.yaml:1:4: anchor &x" },
        { "a: 1\nb: *x\n", "t.yaml:2:4: alias *x" },
        { "a: 1\nb: {c: *x}\n", "t.yaml:2:8: alias *x" },
        { "a: !!int 3\n", "t.yaml:1:4: tag tag:yaml.org,2002:int" },
        { "a: !mine {b: 1}\n", "t.yaml:1:4: tag !mine" },
        { "a: !x [1]\n", "t.yaml:1:4: tag !x" },
        { "%TAG ! tag:x,2000:\n---\na: 1\n", "TAG directive" },
        { "a: 1\n<<: {b: 2}\n", "t.yaml:2:1: merge key <<" },
        { "a: 1\nb: 2\na: 3\n", "t.yaml:3:1: key a is given twice (first in line 1)" },
        { "x: {a: 1, b: 2, a: 3}\n", "t.yaml:1:17: key a is given twice" },
        { "a: 1\n---\nb: 2\n", "t.yaml:2:1: a second document" },
        { "? [a, b]\n: 1\n", "t.yaml:1:3: a key is a map or a list" },
        { "{a: 1, {b: 2}: 3}\n", "a key is a map or a list" },
        { "?\n: 1\n", "t.yaml:1:2: a key is empty" },
        { "{a: 1, '': 2}\n", "t.yaml:1:8: a key is empty" },
        { "a: \"x\\0y\"\n", "t.yaml:1:4: text with a zero byte" },
        { "a: [1, 2\n", "t.yaml:2:1: " },
        { "a: 1\n b: 2\n", "t.yaml:2:3: mapping values are not allowed in this context" },
        { "a: 'x\n", "found unexpected end of stream" },
        { "a: 1\n\tb: 2\n", "t.yaml:2:1: " },
        { "a: 1\nb: \xff\n", "t.yaml:2:4: invalid" },
        { "a: \x01\n", "t.yaml:1:4: control characters are not allowed" },
        { "a: @x\n", "t.yaml:1:4: " },
    };
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = { 0 };

        assert_null(parse(rows[i][0], &arena, &err));
        if (!strstr(err.text, rows[i][1]))
            fail_msg("\"%s\" gave \"%s\", not \"%s\"", rows[i][0], err.text, rows[i][1]);
        assert_int_equal(err.code, ERR_CONFIG);
    }
    arena_release(&arena);
}

/* The text nested n deep. */
static void nest(struct str *out, const char *open, const char *close, int n)
{
    str_clear(out);
    for (int i = 0; i < n; i++)
        str_add(out, open);
    str_add(out, "1");
    for (int i = 0; i < n; i++)
        str_add(out, close);
}

static void test_depth(void **state)
{
    struct arena arena = { 0 };
    struct str text = { 0 };
    struct err err;

    (void)state;
    nest(&text, "[", "]", YAML_MAX_DEPTH);
    assert_non_null(parse(text.data, &arena, &err));
    nest(&text, "[", "]", YAML_MAX_DEPTH + 1);
    assert_null(parse(text.data, &arena, &err));
    assert_string_equal(err.text, "t.yaml:1:33: nested deeper than 32 levels");
    nest(&text, "{a: ", "}", YAML_MAX_DEPTH);
    assert_non_null(parse(text.data, &arena, &err));
    nest(&text, "{a: ", "}", 100000);
    assert_null(parse(text.data, &arena, &err));
    assert_non_null(strstr(err.text, "nested deeper"));
    str_release(&text);
    arena_release(&arena);
}

static void test_sizes(void **state)
{
    struct arena arena = { 0 };
    struct str text = { 0 };
    struct err err;

    (void)state;
    /* The list itself is a node too. */
    for (int i = 0; i < YAML_MAX_NODES - 1; i++)
        str_add(&text, "- a\n");
    assert_non_null(parse(text.data, &arena, &err));
    str_add(&text, "- a\n");
    assert_null(parse(text.data, &arena, &err));
    assert_string_equal(err.text, "t.yaml:100000:3: more than 100000 values");
    str_clear(&text);
    while (text.length < YAML_MAX_BYTES)
        str_add(&text, "#\n");
    assert_non_null(parse(text.data, &arena, &err));
    str_add(&text, "#");
    assert_null(parse(text.data, &arena, &err));
    assert_non_null(strstr(err.text, "t.yaml: 1048577 bytes, more than 1048576"));
    str_release(&text);
    arena_release(&arena);
}

/* Keys of one map are not compared pair by pair: this would take minutes. */
static void test_many_keys(void **state)
{
    struct arena arena = { 0 };
    struct str text = { 0 };
    struct err err;

    (void)state;
    for (int i = 0; i < 90000; i++)
        str_printf(&text, "k%d: 1\n", i);
    assert_non_null(parse(text.data, &arena, &err));
    str_add(&text, "k7: 1\n");
    assert_null(parse(text.data, &arena, &err));
    assert_string_equal(err.text, "t.yaml:90001:1: key k7 is given twice (first in line 8)");
    str_release(&text);
    arena_release(&arena);
}

static void test_values(void **state)
{
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    struct yaml_node *value = yaml_parse_value("{a: [1, 'x']}", "--set k", &arena, &err);
    assert_non_null(value);
    assert_int_equal(value->line, 0);
    assert_int_equal(yaml_get(value, "a")->last->line, 0);
    assert_string_equal(value->source, "--set k");
    assert_null(yaml_parse_value("[1", "--set k", &arena, &err));
    assert_true(str_starts_with(err.text, "--set k: "));
    assert_null(yaml_parse_value("{a: 1, a: 2}", "--set k", &arena, &err));
    assert_string_equal(err.text, "--set k: key a is given twice");
    arena_release(&arena);
}

/* Some editors begin a file with a mark; places are counted without it. */
static void test_byte_order_mark(void **state)
{
    struct arena arena = { 0 };
    struct err err;
    struct yaml_node *root = parse("\xef\xbb\xbf"
                                   "a: 1\n",
                                   &arena, &err);

    (void)state;
    assert_non_null(root);
    assert_non_null(yaml_get(root, "a"));
    assert_int_equal(yaml_get(root, "a")->line, 1);
    assert_null(parse("\xef\xbb", &arena, &err));
    assert_null(parse("\xef\xbb\xbf\xff", &arena, &err));
    arena_release(&arena);
}

static void test_files(void **state)
{
    char folder[256], path[300];
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(temporary_folder(folder, sizeof folder), 0);
    snprintf(path, sizeof path, "%s/a.yaml", folder);
    assert_int_equal(file_write(path, "a: 1\n", 5, &err), 0);
    struct yaml_node *root = yaml_read(path, &arena, &err);
    assert_non_null(root);
    assert_string_equal(root->source, path);
    assert_int_equal(file_remove_tree(folder, &err), 0);
    assert_null(yaml_read(path, &arena, &err));
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, path));
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),          cmocka_unit_test(test_null),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_sizes),           cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_values),          cmocka_unit_test(test_files),
        cmocka_unit_test(test_byte_order_mark),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
