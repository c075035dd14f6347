/*
 * jinja_json.c - JSON to values, and values to JSON as json.dumps of Python writes it
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/jinja_impl.h"

struct reader {
    struct text s;
    size_t at;
    struct arena *arena;
    const char *problem;
    int depth;
};

static struct jinja_value fail(struct reader *r, const char *problem)
{
    if (!r->problem)
        r->problem = problem;
    return jinja_none();
}

static int peek(struct reader *r)
{
    while (r->at < r->s.n && strchr(" \t\r\n", r->s.data[r->at]) && r->s.data[r->at])
        r->at++;
    return r->at < r->s.n && !r->problem ? (unsigned char)r->s.data[r->at] : -1;
}

static int take(struct reader *r, char c)
{
    int is = peek(r) == c;

    r->at += (size_t)is;
    return is;
}

static int read_hex(struct reader *r, uint32_t *code)
{
    *code = 0;
    if (r->s.n - r->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int c = (unsigned char)r->s.data[r->at++];

        if (!isxdigit(c))
            return -1;
        *code = *code * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return 0;
}

/* \uXXXX, of which \u was read; a pair of surrogates is one character. */
static size_t read_escape(struct reader *r, char *out)
{
    uint32_t code, low;

    if (read_hex(r, &code) < 0) {
        fail(r, "a \\u without four digits");
        return 0;
    }
    if (code >= 0xd800 && code < 0xdc00 && r->s.n - r->at >= 6 && r->s.data[r->at] == '\\' &&
        r->s.data[r->at + 1] == 'u') {
        r->at += 2;
        if (read_hex(r, &low) == 0 && low >= 0xdc00 && low < 0xe000)
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code >= 0xd800 && code < 0xe000) {
        fail(r, "an unpaired surrogate");
        return 0;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 63));
    out[0] = (char)((0xf00 >> n & 0xff) | code);
    return n;
}

/* What an escape makes is never longer than it. */
static struct jinja_value read_string(struct reader *r)
{
    size_t begin = ++r->at, n = 0;

    while (r->at < r->s.n && r->s.data[r->at] != '"')
        r->at += r->s.data[r->at] == '\\' ? 2 : 1;
    if (r->at >= r->s.n)
        return fail(r, "a string that does not end");
    size_t end = r->at;
    char *out = arena_alloc(r->arena, end - begin + 1);
    for (r->at = begin; r->at < end && !r->problem;) {
        static const char plain[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
        char c = r->s.data[r->at++];

        if ((unsigned char)c < 0x20)
            return fail(r, "a control character in a text");
        if (c == '\\') {
            c = r->s.data[r->at++];
            const char *found = c ? strchr(plain, c) : NULL;

            if (c == 'u') {
                n += read_escape(r, out + n);
                continue;
            }
            if (!found)
                return fail(r, "an escape that JSON does not have");
            c = means[found - plain];
        }
        out[n++] = c;
    }
    r->at = end + 1;
    return jinja_string((struct text){ out, n });
}

static struct jinja_value read_number(struct reader *r)
{
    char digits[64], *end;
    size_t n = 0;
    int is_float = 0;

    while (r->at < r->s.n && n + 1 < sizeof digits && r->s.data[r->at] &&
           strchr("+-.eE0123456789", r->s.data[r->at])) {
        is_float |= strchr(".eE", r->s.data[r->at]) != NULL;
        digits[n++] = r->s.data[r->at++];
    }
    digits[n] = 0;
    size_t first = digits[0] == '-';
    if (!isdigit((unsigned char)digits[first]) ||
        (digits[first] == '0' && isdigit((unsigned char)digits[first + 1])))
        return fail(r, "an invalid number");
    errno = 0;
    struct jinja_value v = jinja_int(is_float ? 0 : strtoll(digits, &end, 10));
    /* As model_max_length of 1e30 without an exponent, which many folders have. */
    if (is_float || errno)
        v = jinja_float(strtod(digits, &end));
    if (*end)
        return fail(r, "an invalid number");
    return v;
}

static struct jinja_value read_value(struct reader *r);

static struct jinja_value read_list(struct reader *r)
{
    struct jinja_value v = { JINJA_LIST, { .list = arena_new(r->arena, struct jinja_list) } };

