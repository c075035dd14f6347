/*
 * jinja_value.c - what values are equal to, ordered by, printed as and made of
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "template/jinja_impl.h"

#define KEY_COMPARISONS_MAX 4096
#define NESTED_MAX 100 /* values in values; parser and JSON make no deeper ones, but loops can */

struct jinja_value jinja_undefined(struct text what)
{
    return (struct jinja_value){ JINJA_UNDEFINED, { .s = what } };
}

struct jinja_value jinja_none(void)
{
    return (struct jinja_value){ JINJA_NONE, { .i = 0 } };
}

struct jinja_value jinja_bool(int b)
{
    return (struct jinja_value){ JINJA_BOOL, { .i = b != 0 } };
}

struct jinja_value jinja_int(int64_t i)
{
    return (struct jinja_value){ JINJA_INT, { .i = i } };
}

struct jinja_value jinja_float(double f)
{
    return (struct jinja_value){ JINJA_FLOAT, { .f = f } };
}

struct jinja_value jinja_string(struct text s)
{
    return (struct jinja_value){ JINJA_STRING, { .s = s } };
}

struct jinja_value jinja_literal(const char *text)
{
    return jinja_string(text_of(text));
}

struct jinja_value jinja_new_list(struct jinja_render *r)
{
    return (struct jinja_value){ JINJA_LIST, { .list = arena_new(r->arena, struct jinja_list) } };
}

struct jinja_value jinja_new_dict(struct jinja_render *r)
{
    return (struct jinja_value){ JINJA_DICT, { .dict = arena_new(r->arena, struct jinja_dict) } };
}

struct jinja_value jinja_copy_string(struct jinja_render *r, const char *data, size_t n)
{
    if (jinja_step(r, n) < 0 || jinja_reserve(r, NULL, n) < 0)
        return jinja_literal("");
    char *copy = arena_alloc(r->arena, n + 1);
    if (n)
        memcpy(copy, data, n);
    return jinja_string((struct text){ copy, n });
}

void jinja_list_add(struct arena *arena, struct jinja_list *list, struct jinja_value value)
{
    list->items = arena_grow(arena, list->items, sizeof *list->items, &list->capacity, list->n + 1);
    list->items[list->n++] = value;
}

struct jinja_value *jinja_dict_find(const struct jinja_dict *dict, struct jinja_value key)
{
    for (int i = 0; i < dict->n; i++)
        if (jinja_equal(NULL, &dict->items[i].key, &key))
            return &dict->items[i].value;
    return NULL;
}

struct jinja_value *jinja_dict_find_text(const struct jinja_dict *dict, struct text key)
{
    for (int i = 0; i < dict->n; i++)
        if (dict->items[i].key.kind == JINJA_STRING && text_equal(dict->items[i].key.s, key))
            return &dict->items[i].value;
    return NULL;
}

void jinja_dict_set(struct arena *arena, struct jinja_dict *dict, struct jinja_value key,
                    struct jinja_value value)
{
    struct jinja_value *found = jinja_dict_find(dict, key);

    if (found) {
        *found = value;
        return;
    }
    dict->items = arena_grow(arena, dict->items, sizeof *dict->items, &dict->capacity, dict->n + 1);
    dict->items[dict->n++] = (struct jinja_pair){ key, value };
}

const char *jinja_kind_name(const struct jinja_value *v)
{
    static const char *const names[] = { "nothing",   "undefined", "none", "bool",   "int",
                                         "float",     "text",      "list", "tuple",  "dict",
                                         "namespace", "macro",     "loop", "method", "function" };

    return names[v->kind];
}

bool jinja_is_number(const struct jinja_value *v)
{
    return v->kind == JINJA_BOOL || v->kind == JINJA_INT || v->kind == JINJA_FLOAT;
}

double jinja_number(const struct jinja_value *v)
{
    return v->kind == JINJA_FLOAT ? v->f : (double)v->i;
}

bool jinja_is_true(const struct jinja_value *v)
{
    switch (v->kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
    case JINJA_INT:
        return v->i != 0;
    case JINJA_FLOAT:
        return v->f != 0;
    case JINJA_STRING:
        return v->s.n > 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v->list->n > 0;
    case JINJA_DICT:
        return v->dict->n > 0;
    default:
        return true;
    }
}

static bool is_sequence(const struct jinja_value *v)
{
    return v->kind == JINJA_LIST || v->kind == JINJA_TUPLE;
}

/* One comparison of values, and of those in them. */
struct jinja_comparison {
    struct jinja_render *r; /* or NULL */
    int depth, n_done;
};

static int equal(struct jinja_comparison *c, const struct jinja_value *a,
                 const struct jinja_value *b);

static int equal_dicts(struct jinja_comparison *c, const struct jinja_dict *a,
                       const struct jinja_dict *b)
{
    if (a->n != b->n)
        return 0;
    for (int i = 0; i < a->n; i++) {
        const struct jinja_value *other = jinja_dict_find(b, a->items[i].key);

        if (!other || !equal(c, &a->items[i].value, other))
            return 0;
    }
    return 1;
}

