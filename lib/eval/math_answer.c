/*
 * math_answer.c - whether two mathematical answers are the same, by the rules of MATH and AGIEval
 *
 * A chain of rewritings of text in the order in which the references have it (Hendrycks et al.
 * 2021, math_equivalence.py; AGIEval, post_process.py). Where Python would have raised an
 * exception the normal form fails, and the answers are compared as they are.
 */
#include "eval/answer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

static void set(struct str *text, const char *bytes, size_t n)
{
    struct str fresh = { 0 };

    str_add_bytes(&fresh, bytes, n);
    str_release(text);
    *text = fresh;
}

static void replace(struct str *text, const char *old, const char *fresh)
{
    struct str out = { 0 };
    const char *at = str_text(text), *next;

    for (; (next = strstr(at, old)); at = next + strlen(old)) {
        str_add_bytes(&out, at, (size_t)(next - at));
        str_add(&out, fresh);
    }
    str_add(&out, at);
    str_release(text);
    *text = out;
}

static const char *find_last(const char *text, const char *part)
{
    const char *last = NULL;

    for (const char *at = text; (at = strstr(at, part)); at++)
        last = at;
    return last;
}

/* Behind the last '=', without leading blanks. */
static void take_right_side(struct str *answer)
{
    const char *equals = strrchr(str_text(answer), '=');

    if (!equals)
        return;
    equals++;
    equals += strspn(equals, " ");
    set(answer, equals, strlen(equals));
}

/* ---- the answer in a text ---- */

/* Returns 0 where there is none. */
static int take_boxed(const char *text, struct str *answer)
{
    const char *begin = find_last(text, "\\boxed");
    int depth = 0;

    if (strncmp(begin, "\\boxed{", 7) != 0)
        return 0;
    for (const char *at = begin; *at; at++) {
        depth += *at == '{';
        if (*at == '}' && --depth == 0) {
            set(answer, begin + 7, (size_t)(at - begin - 7));
            take_right_side(answer);
            return 1;
        }
    }
    return 0;
}

static int find_pattern(const char *pattern, const char *text, struct str *answer)
{
    struct answer_pattern *p;
    struct err err;

    if (answer_pattern_create(&p, pattern, &err) < 0)
        return 0;
    str_clear(answer);
    int found = answer_pattern_find(p, text, strlen(text), -1, answer);
    answer_pattern_destroy(p);
    return found;
}

static int take_answer(const char *text, struct str *answer)
{
    if (strstr(text, "\\boxed"))
        return take_boxed(text, answer);
    if (find_pattern("\\$(.*)\\$", text, answer)) {
        take_right_side(answer);
        if (answer->length)
            return 1;
    }
    if (!strchr(text, '='))
        return find_pattern("(?:\\$)?\\d+(?:\\.\\d+)?(?![\\w\\d])", text, answer);
    set(answer, text, strlen(text));
    take_right_side(answer);
    size_t n = answer->length;
    const char *bytes = str_text(answer);
    while (n && bytes[n - 1] == '.')
        n--;
    const char *line_end = memmem(bytes, n, "\\n", 2);
    set(answer, bytes, line_end ? (size_t)(line_end - bytes) : n);
    return 1;
}

/* ---- the normal form ---- */