    r->at++;
    if (take(r, ']'))
        return v;
    do
        jinja_list_add(r->arena, v.list, read_value(r));
    while (take(r, ','));
    return take(r, ']') ? v : fail(r, "a list that does not end");
}

static int by_text(const void *a, const void *b)
{
    struct text x = ((const struct jinja_pair *)a)->key.s,
                y = ((const struct jinja_pair *)b)->key.s;
    int order = x.n && y.n ? memcmp(x.data, y.data, x.n < y.n ? x.n : y.n) : 0;

    return order ? order : x.n < y.n ? -1 : x.n > y.n;
}

/* Found by sorting, as an object may have many. */
static int has_key_twice(struct reader *r, const struct jinja_dict *dict)
{
    struct jinja_pair *sorted = arena_array(r->arena, struct jinja_pair, dict->n);

    memcpy(sorted, dict->items, sizeof *sorted * (size_t)dict->n);
    qsort(sorted, (size_t)dict->n, sizeof *sorted, by_text);
    for (int i = 1; i < dict->n; i++)
        if (text_equal(sorted[i - 1].key.s, sorted[i].key.s))
            return 1;
    return 0;
}

static struct jinja_value read_dict(struct reader *r)
{
    struct jinja_dict *dict;

    struct jinja_value v = { JINJA_DICT, { .dict = arena_new(r->arena, struct jinja_dict) } };

    r->at++;
    if (take(r, '}'))
        return v;
    do {
        if (peek(r) != '"')
            return fail(r, "an object's key is not a string");
        struct jinja_value key = read_string(r);
        if (!take(r, ':'))
            return fail(r, "an object's key without ':'");
        struct jinja_value value = read_value(r);
        dict = v.dict;
        dict->items =
            arena_grow(r->arena, dict->items, sizeof *dict->items, &dict->capacity, dict->n + 1);
        dict->items[dict->n++] = (struct jinja_pair){ key, value };
    } while (take(r, ','));
    if (!take(r, '}'))
        return fail(r, "an object that does not end");
    return has_key_twice(r, v.dict) ? fail(r, "a key that an object has twice") : v;
}

static struct jinja_value read_value(struct reader *r)
{
    static const char *const words[] = { "true", "false", "null" };
    struct jinja_value v;
    int c = peek(r);