static int equal_lists(struct jinja_comparison *c, const struct jinja_list *a,
                       const struct jinja_list *b)
{
    if (a->n != b->n)
        return 0;
    for (int i = 0; i < a->n; i++)
        if (!equal(c, &a->items[i], &b->items[i]))
            return 0;
    return 1;
}

static bool has_room(struct jinja_comparison *c)
{
    if (c->depth > NESTED_MAX)
        return false;
    return c->r ? jinja_step(c->r, 0) == 0 : c->n_done++ < KEY_COMPARISONS_MAX;
}

static int equal(struct jinja_comparison *c, const struct jinja_value *a,
                 const struct jinja_value *b)
{
    int is;

    if (jinja_is_number(a) && jinja_is_number(b))
        return a->kind == JINJA_FLOAT || b->kind == JINJA_FLOAT ? jinja_number(a) == jinja_number(b)
                                                                : a->i == b->i;
    if (a->kind != b->kind || !has_room(c))
        return 0;
    switch (a->kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return 1;
    case JINJA_STRING:
        return text_equal(a->s, b->s);
    case JINJA_LIST:
    case JINJA_TUPLE:
        c->depth++;
        is = a->list == b->list || equal_lists(c, a->list, b->list);
        c->depth--;
        return is;
    case JINJA_DICT:
        c->depth++;
        is = a->dict == b->dict || equal_dicts(c, a->dict, b->dict);
        c->depth--;
        return is;
    case JINJA_GLOBAL:
        return a->global == b->global;
    default:
        return a->list == b->list;
    }
}

bool jinja_equal(struct jinja_render *r, const struct jinja_value *a, const struct jinja_value *b)
{
    struct jinja_comparison c = { .r = r };

    return equal(&c, a, b);
}

int jinja_compare(struct jinja_render *r, const struct jinja_value *a, const struct jinja_value *b)
{
    if (jinja_is_number(a) && jinja_is_number(b)) {
        double x = jinja_number(a), y = jinja_number(b);

        if (a->kind != JINJA_FLOAT && b->kind != JINJA_FLOAT)
            return a->i < b->i ? -1 : a->i > b->i;
        return x < y ? -1 : x > y;
    }
    if (a->kind == JINJA_STRING && b->kind == JINJA_STRING) {
        /* UTF-8 sorts as its code points do. */
        size_t n = a->s.n < b->s.n ? a->s.n : b->s.n;
        int order = n ? memcmp(a->s.data, b->s.data, n) : 0;

        return order ? order : a->s.n < b->s.n ? -1 : a->s.n > b->s.n;
    }
    if (is_sequence(a) && a->kind == b->kind && ++r->depth < r->limits->depth) {
        int order = 0;

        for (int i = 0; !order && i < a->list->n && i < b->list->n; i++)
            if (!jinja_equal(r, &a->list->items[i], &b->list->items[i]))
                order = jinja_compare(r, &a->list->items[i], &b->list->items[i]);
        r->depth--;
        return order ? order : a->list->n < b->list->n ? -1 : a->list->n > b->list->n;
    }
    jinja_fail(r, "%s and %s have no order", jinja_kind_name(a), jinja_kind_name(b));
    return 0;
}

bool jinja_contains(struct jinja_render *r, const struct jinja_value *a,
                    const struct jinja_value *b)
{
    switch (b->kind) {
    case JINJA_STRING:
        if (a->kind == JINJA_STRING)
            return jinja_step(r, b->s.n) == 0 && text_find(b->s, a->s, 0) >= 0;
        jinja_fail(r, "%s cannot be part of a string", jinja_kind_name(a));
        return false;
    case JINJA_LIST:
    case JINJA_TUPLE:
        jinja_step(r, 64 * (size_t)b->list->n);
        for (int i = 0; i < b->list->n; i++)
            if (jinja_equal(r, a, &b->list->items[i]))
                return true;
        return false;
    case JINJA_DICT:
        return jinja_dict_find(b->dict, *a) != NULL;
    case JINJA_UNDEFINED:
        return false;
    default:
        jinja_fail(r, "%s is not a container", jinja_kind_name(b));
        return false;
    }
}

const char *jinja_print_float(char *buffer, size_t size, double f)
{
    char digits[40], *e;
    int precision = 1;

    if (isnan(f) || isinf(f))
        snprintf(buffer, size, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    if (isnan(f) || isinf(f))
        return buffer;
    do
        snprintf(digits, sizeof digits, "%.*e", precision - 1, f);
    while (strtod(digits, NULL) != f && precision++ < 17);
    e = strchr(digits, 'e');
    long exponent = e ? strtol(e + 1, NULL, 10) : 0;
    if (exponent < -4 || exponent >= 16) {
        *e = 0;
        snprintf(buffer, size, "%se%c%02ld", digits, exponent < 0 ? '-' : '+', labs(exponent));
    } else {
        int places = precision - 1 - (int)exponent;

        snprintf(buffer, size, "%.*f", places > 1 ? places : 1, f);
    }
    return buffer;
}

/* Characters that repr() writes as escapes; nearly: unassigned ones stay. */
static bool is_unprintable(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200f) || (c >= 0x2028 && c <= 0x202f) ||
           (c >= 0x205f && c <= 0x206f) || c == 0x3000 || c == 0xfeff ||
           (c >= 0xe000 && c <= 0xf8ff) || c > 0xf0000;
}

