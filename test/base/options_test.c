/*
 * options_test.c - command lines by table: what is read, what is refused, what the help says
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <string.h>

#include "base/options.h"

static struct {
    bool verbose;
    int n;
    int64_t tokens;
    double rate;
    const char *out, *style;
    struct option_list sets;
} got;

static const char *const styles[] = { "plain", "fancy", NULL };

/* A command with an option of each kind. */
static const struct options *command(void)
{
    static struct option table[8];
    static struct options options = {
        .command = "lmtrain test",
        .arguments = "IN...",
        .summary = "Test options",
        .details = "More of it,\nwith an\nexample:\n  test -n 1\n  test\nEnd.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
        .min_arguments = 1,
        .max_arguments = 2,
    };

    table[0] = option_flag("verbose", &got.verbose, "say more");
    table[1] = option_int("number", &got.n, "N", 1, 10, "how many");
    table[2] = option_i64("tokens", &got.tokens, "N", 0, 0, "how long");
    table[3] = option_float("rate", &got.rate, "X", -1, 1, "how fast");
    table[4] =
        option_text("out", &got.out, "FILE",
                    "where to; a help that is long enough to need a second line, since it goes on "
                    "and on about what the option does");
    table[5] = option_choice("style", &got.style, "STYLE", styles, "plain or fancy");
    table[6] = option_list("set", &got.sets, "K=V", "change");
    table[7] = option_deprecated("count", &table[1], "0.4", "0.6");
    return &options;
}

/* Parse words (ended by NULL) behind the command's name. */
static int parse(const char *const *words, struct option_arguments *arguments, struct arena *arena,
                 struct err *err)
{
    char *argv[16] = { (char *)"test" };
    int argc = 1;

    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)words[argc - 1];
    memset(&got, 0, sizeof got);
    return options_parse(command(), argc, argv, arguments, arena, err);
}

#define WORDS(...) \
    (const char *const[]) \
    { \
        __VA_ARGS__, NULL \
    }

static void test_all_kinds(void **state)
{
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(parse(WORDS("in", "--verbose", "--number", "3", "--tokens=123456789012",
                                 "--rate", "-0.5", "--out", "x", "--set", "a=1", "--set=b=2", "-2"),
                           &arguments, &arena, &err),
                     0);
    assert_true(got.verbose);
    assert_int_equal(got.n, 3);
    assert_int_equal(got.tokens, 123456789012);
    assert_true(got.rate == -0.5);
    assert_string_equal(got.out, "x");
    assert_int_equal(got.sets.n, 2);
    assert_string_equal(got.sets.items[0], "a=1");
    assert_string_equal(got.sets.items[1], "b=2");
    assert_int_equal(arguments.n, 2);
    assert_string_equal(arguments.items[0], "in");
    assert_string_equal(arguments.items[1], "-2");
    assert_int_equal(parse(WORDS("--style", "fancy", "--out=", "--", "--verbose", "-"), &arguments,
                           &arena, &err),
                     0);
    assert_string_equal(got.style, "fancy");
    assert_string_equal(got.out, "");
    assert_false(got.verbose);
    assert_int_equal(arguments.n, 2);
    assert_string_equal(arguments.items[0], "--verbose");
    assert_string_equal(arguments.items[1], "-");
    arena_release(&arena);
}

