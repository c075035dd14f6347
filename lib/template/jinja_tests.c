/*
 * jinja_tests.c - x is name(...)
 */
#include <string.h>

#include "template/jinja_impl.h"

#define TEST(test_name, condition) \
    static struct jinja_value test_##test_name(struct jinja_render *r, struct jinja_value in, \
                                               const struct jinja_value *slots) \
    { \
        (void)r; \
        (void)slots; \
        return jinja_bool(condition); \
    }

static bool is_lower_case(struct text s, enum text_case other, enum text_case same)
{
    struct str a = { 0 }, b = { 0 };

    text_to_case(s, other, &a);
    text_to_case(s, same, &b);
    int is = !text_equal((struct text){ str_text(&a), a.length }, s) &&
             text_equal((struct text){ str_text(&b), b.length }, s);
    str_release(&a);
    str_release(&b);
    return is;
}

static int64_t remainder_by(struct jinja_render *r, const struct jinja_value *in, int64_t by)
{
    if ((in->kind != JINJA_INT && in->kind != JINJA_BOOL) || by == 0)
        jinja_fail(r, "%s has no remainder by %lld", jinja_kind_name(in), (long long)by);
    return r->failed || by == -1 ? 0 : in->i % by;
}

TEST(defined, in.kind != JINJA_UNDEFINED)
TEST(undefined, in.kind == JINJA_UNDEFINED)
TEST(none, in.kind == JINJA_NONE)
TEST(string, in.kind == JINJA_STRING)
TEST(mapping, in.kind == JINJA_DICT)
TEST(number, jinja_is_number(&in))
TEST(integer, in.kind == JINJA_INT)
TEST(float, in.kind == JINJA_FLOAT)
TEST(boolean, in.kind == JINJA_BOOL)
TEST(true, in.kind == JINJA_BOOL && in.i)
TEST(false, in.kind == JINJA_BOOL && !in.i)
TEST(iterable, jinja_length(&in) >= 0)
TEST(sequence, jinja_length(&in) >= 0 && in.kind != JINJA_LOOP)
TEST(callable, in.kind >= JINJA_MACRO && in.kind != JINJA_LOOP)
TEST(odd, remainder_by(r, &in, 2) != 0)
TEST(even, remainder_by(r, &in, 2) == 0)
TEST(divisibleby, remainder_by(r, &in, slots[0].kind == JINJA_INT ? slots[0].i : 0) == 0)
TEST(lower, is_lower_case(jinja_text(r, &in), CASE_UPPER, CASE_LOWER))
TEST(upper, is_lower_case(jinja_text(r, &in), CASE_LOWER, CASE_UPPER))
TEST(equal, jinja_equal(r, &in, &slots[0]))
TEST(unequal, !jinja_equal(r, &in, &slots[0]))
TEST(less, jinja_compare(r, &in, &slots[0]) < 0)
TEST(greater, jinja_compare(r, &in, &slots[0]) > 0)
TEST(at_most, jinja_compare(r, &in, &slots[0]) <= 0)
TEST(at_least, jinja_compare(r, &in, &slots[0]) >= 0)
TEST(in, jinja_contains(r, &in, &slots[0]))
TEST(same, in.kind == slots[0].kind && jinja_equal(r, &in, &slots[0]))

static const struct jinja_function tests[] = {
    { "defined", test_defined, { NULL }, 0, NULL },
    { "undefined", test_undefined, { NULL }, 0, NULL },
    { "none", test_none, { NULL }, 0, NULL },
    { "string", test_string, { NULL }, 0, NULL },
    { "mapping", test_mapping, { NULL }, 0, NULL },
    { "number", test_number, { NULL }, 0, NULL },
    { "integer", test_integer, { NULL }, 0, NULL },
    { "float", test_float, { NULL }, 0, NULL },
    { "boolean", test_boolean, { NULL }, 0, NULL },
    { "true", test_true, { NULL }, 0, NULL },
    { "false", test_false, { NULL }, 0, NULL },
    { "iterable", test_iterable, { NULL }, 0, NULL },
    { "sequence", test_sequence, { NULL }, 0, NULL },
    { "callable", test_callable, { NULL }, 0, NULL },
    { "odd", test_odd, { NULL }, 0, NULL },
    { "even", test_even, { NULL }, 0, NULL },
    { "divisibleby", test_divisibleby, { "num" }, 1, NULL },
    { "lower", test_lower, { NULL }, 0, NULL },
    { "upper", test_upper, { NULL }, 0, NULL },
    { "equalto", test_equal, { "other" }, 1, NULL },
    { "eq", test_equal, { "other" }, 1, NULL },
    { "==", test_equal, { "other" }, 1, NULL },
    { "ne", test_unequal, { "other" }, 1, NULL },
    { "!=", test_unequal, { "other" }, 1, NULL },
    { "lt", test_less, { "other" }, 1, NULL },
    { "<", test_less, { "other" }, 1, NULL },
    { "lessthan", test_less, { "other" }, 1, NULL },
    { "gt", test_greater, { "other" }, 1, NULL },
    { ">", test_greater, { "other" }, 1, NULL },
    { "greaterthan", test_greater, { "other" }, 1, NULL },
    { "le", test_at_most, { "other" }, 1, NULL },
    { "<=", test_at_most, { "other" }, 1, NULL },
    { "ge", test_at_least, { "other" }, 1, NULL },
    { ">=", test_at_least, { "other" }, 1, NULL },
    { "in", test_in, { "seq" }, 1, NULL },
    { "sameas", test_same, { "other" }, 1, NULL },
};

const struct jinja_function *jinja_find_test(struct text name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (text_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}