static void add_repr_text(struct text s, struct str *out)
{
    char quote = s.n && memchr(s.data, '\'', s.n) && !memchr(s.data, '"', s.n) ? '"' : '\'';

    str_add_char(out, quote);
    for (size_t at = 0; at < s.n;) {
        uint32_t c;
        size_t step = text_step(s, at, &c);
        const char *plain = c && c < 0x80 ? strchr("\nn\rr\tt", (int)c) : NULL;

        if (plain && c < 0x20)
            str_printf(out, "\\%c", plain[1]);
        else if (c == (uint32_t)quote || c == '\\')
            str_printf(out, "\\%c", (int)c);
        else if (is_unprintable(c))
            str_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        else
            str_add_bytes(out, s.data + at, step);
        at += step;
    }
    str_add_char(out, quote);
}

static void add_text(struct jinja_render *r, const struct jinja_value *v, int repr, int depth,
                     struct str *out);

static void add_items(struct jinja_render *r, const struct jinja_value *v, int depth,
                      struct str *out)
{
    bool is_tuple = v->kind == JINJA_TUPLE;

    str_add_char(out, is_tuple ? '(' : '[');
    for (int i = 0; i < v->list->n && !r->failed; i++) {
        str_add(out, i ? ", " : "");
        add_text(r, &v->list->items[i], 1, depth, out);
    }
    str_add(out, is_tuple ? (v->list->n == 1 ? ",)" : ")") : "]");
}

static void add_pairs(struct jinja_render *r, const struct jinja_value *v, int depth,
                      struct str *out)
{
    str_add_char(out, '{');
    for (int i = 0; i < v->dict->n && !r->failed; i++) {
        str_add(out, i ? ", " : "");
        add_text(r, &v->dict->items[i].key, 1, depth, out);
        str_add(out, ": ");
        add_text(r, &v->dict->items[i].value, 1, depth, out);
    }
    str_add_char(out, '}');
}

static void add_text(struct jinja_render *r, const struct jinja_value *v, int repr, int depth,
                     struct str *out)
{
    char buffer[64];

    if (depth > NESTED_MAX)
        jinja_fail(r, "a value nested deeper than %d", NESTED_MAX);
    /* An escape has up to four bytes for one. */
    if (jinja_step(r, 16 + (v->kind == JINJA_STRING ? v->s.n : 0)) < 0 ||
        jinja_reserve(r, out, v->kind == JINJA_STRING ? 4 * v->s.n : 64) < 0)
        return;
    switch (v->kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
        str_add(out, repr ? "Undefined" : "");
        break;
    case JINJA_NONE:
        str_add(out, "None");
        break;
    case JINJA_BOOL:
        str_add(out, v->i ? "True" : "False");
        break;
    case JINJA_INT:
        str_printf(out, "%lld", (long long)v->i);
        break;
    case JINJA_FLOAT:
        str_add(out, jinja_print_float(buffer, sizeof buffer, v->f));
        break;
    case JINJA_STRING:
        if (repr)
            add_repr_text(v->s, out);
        else
            str_add_bytes(out, v->s.data, v->s.n);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        add_items(r, v, depth + 1, out);
        break;
    case JINJA_DICT:
        add_pairs(r, v, depth + 1, out);
        break;
    default:
        jinja_fail(r, "a %s cannot be written", jinja_kind_name(v));
    }
}

struct text jinja_text(struct jinja_render *r, const struct jinja_value *v)
{
    struct str out = { 0 };

    if (v->kind == JINJA_STRING)
        return v->s;
    add_text(r, v, 0, 0, &out);
    struct jinja_value copy = jinja_copy_string(r, str_text(&out), out.length);
    str_release(&out);
    return copy.s;
}

int64_t jinja_length(const struct jinja_value *v)
{
    switch (v->kind) {
    case JINJA_UNDEFINED:
        return 0;
    case JINJA_STRING:
        return (int64_t)text_length(v->s);
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v->list->n;
    case JINJA_DICT:
        return v->dict->n;
    case JINJA_LOOP:
        return v->loop->n;
    default:
        return -1;
    }
}

struct jinja_list jinja_items(struct jinja_render *r, const struct jinja_value *v)
{
    struct jinja_list list = { 0 };
    uint32_t code;

    switch (v->kind) {
    case JINJA_UNDEFINED:
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return *v->list;
    case JINJA_DICT:
        for (int i = 0; i < v->dict->n && jinja_step(r, 16) == 0; i++)
            jinja_list_add(r->arena, &list, v->dict->items[i].key);
        break;
    case JINJA_STRING:
        for (size_t at = 0; at < v->s.n && jinja_step(r, 16) == 0;) {
            size_t step = text_step(v->s, at, &code);

            jinja_list_add(r->arena, &list, jinja_string((struct text){ v->s.data + at, step }));
            at += step;
        }
        break;
    default:
        jinja_fail(r, "%s has no items to iterate over", jinja_kind_name(v));
    }
    return list;
}