static void test_mistakes(void **state)
{
    static const struct {
        const char *words[5];
        const char *text;
    } rows[] = {
        { { "in", "--verbos" }, "lmtrain test: unknown option --verbos (hint: --verbose)" },
        { { "in", "--styl=plain" }, "unknown option --styl=plain (hint: --style)" },
        { { "in", "--qqqqqqqq" }, "unknown option --qqqqqqqq (hint: -h lists all)" },
        { { "in", "-x" }, "unknown option -x" },
        { { "in", "-v" }, "unknown option -v" },
        { { "in", "-vn" }, "unknown option -vn" },
        { { "in", "--hel" }, "(hint: --help)" },
        { { "in", "--verbose=1" }, "--verbose takes no value" },
        { { "in", "--number" }, "--number needs a value (hint: --number N)" },
        { { "in", "--number" }, "--number needs a value" },
        { { "in", "--number", "0" }, "--number is 0, not a whole number from 1 to 10" },
        { { "in", "--number", "11" }, "--number is 11, not a whole number from 1 to 10" },
        { { "in", "--number", "2x" }, "--number is 2x, not a whole number from 1 to 10" },
        { { "in", "--number", "2.5" }, "--number is 2.5, not a whole number" },
        { { "in", "--tokens", "" }, "--tokens is , not a whole number" },
        { { "in", "--tokens", "9999999999999999999" }, "not a whole number" },
        { { "in", "--rate", "1.01" }, "--rate is 1.01, not a number from -1 to 1" },
        { { "in", "--rate", "nan" }, "--rate is nan, not a number from -1 to 1" },
        { { "in", "--style", "odd" }, "--style is odd, not one of plain, fancy" },
        { { NULL }, "an argument is missing (usage: lmtrain test IN...)" },
        { { "a", "b", "c" }, "unexpected argument c (usage: lmtrain test IN...)" },
    };
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct option_arguments arguments;
        struct err err = { 0 };

        assert_int_equal(parse(rows[i].words, &arguments, &arena, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        if (!strstr(err.text, rows[i].text))
            fail_msg("row %zu: \"%s\", not \"%s\"", i, err.text, rows[i].text);
    }
    arena_release(&arena);
}

static void test_help(void **state)
{
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct str help = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(parse(WORDS("--verbose", "-h", "--nonsense"), &arguments, &arena, &err),
                     OPTIONS_HELP);
    assert_int_equal(parse(WORDS("--help"), &arguments, &arena, &err), OPTIONS_HELP);
    assert_int_equal(parse(WORDS("--", "-h"), &arguments, &arena, &err), 0);
    options_help(command(), OPTIONS_HELP_WIDTH, &help);
    assert_string_equal(str_text(&help),
                        "usage: lmtrain test IN... [OPTIONS]\n"
                        "\n"
                        "Test options.\n"
                        "\n"
                        "options:\n"
                        "  --verbose                 say more\n"
                        "  --number N                how many\n"
                        "  --tokens N                how long\n"
                        "  --rate X                  how fast\n"
                        "  --out FILE                where to; a help that is long enough to need "
                        "a second line, since it\n"
                        "                            goes on and on about what the option does\n"
                        "  --style STYLE             plain or fancy\n"
                        "  --set K=V                 change\n"
                        "  --count N                 deprecated since 0.4: use --number; it will "
                        "be removed in 0.6\n"
                        "  -h, --help                show this\n"
                        "\n"
                        "More of it, with an example:\n"
                        "  test -n 1\n"
                        "  test\n"
                        "End.\n");
    str_release(&help);
    arena_release(&arena);
}

/* No line is wider than asked, whatever that is, and no word is lost. */
static void test_help_widths(void **state)
{
    struct str wide = { 0 }, help = { 0 };

    (void)state;
    options_help(command(), OPTIONS_HELP_WIDTH, &wide);
    for (int width = 40; width <= OPTIONS_HELP_WIDTH; width++) {
        const char *a = str_text(&wide), *b;

        str_clear(&help);
        options_help(command(), width, &help);
        b = str_text(&help);
        for (const char *line = b; *line; line += strcspn(line, "\n") + 1)
            if (strcspn(line, "\n") > (size_t)width)
                fail_msg("%d columns: %.*s", width, (int)strcspn(line, "\n"), line);
        while (*a || *b) {
            size_t n = strcspn(a += strspn(a, " \n"), " \n"),
                   m = strcspn(b += strspn(b, " \n"), " \n");

            if (n != m || memcmp(a, b, n) != 0)
                fail_msg("%d columns: %.20s is not %.20s", width, b, a);
            a += n;
            b += m;
        }
    }
    str_clear(&help);
    options_help(command(), 60, &help);
    assert_non_null(strstr(str_text(&help),
                           "\n  --out FILE\n"
                           "        where to; a help that is long enough to need a\n"
                           "        second line, since it goes on and on about what the\n"
                           "        option does\n"
                           "  --style STYLE\n"));
    str_release(&help);
    str_release(&wide);
}

/* A key of somewhere else: known as it stands, or nearly. */
static const char *suggest(const char *name, const char *value, bool exact, struct arena *arena)
{
    const char *known = "numbers";

    if (exact ? strcmp(name, known) != 0 : strncmp(name, "numb", 4) != 0)
        return NULL;
    return arena_printf(arena, "--set %s=%s", known, value ? value : "?");
}

static void test_suggestions(void **state)
{
    static const struct {
        const char *words[4];
        const char *hint;
    } rows[] = {
        { { "--numbers", "3" }, "(hint: --number)" }, /* one letter off */
        { { "--verboose" }, "(hint: --verbose)" },
        { { "--numb" }, "(hint: --number)" }, /* an option that is near, before a key that is */
        { { "--numbskull=7" }, "(hint: --set numbers=7)" },
        { { "--numbskull", "8" }, "(hint: --set numbers=8)" },
        { { "--numbskull", "--out" }, "(hint: --set numbers=?)" },
        { { "-numbskull" }, "(hint: -h lists all)" },
        { { "--qqqqqqq" }, "(hint: -h lists all)" },
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct options with = *command();

    (void)state;
    with.suggest = suggest;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *argv[8] = { (char *)"test", (char *)"in" };
        struct err err = { 0 };
        int argc = 2;

        for (int k = 0; rows[i].words[k]; k++)
            argv[argc++] = (char *)rows[i].words[k];
        assert_int_equal(options_parse(&with, argc, argv, &arguments, &arena, &err), -1);
        if (!strstr(err.text, rows[i].hint))
            fail_msg("%s: \"%s\"", rows[i].words[0], err.text);
    }
    arena_release(&arena);
}

static void test_deprecated(void **state)
{
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct str help = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(parse(WORDS("in", "--count", "3"), &arguments, &arena, &err), 0);
    assert_int_equal(got.n, 3);
    assert_int_equal(arguments.n_warnings, 1);
    assert_string_equal(arguments.warnings[0],
                        "--count is deprecated since 0.4, use --number; it will be "
                        "removed in 0.6");
    assert_int_equal(parse(WORDS("in", "--count=3", "--count=4"), &arguments, &arena, &err), 0);
    assert_int_equal(got.n, 4);
    assert_int_equal(arguments.n_warnings, 1);
    assert_int_equal(parse(WORDS("in", "--number", "3"), &arguments, &arena, &err), 0);
    assert_int_equal(arguments.n_warnings, 0);
    static const char *const both[][5] = { { "in", "--count=3", "--number=3", NULL },
                                           { "in", "--number=3", "--count=3", NULL } };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(parse(both[i], &arguments, &arena, &err), -1);
        assert_string_equal(err.text, "lmtrain test: --count and --number are both given: the "
                                      "former is the deprecated name of the latter (hint: leave "
                                      "--count out)");
    }
    assert_int_equal(parse(WORDS("in", "--count=11"), &arguments, &arena, &err), -1);
    assert_string_equal(err.text, "lmtrain test: --count is 11, not a whole number from 1 to 10");
    /* A slip is not corrected to an old name. */
    assert_int_equal(parse(WORDS("in", "--cuont=3"), &arguments, &arena, &err), -1);
    assert_string_equal(err.text, "lmtrain test: unknown option --cuont=3 (hint: --number)");
    options_help(command(), 100, &help);
    assert_non_null(strstr(str_text(&help), "  --count N                 deprecated since 0.4: use "
                                            "--number; it will be removed in 0.6\n"));
    str_release(&help);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_kinds),   cmocka_unit_test(test_deprecated),
        cmocka_unit_test(test_mistakes),    cmocka_unit_test(test_help),
        cmocka_unit_test(test_help_widths), cmocka_unit_test(test_suggestions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