/* Bytes of the character at text. */
static size_t character(const char *text)
{
    size_t n = 1;

    while (((unsigned char)text[n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* sqrt3 to sqrt{3}; -1 where nothing stands behind a root. */
static int fix_roots(struct str *text)
{
    struct str out = { 0 };
    const char *at = str_text(text), *root;

    for (; (root = strstr(at, "\\sqrt")); at = root) {
        str_add_bytes(&out, at, (size_t)(root - at));
        root += strlen("\\sqrt");
        if (!*root || !strncmp(root, "\\sqrt", 5)) {
            str_release(&out);
            return -1;
        }
        str_add(&out, "\\sqrt");
        if (*root == '{')
            continue;
        str_printf(&out, "{%.*s}", (int)character(root), root);
        root += character(root);
    }
    str_add(&out, at);
    str_release(text);
    *text = out;
    return 0;
}

/* One fraction's part, from behind "\frac" to end, written with braces. 0: too short to be one. */
static int fix_fraction(const char *part, const char *end, struct str *out)
{
    if (part == end)
        return -1;
    if (*part == '{') {
        str_add_bytes(out, part, (size_t)(end - part));
        return 1;
    }
    const char *second = part + character(part);
    if (second >= end)
        return 0;
    const char *rest = second + character(second);
    if (*second == '{')
        str_printf(out, "{%.*s}%.*s", (int)(second - part), part, (int)(end - second), second);
    else
        str_printf(out, "{%.*s}{%.*s}%.*s", (int)(second - part), part, (int)(rest - second),
                   second, (int)(end - rest), rest);
    return 1;
}

/* \frac12 to \frac{1}{2}; unchanged where one is too short, -1 where one is empty. */
static int fix_fractions(struct str *text)
{
    struct str out = { 0 };
    const char *at = str_text(text), *next = strstr(at, "\\frac");
    int status = 1;

    str_add_bytes(&out, at, next ? (size_t)(next - at) : strlen(at));
    while (next && status > 0) {
        const char *part = next + strlen("\\frac");

        next = strstr(part, "\\frac");
        str_add(&out, "\\frac");
        status = fix_fraction(part, next ? next : part + strlen(part), &out);
    }
    if (status > 0) {
        str_release(text);
        *text = out;
    } else {
        str_release(&out);
    }
    return status < 0 ? -1 : 0;
}

/* Whether text is what Python prints of some integer. */
static bool is_integer(const char *text, size_t n)
{
    size_t sign = n && *text == '-', digits = n - sign;

    if (!digits || (text[sign] == '0' && (digits > 1 || sign)))
        return false;
    for (size_t i = sign; i < n; i++)
        if (!isdigit((unsigned char)text[i]))
            return false;
    return true;
}

/* 1/2 to \frac{1}{2} */
static void fix_slash(struct str *text)
{
    const char *bytes = str_text(text), *slash = strchr(bytes, '/');
    struct str out = { 0 };

    if (!slash || strchr(slash + 1, '/') || !is_integer(bytes, (size_t)(slash - bytes)) ||
        !is_integer(slash + 1, strlen(slash + 1)))
        return;
    str_printf(&out, "\\frac{%.*s}{%s}", (int)(slash - bytes), bytes, slash + 1);
    str_release(text);
    *text = out;
}

static int remove_units(struct str *text)
{
    const char *units = strstr(str_text(text), "\\text{ ");

    if (!units)
        return 0;
    if (strstr(units + 1, "\\text{ "))
        return -1;
    set(text, str_text(text), (size_t)(units - str_text(text)));
    return 0;
}

/* "k = 3": what stands behind a short name and the one '='. Characters, not bytes, are counted. */
static void drop_name(struct str *text)
{
    const char *bytes = str_text(text), *equals = strchr(bytes, '=');
    size_t n_characters = 0;

    if (!equals || strchr(equals + 1, '='))
        return;
    for (const char *at = bytes; at < equals; at++)
        n_characters += ((unsigned char)*at & 0xc0) != 0x80;
    if (n_characters <= 2)
        set(text, equals + 1, strlen(equals + 1));
}

static int normalize(struct str *s)
{
    static const char *const before[][2] = {
        { "\n", "" },        { "\\!", "" },    { "\\\\", "\\" },  { "tfrac", "frac" },
        { "dfrac", "frac" }, { "\\left", "" }, { "\\right", "" }, { "^{\\circ}", "" },
        { "^\\circ", "" },   { "\\$", "" },
    };
    static const char *const after[][2] = { { "\\%", "" }, { " .", " 0." }, { "{.", "{0." } };

    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        replace(s, before[i][0], before[i][1]);
    if (remove_units(s) < 0)
        return -1;
    for (size_t i = 0; i < sizeof after / sizeof *after; i++)
        replace(s, after[i][0], after[i][1]);
    if (!s->length)
        return 0;
    if (str_text(s)[0] == '.') {
        struct str zero = { 0 };

        str_printf(&zero, "0%s", str_text(s));
        str_release(s);
        *s = zero;
    }
    drop_name(s);
    if (fix_roots(s) < 0)
        return -1;
    replace(s, " ", "");
    if (fix_fractions(s) < 0)
        return -1;
    if (!strcmp(str_text(s), "0.5"))
        set(s, "\\frac{1}{2}", strlen("\\frac{1}{2}"));
    fix_slash(s);
    return 0;
}

static void copy(struct str *to, const struct str *from)
{
    str_add_bytes(to, str_text(from), from->length);
}

bool answer_math_equal(const char *a, const char *b)
{
    struct str answers[2] = { { 0 }, { 0 } }, normal[2] = { { 0 }, { 0 } };
    bool has_a = take_answer(a, &answers[0]), has_b = take_answer(b, &answers[1]);
    int equal = !has_a && !has_b;

    if (has_a && has_b) {
        copy(&normal[0], &answers[0]);
        copy(&normal[1], &answers[1]);
        int failed = normalize(&normal[0]) < 0 || normalize(&normal[1]) < 0;
        const struct str *both = failed ? answers : normal;
        equal = !strcmp(str_text(&both[0]), str_text(&both[1]));
    }
    for (int i = 0; i < 2; i++) {
        str_release(&answers[i]);
        str_release(&normal[i]);
    }
    return equal;
}