    if (c == '"')
        return read_string(r);
    if (c == '[' || c == '{') {
        if (++r->depth > JINJA_JSON_DEPTH)
            return fail(r, "nested too deep");
        v = c == '[' ? read_list(r) : read_dict(r);
        r->depth--;
        return v;
    }
    for (int i = 0; i < 3 && c >= 0; i++) {
        size_t n = strlen(words[i]);

        if (r->s.n - r->at >= n && !memcmp(r->s.data + r->at, words[i], n)) {
            r->at += n;
            return i == 2 ? jinja_none() : jinja_bool(i == 0);
        }
    }
    return c < 0 ? fail(r, "a value is missing") : read_number(r);
}

int jinja_read_json(struct jinja_value *out, struct text json, struct arena *arena,
                    const char **problem)
{
    struct reader r = { .s = json, .arena = arena };
    struct jinja_value v = read_value(&r);

    if (peek(&r) >= 0)
        fail(&r, "more behind the end");
    *problem = r.problem;
    if (r.problem)
        return -1;
    *out = v;
    return 0;
}

static void add_json_text(struct text s, int ascii, struct str *out)
{
    str_add_char(out, '"');
    for (size_t at = 0; at < s.n;) {
        static const char plain[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
        uint32_t c;
        size_t step = text_step(s, at, &c);
        const char *found = c && c < 0x80 ? strchr(plain, (int)c) : NULL;

        if (found)
            str_printf(out, "\\%c", names[found - plain]);
        else if (c < 0x20 || (ascii && c > 0x7e && c < 0x10000))
            str_printf(out, "\\u%04x", c);
        else if (ascii && c > 0x7e)
            str_printf(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                       0xdc00 + ((c - 0x10000) & 0x3ff));
        else
            str_add_bytes(out, s.data + at, step);
        at += step;
    }
    str_add_char(out, '"');
}

static void add_break(const struct jinja_json_style *style, int level, struct str *out)
{
    if (style->indent < 0)
        return;
    str_add_char(out, '\n');
    for (int i = 0; i < level * style->indent; i++)
        str_add_char(out, ' ');
}

static void add_comma(struct jinja_render *r, const struct jinja_json_style *style, int i,
                      struct str *out)
{
    if (i)
        jinja_add(r, out, style->comma);
}

static int by_key(const void *a, const void *b, void *context)
{
    return jinja_compare(context, &((const struct jinja_pair *)a)->key,
                         &((const struct jinja_pair *)b)->key);
}

static void add_key(struct jinja_render *r, const struct jinja_value *key,
                    const struct jinja_json_style *style, struct str *out)
{
    if (key->kind == JINJA_STRING) {
        if (jinja_step(r, key->s.n) == 0 && jinja_reserve(r, out, 6 * key->s.n) == 0)
            add_json_text(key->s, style->ascii, out);
    } else if (jinja_is_number(key) || key->kind == JINJA_NONE) {
        str_add_char(out, '"');
        jinja_add_json(r, key, style, 0, out);
        str_add_char(out, '"');
    } else {
        jinja_fail(r, "JSON has no keys that are %s", jinja_kind_name(key));
    }
}

static void add_json_dict(struct jinja_render *r, const struct jinja_dict *dict,
                          const struct jinja_json_style *style, int level, struct str *out)
{
    struct jinja_pair *pairs = dict->items;

    if (style->sort && dict->n) {
        if (jinja_reserve(r, NULL, sizeof *pairs * (size_t)dict->n) < 0)
            return;
        pairs = arena_array(r->arena, struct jinja_pair, dict->n);
        memcpy(pairs, dict->items, sizeof *pairs * (size_t)dict->n);
        qsort_r(pairs, (size_t)dict->n, sizeof *pairs, by_key, r);
    }
    str_add_char(out, '{');
    for (int i = 0; i < dict->n && !r->failed; i++) {
        add_comma(r, style, i, out);
        add_break(style, level + 1, out);
        add_key(r, &pairs[i].key, style, out);
        jinja_add(r, out, style->colon);
        jinja_add_json(r, &pairs[i].value, style, level + 1, out);
    }
    if (dict->n)
        add_break(style, level, out);
    str_add_char(out, '}');
}

static void add_json_float(double f, struct str *out)
{
    char buffer[64];

    if (isnan(f) || isinf(f))
        str_add(out, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    else
        str_add(out, jinja_print_float(buffer, sizeof buffer, f));
}

void jinja_add_json(struct jinja_render *r, const struct jinja_value *v,
                    const struct jinja_json_style *style, int level, struct str *out)
{
    size_t cost = 16 + (v->kind == JINJA_STRING ? v->s.n : 0) +
                  (style->indent > 0 ? (size_t)level * (size_t)style->indent : 0);

    if (level > JINJA_JSON_DEPTH * 2)
        jinja_fail(r, "a value nested too deep for JSON");
    /* An escape has up to six bytes for one. */
    if (jinja_step(r, cost) < 0 || jinja_reserve(r, out, 6 * cost + 64) < 0)
        return;
    switch (v->kind) {
    case JINJA_NONE:
        str_add(out, "null");
        break;
    case JINJA_BOOL:
        str_add(out, v->i ? "true" : "false");
        break;
    case JINJA_INT:
        str_printf(out, "%lld", (long long)v->i);
        break;
    case JINJA_FLOAT:
        add_json_float(v->f, out);
        break;
    case JINJA_STRING:
        add_json_text(v->s, style->ascii, out);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        str_add_char(out, '[');
        for (int i = 0; i < v->list->n && !r->failed; i++) {
            add_comma(r, style, i, out);
            add_break(style, level + 1, out);
            jinja_add_json(r, &v->list->items[i], style, level + 1, out);
        }
        if (v->list->n)
            add_break(style, level, out);
        str_add_char(out, ']');
        break;
    case JINJA_DICT:
        add_json_dict(r, v->dict, style, level, out);
        break;
    default:
        jinja_fail(r, "%s cannot become JSON", jinja_kind_name(v));
    }
}
