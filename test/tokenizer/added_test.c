/*
 * added_test.c - leftmost, then longest
 */
#include "data/data_fixture.h"

#include "tokenizer/added.h"

static void expect(const struct added_tokens *added, const char *text, int id, size_t at)
{
    size_t found = 99;
    const struct added_token *token = added_find(added, text, strlen(text), &found);

    if (id < 0) {
        assert_null(token);
        return;
    }
    assert_non_null(token);
    assert_int_equal(token->id, id);
    assert_int_equal(found, at);
}

static void test_find(void **state)
{
    struct added_token items[] = {
        { .text = "<a>", .n_bytes = 3, .id = 1 }, { .text = "<a><b>", .n_bytes = 6, .id = 2 },
        { .text = "xyz", .n_bytes = 3, .id = 3 }, { .text = "yz<", .n_bytes = 3, .id = 4 },
        { .text = "<", .n_bytes = 1, .id = 5 },
    };
    struct added_tokens added;

    (void)state;
    added_init(&added, items, 5);
    expect(&added, "", -1, 0);
    expect(&added, "plain", -1, 0);
    expect(&added, "q<a><b>", 2, 1);
    expect(&added, "q<a><c>", 1, 1);
    expect(&added, "xyz<a>", 3, 0); /* leftmost before longest */
    expect(&added, "xyyz<a>", 4, 2);
    expect(&added, "xy<", 5, 2);
    expect(&added, "xy", -1, 0);
    added_init(&added, items, 0);
    expect(&added, "<a>", -1, 0);
}

static void test_one_first_byte(void **state)
{
    struct added_token items[] = { { .text = "<a>", .n_bytes = 3, .id = 1 },
                                   { .text = "<bb>", .n_bytes = 4, .id = 2 } };
    struct added_tokens added;

    (void)state;
    added_init(&added, items, 2);
    expect(&added, "<<a<bb><a>", 2, 3);
    expect(&added, "<a", -1, 0);
    expect(&added, "<", -1, 0);
    expect(&added, "aaa<a>", 1, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_one_first_byte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
