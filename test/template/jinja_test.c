/*
 * jinja_test.c - what jinja2 makes of three hundred small templates, and bounds
 *
 * golden/jinja.jsonl is written by scripts/golden/template.py.
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"
#include "template/jinja_impl.h"

/* Returns 0, or -1 with err: where parsing or rendering refuses. */
static int render(struct text template, const struct jinja_limits *limits,
                  const struct jinja_dict *variables, struct str *out, struct err *err)
{
    struct arena arena = { 0 };
    struct jinja jinja;

    if (jinja_parse(&jinja, "T", template, err) < 0)
        return -1;
    int status = jinja_render(&jinja, limits, variables, &arena, out, err);
    jinja_release(&jinja);
    arena_release(&arena);
    return status;
}

static struct jinja_value read_line(struct arena *arena, const char *line)
{
    struct jinja_value v;
    const char *problem;

    if (jinja_read_json(&v, text_of(line), arena, &problem) < 0)
        fail_msg("%s: %s", line, problem);
    return v;
}

/* ["template", "text"], or ["template"] where jinja2 refuses it. */
static int is_right(const struct jinja_list *golden, const struct jinja_dict *variables)
{
    struct text template = golden->items[0].s;
    struct str out = { 0 };
    struct err err = { 0 };
    int status = render(template, &jinja_limits, variables, &out, &err);
    struct text got = { str_text(&out), out.length };
    int right = golden->n == 1 ? status < 0 : status == 0 && text_equal(got, golden->items[1].s);

    if (!right)
        printf("%.*s\n    gives '%s'%s\n", (int)template.n, template.data, str_text(&out),
               status < 0 ? err.text : "");
    str_release(&out);
    return right;
}

static void all_is_as_jinja_has_it(void **state)
{
    struct arena arena = { 0 };
    char *data, *rest, *line;
    size_t n_bytes;
    struct err err;
    int n = 0, n_wrong = 0;

    (void)state;
    if (file_read("test/template/golden/jinja.jsonl", (size_t)1 << 20, ERR_DATA, &data, &n_bytes,
                  &err) < 0)
        fail_msg("%s", err.text);
    rest = data;
    struct jinja_value head = read_line(&arena, strsep(&rest, "\n"));
    const struct jinja_dict *variables =
        jinja_dict_find_text(head.dict, text_of("variables"))->dict;
    for (; (line = strsep(&rest, "\n")) && *line; n++)
        n_wrong += !is_right(read_line(&arena, line).list, variables);
    assert_int_equal(n_wrong, 0);
    assert_true(n >= 300);
    free(data);
    arena_release(&arena);
}

