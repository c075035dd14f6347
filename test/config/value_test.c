/*
 * value_test.c - a list field of more items than a word has bits, as ops will be one day
 */
#include "config_fixture.h"

#include "config/fields_impl.h"

static char words[FIELD_ITEMS_MAX][16];

/* item0 .. item255, by whatever values: the last word has the first. */
static int list_all(struct choice items[FIELD_ITEMS_MAX + 1])
{
    for (int i = 0; i < FIELD_ITEMS_MAX; i++) {
        snprintf(words[i], sizeof words[i], "item%d", i);
        items[i] = (struct choice){ words[i], FIELD_ITEMS_MAX - 1 - i };
    }
    items[FIELD_ITEMS_MAX] = (struct choice){ 0 };
    return FIELD_ITEMS_MAX;
}

static const struct choice modes[] = { { "none", RECOMPUTE_NONE }, { 0 } };
static const struct field list = { "recompute",
                                   FIELD_KINDS,
                                   offsetof(struct job, recompute),
                                   .choices = modes,
                                   .list_items = list_all,
                                   .items_offset = offsetof(struct job, recompute_ops),
                                   .item = "an item",
                                   .word_value = RECOMPUTE_LIST };

static int set(struct job *job, const char *text, struct arena *arena, struct err *err)
{
    struct diagnostics mistakes = { .arena = arena, .source = "test" };
    struct yaml_node *node = yaml_parse_value(text, "test", arena, err);

    assert_non_null(node);
    int failed = field_set(&list, job, node, &mistakes);
    assert_int_equal(diagnostics_tell(&mistakes, err), failed);
    return failed;
}

/* Each item by itself, and all of them: set, asked and printed. */
static void lists_longer_than_a_word(void **state)
{
    struct arena arena = { 0 };
    struct str all = { 0 }, printed = { 0 };
    struct job job = { 0 };
    struct err err;

    (void)state;
    for (int i = 0; i < FIELD_ITEMS_MAX; i++) {
        const char *text = arena_printf(&arena, "[item%d]", i);

        assert_int_equal(set(&job, text, &arena, &err), 0);
        for (int value = 0; value < FIELD_ITEMS_MAX; value++)
            assert_int_equal(bitset_has(&job.recompute_ops, value),
                             value == FIELD_ITEMS_MAX - 1 - i);
        str_clear(&printed);
        field_print(&list, &job, &printed);
        assert_string_equal(str_text(&printed), text);
        str_printf(&all, i ? ", item%d" : "[item%d", i);
    }
    str_add_char(&all, ']');
    assert_int_equal(set(&job, str_text(&all), &arena, &err), 0);
    str_clear(&printed);
    field_print(&list, &job, &printed);
    assert_string_equal(str_text(&printed), str_text(&all));
    assert_int_equal(set(&job, "none", &arena, &err), 0);
    assert_true(bitset_is_empty(&job.recompute_ops));
    str_release(&all);
    str_release(&printed);
    arena_release(&arena);
}

static void a_wrong_item_of_many_is_refused(void **state)
{
    struct arena arena = { 0 };
    struct job job = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(set(&job, "[item3, itm255]", &arena, &err), -1);
    assert_non_null(strstr(err.text, "itm255"));
    assert_non_null(strstr(err.text, "hint: item255"));
    assert_true(bitset_is_empty(&job.recompute_ops));
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_longer_than_a_word),
        cmocka_unit_test(a_wrong_item_of_many_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
