/*
 * jinja_json.c - JSON to values, and values to JSON as json.dumps of Python writes it
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "template/jinja_impl.h"

/* ---- reading ---- */

struct jinja_json_reader {
    struct json_reader json;
    int depth;
};

static struct jinja_value copy_string(struct jinja_json_reader *r, struct json_span span)
{
    char *out = arena_alloc(r->json.arena, span.n_bytes + 1);

    return jinja_string((struct text){ out, json_decode(span, out) });
}

static struct jinja_value read_number(struct jinja_json_reader *r, struct json_span span)
{
    const char *digits = arena_strndup(r->json.arena, span.text, span.n_bytes);
    bool is_float = digits[strcspn(digits, ".eE")] != '\0';

    errno = 0;
    struct jinja_value v = jinja_int(is_float ? 0 : strtoll(digits, NULL, 10));
    /* As model_max_length of 1e30 without an exponent, which many folders have. */
    return is_float || errno ? jinja_float(strtod(digits, NULL)) : v;
}

static struct jinja_value read_scalar(struct jinja_json_reader *r)
{
    struct json_span span = json_scalar(&r->json);

    switch (*span.text) {
    case '\0': /* a problem */
    case 'n':
        return jinja_none();
    case 't':
    case 'f':
        return jinja_bool(*span.text == 't');
    default:
        return read_number(r, span);
    }
}

static struct jinja_value read_value(struct jinja_json_reader *r);

static struct jinja_value read_list(struct jinja_json_reader *r)
{
    struct arena *arena = r->json.arena;
    struct jinja_value v = { JINJA_LIST, { .list = arena_new(arena, struct jinja_list) } };

    json_open(&r->json, '[');
    while (json_next(&r->json, ']'))
        jinja_list_add(arena, v.list, read_value(r));
    return v;
}

static int by_text(const void *a, const void *b)
{
    struct text x = ((const struct jinja_pair *)a)->key.s,
                y = ((const struct jinja_pair *)b)->key.s;
    int order = x.n && y.n ? memcmp(x.data, y.data, x.n < y.n ? x.n : y.n) : 0;

    return order ? order : x.n < y.n ? -1 : x.n > y.n;
}

/* Found by sorting, as an object may have many. */
static bool has_key_twice(struct arena *arena, const struct jinja_dict *dict)
{
    struct jinja_pair *sorted = arena_array(arena, struct jinja_pair, dict->n);

    if (dict->n)
        memcpy(sorted, dict->items, sizeof *sorted * (size_t)dict->n);
    qsort(sorted, (size_t)dict->n, sizeof *sorted, by_text);
    for (int i = 1; i < dict->n; i++)
        if (text_equal(sorted[i - 1].key.s, sorted[i].key.s))
            return true;
    return false;
}

static struct jinja_value read_dict(struct jinja_json_reader *r)
{
    struct arena *arena = r->json.arena;
    struct jinja_dict *dict = arena_new(arena, struct jinja_dict);

    json_open(&r->json, '{');
    while (json_next(&r->json, '}')) {
        struct jinja_value key = copy_string(r, json_key_span(&r->json)), value = read_value(r);

        dict->items =
            arena_grow(arena, dict->items, sizeof *dict->items, &dict->capacity, dict->n + 1);
        dict->items[dict->n++] = (struct jinja_pair){ key, value };
    }
    if (!r->json.problem && has_key_twice(arena, dict))
        json_fail(&r->json, "a key that an object has twice");
    return (struct jinja_value){ JINJA_DICT, { .dict = dict } };
}

static struct jinja_value read_value(struct jinja_json_reader *r)
{
    enum json_kind kind = json_peek(&r->json);

    if (kind == JSON_STRING)
        return copy_string(r, json_string_span(&r->json));
    if (kind != JSON_ARRAY && kind != JSON_OBJECT)
        return read_scalar(r);
    if (r->depth == JINJA_JSON_DEPTH) {
        json_fail(&r->json, "values are nested too deep");
        return jinja_none();
    }
    r->depth++;
    struct jinja_value v = kind == JSON_ARRAY ? read_list(r) : read_dict(r);
    r->depth--;
    return v;
}

int jinja_read_json(struct jinja_value *out, struct text json, struct arena *arena,
                    const char **problem)
{
    struct jinja_json_reader r = { 0 };

    json_reader_init(&r.json, json.data, json.n, arena);
    r.json.any_bytes = true;
    struct jinja_value v = read_value(&r);
    int status = json_end(&r.json);
    *problem = r.json.problem;
    if (!status)
        *out = v;
    return status;
}

/* ---- writing ---- */

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