static void refused(const char *template, const char *says)
{
    static const struct jinja_limits narrow = { .steps = 50000, .bytes = 1 << 24, .depth = 100 };
    struct jinja_dict none = { 0 };
    struct str out = { 0 };
    struct err err = { 0 };

    str_add(&out, "before");
    assert_int_equal(render(text_of(template), &narrow, &none, &out, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_string_equal(str_text(&out), "before");
    if (!strstr(err.text, says))
        fail_msg("%s: '%s' does not say '%s'", template, err.text, says);
    str_release(&out);
}

/* Whatever makes text or lists asks for room before it takes it: the text at hand, those of the
 * macros around it and all values together stay below the limit. */
static void nothing_outgrows_its_limit(void **state)
{
    static const struct jinja_limits wide = { .steps = 1 << 24, .bytes = 1 << 24, .depth = 300 };
    static const char *const makers[] = {
        "{{ (['x' * 1000000] * 10000) | join }}",
        "{{ ([1] * 1000) | join('x' * 1000000) }}",
        "{{ ('x' * 1000000).join([1] * 1000) }}",
        "{{ ('x' * 100000) | replace('x', 'y' * 10000) }}",
        "{{ ('x' * 100000).replace('', 'y' * 10000) }}",
        "{{ ('\\n' * 100000) | indent('y' * 10000, true, true) }}",
        "{{ (['x' * 1000000] * 1000) | tojson }}",
        "{{ (['x' * 1000000] * 1000) | string }}",
        "{{ ([1] * 1000) | tojson(separators=['x' * 1000000, ':']) }}",
        "{{ {1: 1, 2: 2, 3: 3} | tojson(separators=[',', 'x' * 9000000]) }}",
        "{% set x = 'x' * 1000000 %}{{ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ "
        "x }}",
        "{% set x = 'x' * 1000000 %}{% for i in range(1000) %}{{ x }}{% endfor %}",
        "{% set x = 'x' * 1000000 %}{% set y %}{% for i in range(1000) %}{{ x }}{% endfor %}{% "
        "endset %}",
        /* Each macro's text waits for the one it calls. */
        "{% set x = 'x' * 1000000 %}{% macro m(n) %}{{ x }}{% if n %}{{ m(n - 1) }}{% endif %}{% "
        "endmacro %}"
        "{{ m(100) }}",
        "{% set x = 'x' * 1000000 %}{% macro m(n) %}{{ x ~ (m(n - 1) if n else '') }}{% endmacro "
        "%}{{ m(50) }}",
        "{% set ns = namespace(x='x' * 1000) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% "
        "endfor %}",
        "{{ [1] * 700000 * 2 }}",
        "{{ ([1] * 300000) | sort }}",
        "{{ ('x' * 9000000) | upper }}",
        "{{ ('x' * 9000000) | upper | reverse }}",
        "{{ ('x' * 9000000)[::-1] }}",
        "{{ range(10000000) }}",
        "{{ (range(1000) | map('string') | join('x' * 100000)) | length }}",
        "{{ range(9000) | map('replace', '1', 'x' * 1000000) | list | length }}",
        "{% filter replace('x', 'y' * 1000000) %}{{ 'x' * 1000000 }}{% endfilter %}",
    };
    struct rusage before, after;

    (void)state;
    assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
    for (int i = 0; i < (int)(sizeof makers / sizeof *makers); i++) {
        struct jinja_dict none = { 0 };
        struct str out = { 0 };
        struct err err = { 0 };

        if (render(text_of(makers[i]), &wide, &none, &out, &err) == 0)
            fail_msg("%s is not refused", makers[i]);
        if (!strstr(err.text, "more than 16777216 bytes"))
            fail_msg("%s: '%s'", makers[i], err.text);
        str_release(&out);
    }
    assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what was released */
    assert_in_range(after.ru_maxrss - before.ru_maxrss, 0, 96 << 10);
#endif
}

static void bounds(void **state)
{
    struct str deep = { 0 };

    (void)state;
    refused("{% for a in range(1000000000) %}{% endfor %}", "more than 50000 steps");
    refused("{% for a in range(999) %}{% for b in range(999) %}x{% endfor %}{% endfor %}", "steps");
    refused("{{ 'x' * 1000000000000 }}", "bytes");
    refused("{{ [1] * 1000000000000 }}", "bytes");
    refused("{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(99) %}"
            "{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "T:1: ");
    refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested deeper than 100");
    refused("{% set ns = namespace(x=[]) %}{% for i in range(900) %}{% set ns.x = [ns.x] %}"
            "{% endfor %}{{ ns.x }}",
            "nested deeper");
    refused("{{ x | map('map', 'map') }}{{ 9 ** 99 }}", "64 bits");
    /* Lists that hold the same one twice, sixty times. */
    refused("{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, "
            "ns.x] %}"
            "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
            "more than 50000 steps");
    refused("{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, "
            "ns.x] %}"
            "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x in [ns.y] }}{{ ns.x < ns.y }}",
            "more than 50000 steps");
    refused("{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
            "{% endfor %}{{ ns.x | tojson }}",
            "more than 50000 steps");
    struct str text = { 0 };
    for (int i = 0; i < 401; i++)
        str_add(&text, i == 200 ? "1" : i < 200 ? "(" : ")");
    str_printf(&deep, "{{ %s }}", str_text(&text));
    refused(str_text(&deep), "nested deeper than 100");
    str_clear(&text);
    str_clear(&deep);
    for (int i = 0; i < 200; i++)
        str_add(&text, "-");
    str_printf(&deep, "{{ %s1 }}", str_text(&text));
    refused(str_text(&deep), "nested deeper than 100");
    str_clear(&text);
    for (int i = 0; i < 200; i++)
        str_add(&text, "{% for x in x %}");
    refused(str_text(&text), "nested deeper than 100");
    str_clear(&text);
    for (int i = 0; i < 200; i++)
        str_add(&text, "{% if x %}");
    refused(str_text(&text), "nested deeper than 100");
    str_release(&text);
    str_release(&deep);
}

static void mistakes_have_a_place(void **state)
{
    (void)state;
    refused("a\n{{ x.y.z }}", "T:2: 'x' is undefined, and so has no 'y'");
    refused("\n\n{{ raise_exception('say why') }}",
            "T:3: the template refuses the conversation: say why");
    refused("{% if 1 %}\n{% else %}", "T:2: the template ends before {% endif %}");
    refused("{{ 1 | nothing }}", "T:1: the filter 'nothing' is not supported");
    refused("{% import 'x' as y %}", "{% import %} is not supported");
    refused("{% set l = [1] %}{{ l.append(2) }}", "must not modify a list");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_as_jinja_has_it),
        cmocka_unit_test(bounds),
        cmocka_unit_test(nothing_outgrows_its_limit),
        cmocka_unit_test(mistakes_have_a_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
