/*
 * choice_test.c - a value has one name, and a table of names reads back
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <string.h>

#include "base/choice.h"
#include "base/dtype_choices.h"

static void words_and_values(void **state)
{
    static const struct choice sums[] = { { "auto", 0 }, { "late", 0 }, { "early", 1 }, { 0 } };
    struct arena arena = { 0 };

    (void)state;
    assert_string_equal(choice_word(sums, 0), "late"); /* not "auto", which is none of its own */
    assert_string_equal(choice_word(sums, 1), "early");
    assert_int_equal(choice_find(sums, "auto")->value, 0);
    assert_int_equal(choice_find(sums, "early")->value, 1);
    assert_null(choice_find(sums, "earl"));
    const char *const *words = choice_words(sums, &arena);
    assert_string_equal(words[0], "auto");
    assert_string_equal(words[2], "early");
    assert_null(words[3]);
    arena_release(&arena);
}

static void dtypes_have_the_names_of_programs(void **state)
{
    (void)state;
    for (const struct choice *c = dtype_float_choices; c->word; c++)
        assert_string_equal(c->word, dtype_name((enum dtype)c->value));
    for (const struct choice *c = dtype_wide_choices; c->word; c++)
        assert_string_equal(c->word, choice_word(dtype_float_choices, c->value));
    for (const struct choice *c = dtype_torch_choices; c->word; c++)
        assert_non_null(choice_word(dtype_float_choices, c->value));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_and_values),
        cmocka_unit_test(dtypes_have_the_names_of_programs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
