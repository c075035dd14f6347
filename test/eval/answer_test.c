/*
 * answer_test.c - patterns as Python's re has them; mathematical answers as lm-evaluation-harness
 * 0.4.13 compares them (scripts/golden/math_answers.py prints the table)
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <string.h>

#include "eval/answer.h"

struct found {
    const char *pattern, *text;
    int which;
    const char *expected; /* NULL: nothing */
};

/* re.findall(pattern, text)[which] in Python 3.11; of a tuple the first that isn't empty. */
static void find(void **state)
{
    static const struct found cases[] = {
        { "#### (\\-?[0-9\\.\\,]+)", "so #### 1,234.5 and #### 7", 0, "1,234.5" },
        { "#### (\\-?[0-9\\.\\,]+)", "so #### 1,234.5 and #### 7", -1, "7" },
        { "#### (\\-?[0-9\\.\\,]+)", "so #### 7", 1, NULL },
        { "#### (\\-?[0-9\\.\\,]+)", "none", 0, NULL },
        { "(-?[$0-9.,]{2,})|(-?[0-9]+)", "he has 5, then $12.50 left", -1, "$12.50" },
        { "(-?[$0-9.,]{2,})|(-?[0-9]+)", "just 5", -1, "5" },
        { "(-?[$0-9.,]{2,})|(-?[0-9]+)", "a -7 b", -1, "-7" },
        { "(?<=the answer is )(.*)(?=.)", "So the answer is (A).", 0, "(A)" },
        { "(?<=the answer is )(.*)(?=.)", "the answer is x.\nthe answer is yes.", 0, "x" },
        { "a*", "baac", 0, "" },
        { "a*", "baac", 1, "aa" },
        { "a*", "baac", 2, "" },
        { "a*", "baac", 3, "" },
        { "a*", "baac", 4, NULL },
        { "a*", "baac", -3, "aa" },
        { "(x?)(y?)", "z", 0, NULL },
        { "(x?)", "z", 0, "" },
        { "\\d+", "\xd9\xa3 7", 0, "\xd9\xa3" }, /* a digit of another script */
        { "[A-D]", "", 0, NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct found *c = &cases[i];
        struct answer_pattern *p;
        struct str out = { 0 };
        struct err err;

        assert_int_equal(answer_pattern_create(&p, c->pattern, &err), 0);
        int found = answer_pattern_find(p, c->text, strlen(c->text), c->which, &out);
        if (found != !!c->expected || (found && strcmp(str_text(&out), c->expected)))
            fail_msg("%s in '%s', %d: %d '%s'", c->pattern, c->text, c->which, found,
                     str_text(&out));
        answer_pattern_destroy(p);
        str_release(&out);
    }
}

static void bounded(void **state)
{
    struct answer_pattern *p;
    struct str out = { 0 }, text = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(answer_pattern_create(&p, "(a", &err), -1);
    assert_non_null(strstr(err.text, "pattern (a: missing closing parenthesis, at byte 2"));
    assert_int_equal(answer_pattern_create(&p, "(a+)+$", &err), 0);
    for (int i = 0; i < 100; i++)
        str_add(&text, "aaaaaaaa");
    str_add(&text, "b");
    assert_int_equal(answer_pattern_find(p, str_text(&text), text.length, 0, &out), 0);
    answer_pattern_destroy(p);
    str_release(&out);
    str_release(&text);
}

static void check_removed(const char *pattern, const char *text, const char *expected)
{
    struct answer_pattern *p;
    struct str s = { 0 };
    struct err err;

    str_add(&s, text);
    assert_int_equal(answer_pattern_create(&p, pattern, &err), 0);
    answer_pattern_remove(p, &s);
    assert_string_equal(str_text(&s), expected);
    answer_pattern_destroy(p);
    str_release(&s);
}

/* GSM8K's regexes_to_ignore. */
static void removed(void **state)
{
    (void)state;
    check_removed(",", "1,234,567", "1234567");
    check_removed("\\$", "$5$", "5");
    check_removed("(?s).*#### ", "a\nb #### c #### 18", "18");
    check_removed("\\.$", "18.", "18");
    check_removed("\\.$", "18.\n", "18\n");
    check_removed("\\.$", "18..", "18.");
}

static void check_cut(const char *text, const char *const *stops, int was_cut, const char *expected)
{
    struct str s = { 0 };

    str_add(&s, text);
    assert_int_equal(answer_cut(&s, stops), was_cut);
    assert_string_equal(str_text(&s), expected);
    str_release(&s);
}

static void cuts(void **state)
{
    static const char *const stops[] = { "Question:", "", "\n\n", NULL };

    (void)state;
    check_cut("5\n\nQuestion: x", stops, 1, "5");
    check_cut("5 Question: x\n\n", stops, 1, "5 ");
    check_cut("5\n", stops, 0, "5\n");
    check_cut("", stops, 0, "");
}

static void stripped(void **state)
{
    static const char *const cases[][2] = {
        { "  a b\n", "a b" },
        { "\xe3\x80\x80x\xc2\xa0", "x" },
        { "\t \n", "" },
        { "", "" },
        { "\xe2\x80\x83"
          "x\xe2\x80\x8b",
          "x\xe2\x80\x8b" },
        { "\xc3\xa0", "\xc3\xa0" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct str s = { 0 };

        str_add(&s, cases[i][0]);
        answer_strip(&s);
        assert_string_equal(str_text(&s), cases[i][1]);
        str_release(&s);
    }
}

static void math(void **state)
{
    static const struct {
        const char *a, *b;
        int equal;
    } cases[] = {
        { "$\\frac12$", "\\boxed{\\frac{1}{2}}", 1 },
        { "The answer is 0.5", "$1/2$", 1 },
        { "x = 3.", "3", 1 },
        { "k=\\sqrt3", "\\boxed{\\sqrt{3}}", 1 },
        { "5 \\text{ cm}", "$5$", 1 },
        { "12%", "$12\\%$", 1 },
        { "The answer is $.5$", "$0.5$", 1 },
        { "\\boxed{a=b=7}", "7", 1 },
        { "\\fbox{3} \\boxed{", "3", 0 },
        { "\\boxed 3", "3", 0 },
        { "nothing", "nothing", 1 },
        { "nothing", "3", 0 },
        { "$\\sqrt$", "$\\sqrt$", 1 },
        { "$\\frac$", "$\\frac$", 1 },
        { "$\\frac1$", "$\\frac1$", 1 },
        { "$\\dfrac{1}{2}$", "$\\tfrac12$", 1 },
        { "$90^\\circ$", "90", 1 },
        { "$\\left(1,2\\right)$", "$(1,2)$", 1 },
        { "x=1/2", "$\\frac{1}{2}$", 1 },
        { "x=01/2", "$\\frac{01}{2}$", 0 },
        { "x=-1/2", "$\\frac{-1}{2}$", 1 },
        { "$10\\text{ m}\\text{ s}$", "$10$", 0 },
        { "y = 3 \\n so", "3", 1 },
        { "the value 3.14, or 42", "42", 1 },
        { "3a", "3", 0 },
        { "$12$ and $13$", "$12$ and $13$", 1 },
        { "$5$\nthen $6$", "6", 1 },
        { "costs $5", "5", 0 },
        { "$5", "$5", 1 },
        { "$y=\\frac{3}4$", "$\\frac{3}{4}$", 0 },
        { "$\\frac1{72}$", "$\\frac{1}{72}$", 1 },
        { "1,000", "1000", 0 },
        { "abc=7", "7", 1 },
        { "$ab=7$", "$7$", 1 },
        { "$xyz=7$", "$7$", 1 },
        { "$αβ=7$", "$7$", 1 },
        { "\\boxed{x = 5}", "5", 1 },
        { "\\boxed{{1}}{2}", "{1}", 0 },
        { "$1.50$", "$1.5$", 0 },
        { "", "3", 0 },
        { "", "", 1 },
        { "$\\sqrtπ$", "$\\sqrt{π}$", 1 },
        { "10 \\%", "10", 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (answer_math_equal(cases[i].a, cases[i].b) != cases[i].equal)
            fail_msg("'%s' and '%s'", cases[i].a, cases[i].b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(find), cmocka_unit_test(bounded),  cmocka_unit_test(removed),
        cmocka_unit_test(cuts), cmocka_unit_test(stripped), cmocka_unit_test(math),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
