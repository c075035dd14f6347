/*
 * jinja_filters.c - x | name(...)
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "template/jinja_impl.h"

static int given(const struct jinja_value *v)
{
    return v->kind != JINJA_ABSENT;
}

/* An integer parameter, or what it is by default. */
static int64_t integer(struct jinja_render *r, const struct jinja_value *v, int64_t otherwise)
{
    if (!given(v) || v->kind == JINJA_NONE)
        return otherwise;
    if (v->kind != JINJA_INT && v->kind != JINJA_BOOL)
        jinja_fail(r, "%s where an integer is needed", jinja_kind_name(v));
    return v->kind == JINJA_INT || v->kind == JINJA_BOOL ? v->i : otherwise;
}

static struct jinja_value copy_and_release(struct jinja_render *r, struct str *text)
{
    struct jinja_value v = jinja_copy_string(r, str_text(text), text->length);

    str_release(text);
    return v;
}

static struct jinja_value as_list(struct jinja_render *r, struct jinja_list items)
{
    struct jinja_value v = jinja_new_list(r);

    *v.list = items;
    return v;
}

static struct jinja_value filter_trim(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    struct text chars = { 0 };

    if (given(&slots[0]))
        chars = jinja_text(r, &slots[0]);
    return jinja_string(
        text_strip(jinja_text(r, &in), given(&slots[0]) ? &chars : NULL, STRIP_LEFT | STRIP_RIGHT));
}

static struct jinja_value to_case(struct jinja_render *r, struct jinja_value in, enum text_case to)
{
    struct str out = { 0 };
    struct text s = jinja_text(r, &in);

    if (jinja_reserve(r, &out, s.n) == 0)
        text_to_case(s, to, &out);
    return copy_and_release(r, &out);
}

static struct jinja_value filter_upper(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return to_case(r, in, CASE_UPPER);
}

static struct jinja_value filter_lower(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return to_case(r, in, CASE_LOWER);
}

static struct jinja_value filter_title(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return to_case(r, in, CASE_TITLE);
}

static struct jinja_value filter_capitalize(struct jinja_render *r, struct jinja_value in,
                                            const struct jinja_value *slots)
{
    (void)slots;
    return to_case(r, in, CASE_CAPITAL);
}

static struct jinja_value filter_string(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    (void)slots;
    return jinja_string(jinja_text(r, &in));
}

static struct jinja_value filter_length(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    int64_t n = jinja_length(&in);

    (void)slots;
    if (n < 0)
        jinja_fail(r, "%s has no length", jinja_kind_name(&in));
    return jinja_int(n);
}

static struct jinja_value filter_default(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_value *slots)
{
    int otherwise = in.kind == JINJA_UNDEFINED ||
                    (given(&slots[1]) && jinja_is_true(&slots[1]) && !jinja_is_true(&in));

    (void)r;
    if (!otherwise)
        return in;
    return given(&slots[0]) ? slots[0] : jinja_literal("");
}

static struct jinja_value filter_list(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    (void)slots;
    return as_list(r, jinja_items(r, &in));
}

static struct jinja_value pair_of(struct jinja_render *r, const struct jinja_pair *pair)
{
    struct jinja_value v = jinja_new_list(r);

    v.kind = JINJA_TUPLE;
    jinja_list_add(r->arena, v.list, pair->key);
    jinja_list_add(r->arena, v.list, pair->value);
    return v;
}

static struct jinja_value filter_items(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    struct jinja_value out = jinja_new_list(r);

    (void)slots;
    if (in.kind != JINJA_DICT && in.kind != JINJA_UNDEFINED)
        jinja_fail(r, "%s has no pairs to iterate over", jinja_kind_name(&in));
    for (int i = 0; in.kind == JINJA_DICT && i < in.dict->n && jinja_step(r, 64) == 0; i++)
        jinja_list_add(r->arena, out.list, pair_of(r, &in.dict->items[i]));
    return out;
}

static struct jinja_value first_or_last(struct jinja_render *r, struct jinja_value in, int last)
{
    struct jinja_list items = jinja_items(r, &in);

    return items.n ? items.items[last ? items.n - 1 : 0] : jinja_undefined(text_of("no item"));
}

static struct jinja_value filter_first(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return first_or_last(r, in, 0);
}

static struct jinja_value filter_last(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    (void)slots;
    return first_or_last(r, in, 1);
}

static struct jinja_value filter_reverse(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_value *slots)
{
    struct jinja_list items = jinja_items(r, &in), out = { 0 };
    struct str text = { 0 };

    (void)slots;
    for (int i = items.n - 1; i >= 0 && jinja_step(r, 24) == 0; i--) {
        if (in.kind == JINJA_STRING)
            jinja_add(r, &text, items.items[i].s);
        else
            jinja_list_add(r->arena, &out, items.items[i]);
    }
    return in.kind == JINJA_STRING ? copy_and_release(r, &text) : as_list(r, out);
}

/* "a.b.0": attributes and items, one after the other; an integer is an item. */
static struct jinja_value attribute_path(struct jinja_render *r, struct jinja_value of,
                                         const struct jinja_value *path)
{
    if (path->kind != JINJA_STRING)
        return jinja_item(r, of, *path);
    for (struct text rest = path->s; !r->failed;) {
        int64_t dot = text_find(rest, text_of("."), 0);
        struct text name = { rest.data, dot < 0 ? rest.n : (size_t)dot };
        int64_t i = 0;
        int is_number = name.n > 0 && name.n < 10;

        for (size_t k = 0; k < name.n && is_number; k++) {
            is_number = name.data[k] >= '0' && name.data[k] <= '9';
            i = i * 10 + name.data[k] - '0';
        }
        of = jinja_item(r, of, is_number ? jinja_int(i) : jinja_string(name));
        if (dot < 0)
            break;
        rest.data += dot + 1;
        rest.n -= (size_t)dot + 1;
    }
    return of;
}

static struct jinja_value filter_join(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    struct jinja_list items = jinja_items(r, &in);
    struct str out = { 0 };
    struct text between = given(&slots[0]) ? jinja_text(r, &slots[0]) : text_of("");

    for (int i = 0; i < items.n && !r->failed; i++) {
        struct jinja_value v =
            given(&slots[1]) ? attribute_path(r, items.items[i], &slots[1]) : items.items[i];
        struct text s = jinja_text(r, &v);

        if (jinja_step(r, s.n + between.n) < 0)
            break;
        if (i)
            jinja_add(r, &out, between);
        jinja_add(r, &out, s);
    }
    return copy_and_release(r, &out);
}

static struct jinja_value filter_replace(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_value *slots)
{
    struct jinja_value text = jinja_string(jinja_text(r, &in)), swapped[3];
    struct jinja_arguments arguments = { .items = swapped, .n = given(&slots[2]) ? 3 : 2 };

    swapped[0] = jinja_string(jinja_text(r, &slots[0]));
    swapped[1] = jinja_string(jinja_text(r, &slots[1]));
    swapped[2] = slots[2];
    return r->failed
               ? in
               : jinja_apply(r, jinja_find_method(&text, text_of("replace")), text, &arguments);
}

static struct jinja_value filter_tojson(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    struct jinja_json_style style = { .indent = -1,
                                      .comma = text_of(", "),
                                      .colon = text_of(": ") };
    struct str out = { 0 };

    if (given(&slots[1]) && slots[1].kind != JINJA_NONE) {
        int64_t indent = integer(r, &slots[1], 0);

        style.indent = indent < 0 ? 0 : indent > 64 ? 64 : (int)indent;
        style.comma = text_of(",");
    }
    style.ascii = given(&slots[0]) && jinja_is_true(&slots[0]);
    style.sort = given(&slots[3]) && jinja_is_true(&slots[3]);
    if (given(&slots[2]) && slots[2].kind != JINJA_NONE) {
        struct jinja_list parts = jinja_items(r, &slots[2]);

        if (parts.n != 2 || r->failed) {
            jinja_fail(r, "tojson's separators are two texts");
            return in;
        }
        style.comma = jinja_text(r, &parts.items[0]);
        style.colon = jinja_text(r, &parts.items[1]);
    }
    jinja_add_json(r, &in, &style, 0, &out);
    return copy_and_release(r, &out);
}

static struct jinja_value filter_indent(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    struct text s = jinja_text(r, &in), by = { 0 };
    int first = given(&slots[1]) && jinja_is_true(&slots[1]);
    int blank = given(&slots[2]) && jinja_is_true(&slots[2]);
    int64_t width = slots[0].kind == JINJA_STRING ? 0 : integer(r, &slots[0], 4);
    struct str out = { 0 }, spaces = { 0 };

    for (int64_t i = 0; i < width && i < 256; i++)
        str_add_char(&spaces, ' ');
    by = slots[0].kind == JINJA_STRING ? slots[0].s : (struct text){ spaces.data, spaces.length };
    for (size_t at = 0; at <= s.n && jinja_step(r, by.n) == 0;) {
        int64_t end = text_find(s, text_of("\n"), at);
        size_t n = end < 0 ? s.n - at : (size_t)end - at;

        if (at == 0 ? first : (n > 0 || blank))
            jinja_add(r, &out, by);
        jinja_add(r, &out, (struct text){ s.data + at, n + (end >= 0) });
        if (end < 0)
            break;
        at = (size_t)end + 1;
    }
    str_release(&spaces);
    return copy_and_release(r, &out);
}

static struct jinja_value filter_int(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    struct jinja_value otherwise = given(&slots[0]) ? slots[0] : jinja_int(0);
    char buffer[64];
    int64_t i;
    double f;

    (void)r;
    if (in.kind == JINJA_INT || in.kind == JINJA_BOOL)
        return jinja_int(in.i);
    if (in.kind == JINJA_FLOAT)
        return fabs(in.f) < 9e18 ? jinja_int((int64_t)in.f) : otherwise;
    struct text s =
        in.kind == JINJA_STRING ? text_strip(in.s, NULL, STRIP_LEFT | STRIP_RIGHT) : text_of("");
    if (!s.n || s.n >= sizeof buffer)
        return otherwise;
    memcpy(buffer, s.data, s.n);
    buffer[s.n] = 0;
    if (str_to_i64(buffer, &i) == 0)
        return jinja_int(i);
    return str_to_f64(buffer, &f) == 0 && fabs(f) < 9e18 ? jinja_int((int64_t)f) : otherwise;
}

static struct jinja_value filter_float(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    char buffer[64];
    double f;

    (void)r;
    if (jinja_is_number(&in))
        return jinja_float(jinja_number(&in));
    struct text s =
        in.kind == JINJA_STRING ? text_strip(in.s, NULL, STRIP_LEFT | STRIP_RIGHT) : text_of("");
    if (s.n && s.n < sizeof buffer) {
        memcpy(buffer, s.data, s.n);
        buffer[s.n] = 0;
        if (str_to_f64(buffer, &f) == 0)
            return jinja_float(f);
    }
    return given(&slots[0]) ? slots[0] : jinja_float(0);
}

static struct jinja_value filter_abs(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    (void)slots;
    if (!jinja_is_number(&in))
        jinja_fail(r, "%s has no absolute value", jinja_kind_name(&in));
    else if (jinja_number(&in) < 0)
        return jinja_binary(r, '-', jinja_int(0), in);
    return in;
}

static struct jinja_value filter_round(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    int64_t places = integer(r, &slots[0], 0);
    double scale = pow(10, (double)places), f = jinja_is_number(&in) ? jinja_number(&in) : 0;
    struct text how = given(&slots[1]) ? jinja_text(r, &slots[1]) : text_of("common");

    if (!jinja_is_number(&in))
        jinja_fail(r, "%s cannot be rounded", jinja_kind_name(&in));
    if (text_is(how, "ceil"))
        return jinja_float(ceil(f * scale) / scale);
    if (text_is(how, "floor"))
        return jinja_float(floor(f * scale) / scale);
    return jinja_float(nearbyint(f * scale) / scale);
}

static struct jinja_value filter_safe(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    (void)slots;
    return jinja_string(jinja_text(r, &in));
}

/* For sort, unique, min and max: an attribute, and texts in lower case unless case matters. */
static struct jinja_value sort_key(struct jinja_render *r, struct jinja_value item,
                                   const struct jinja_value *attribute, int with_case)
{
    struct jinja_value key = given(attribute) && attribute->kind != JINJA_NONE
                                 ? attribute_path(r, item, attribute)
                                 : item;

    return key.kind == JINJA_STRING && !with_case ? to_case(r, key, CASE_LOWER) : key;
}

struct keyed {
    struct jinja_value key, item;
    int at;
};

static int by_key(const void *a, const void *b, void *context)
{
    const struct keyed *x = a, *y = b;
    int order = jinja_compare(context, &x->key, &y->key);

    return order ? order : x->at < y->at ? -1 : x->at > y->at;
}

static struct jinja_list sorted(struct jinja_render *r, struct jinja_list items,
                                const struct jinja_value *attribute, int with_case, int reverse)
{
    struct jinja_list out = { 0 };
    struct keyed *keyed;

    if (jinja_reserve(r, NULL, sizeof *keyed * (size_t)items.n) < 0)
        return out;
    keyed = arena_array(r->arena, struct keyed, items.n);
    for (int i = 0; i < items.n && jinja_step(r, 256) == 0; i++)
        keyed[i] = (struct keyed){ sort_key(r, items.items[i], attribute, with_case),
                                   items.items[i], reverse ? items.n - i : i };
    if (r->failed)
        return out;
    qsort_r(keyed, (size_t)items.n, sizeof *keyed, by_key, r);
    for (int i = 0; i < items.n; i++)
        jinja_list_add(r->arena, &out, keyed[reverse ? items.n - 1 - i : i].item);
    return out;
}

static struct jinja_value filter_sort(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    return as_list(r, sorted(r, jinja_items(r, &in), &slots[2], jinja_is_true(&slots[1]),
                             jinja_is_true(&slots[0])));
}

static struct jinja_value filter_min(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    struct jinja_list items =
        sorted(r, jinja_items(r, &in), &slots[1], jinja_is_true(&slots[0]), 0);

    return items.n ? items.items[0] : jinja_undefined(text_of("no item"));
}

static struct jinja_value filter_max(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    struct jinja_list items =
        sorted(r, jinja_items(r, &in), &slots[1], jinja_is_true(&slots[0]), 1);

    return items.n ? items.items[0] : jinja_undefined(text_of("no item"));
}

static struct jinja_value filter_sum(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    struct jinja_list items = jinja_items(r, &in);
    struct jinja_value total = given(&slots[1]) ? slots[1] : jinja_int(0);

    for (int i = 0; i < items.n && !r->failed; i++)
        total = jinja_binary(r, '+', total,
                             given(&slots[0]) ? attribute_path(r, items.items[i], &slots[0])
                                              : items.items[i]);
    return total;
}

static struct jinja_value filter_unique(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    struct jinja_list items = jinja_items(r, &in), seen = { 0 }, out = { 0 };

    for (int i = 0; i < items.n && jinja_step(r, 16 * (size_t)seen.n) == 0; i++) {
        struct jinja_value key = sort_key(r, items.items[i], &slots[1], jinja_is_true(&slots[0]));
        int is_new = 1;

        for (int k = 0; k < seen.n && is_new; k++)
            is_new = !jinja_equal(r, &seen.items[k], &key);
        if (is_new) {
            jinja_list_add(r->arena, &seen, key);
            jinja_list_add(r->arena, &out, items.items[i]);
        }
    }
    return as_list(r, out);
}

static struct jinja_value filter_dictsort(struct jinja_render *r, struct jinja_value in,
                                          const struct jinja_value *slots)
{
    struct jinja_value pairs = filter_items(r, in, slots), by = jinja_int(0);

    if (given(&slots[1]) && text_is(jinja_text(r, &slots[1]), "value"))
        by = jinja_int(1);
    return as_list(r,
                   sorted(r, *pairs.list, &by, jinja_is_true(&slots[0]), jinja_is_true(&slots[2])));
}

static struct jinja_value named_argument(const struct jinja_arguments *arguments, const char *name)
{
    for (int i = 0; i < arguments->n_named; i++)
        if (text_is(arguments->named[i].key.s, name))
            return arguments->named[i].value;
    return (struct jinja_value){ 0 };
}

/* Jinja's are lazy: what cannot be gone through is a mistake only once somebody does. */
static struct jinja_list lazy_items(struct jinja_render *r, const struct jinja_value *in)
{
    return in->kind == JINJA_NONE ? (struct jinja_list){ 0 } : jinja_items(r, in);
}

/* map("filter", ...) or map(attribute="x", default=y). */
static struct jinja_value filter_map(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_arguments *arguments)
{
    struct jinja_value attribute = named_argument(arguments, "attribute"), out = jinja_new_list(r);
    struct jinja_value otherwise = named_argument(arguments, "default");
    const struct jinja_function *filter = NULL;
    struct jinja_list items = lazy_items(r, &in);
    struct jinja_arguments rest = *arguments;

    if (!given(&attribute)) {
        if (arguments->n && arguments->items[0].kind == JINJA_STRING)
            filter = jinja_find_filter(arguments->items[0].s);
        if (!filter) {
            jinja_fail(r, "map takes the name of a filter that is supported, or attribute=");
            return in;
        }
        rest.items++;
        rest.n--;
    }
    for (int i = 0; i < items.n && jinja_step(r, 24) == 0; i++) {
        struct jinja_value v = filter ? jinja_apply(r, filter, items.items[i], &rest)
                                      : attribute_path(r, items.items[i], &attribute);

        if (v.kind == JINJA_UNDEFINED && given(&otherwise))
            v = otherwise;
        jinja_list_add(r->arena, out.list, v);
    }
    return out;
}

static struct jinja_value choose(struct jinja_render *r, struct jinja_value in,
                                 const struct jinja_arguments *arguments, int by_attribute,
                                 int reject)
{
    struct jinja_list items = lazy_items(r, &in);
    const struct jinja_function *test = NULL;
    struct jinja_arguments rest = *arguments;
    struct jinja_value out = jinja_new_list(r);

    if (by_attribute) {
        if (!arguments->n) {
            jinja_fail(r, "the name of an attribute is missing");
            return in;
        }
        rest.items++;
        rest.n--;
    }
    if (rest.n) {
        test = rest.items[0].kind == JINJA_STRING ? jinja_find_test(rest.items[0].s) : NULL;
        if (!test)
            jinja_fail(r, "the test is not supported");
        rest.items++;
        rest.n--;
    }
    for (int i = 0; i < items.n && jinja_step(r, 24) == 0; i++) {
        struct jinja_value v =
            by_attribute ? attribute_path(r, items.items[i], &arguments->items[0]) : items.items[i];

        if (test && !r->failed)
            v = jinja_apply(r, test, v, &rest);
        if (jinja_is_true(&v) != reject)
            jinja_list_add(r->arena, out.list, items.items[i]);
    }
    return out;
}

static struct jinja_value filter_select(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_arguments *a)
{
    return choose(r, in, a, 0, 0);
}

static struct jinja_value filter_reject(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_arguments *a)
{
    return choose(r, in, a, 0, 1);
}

static struct jinja_value filter_selectattr(struct jinja_render *r, struct jinja_value in,
                                            const struct jinja_arguments *a)
{
    return choose(r, in, a, 1, 0);
}

static struct jinja_value filter_rejectattr(struct jinja_render *r, struct jinja_value in,
                                            const struct jinja_arguments *a)
{
    return choose(r, in, a, 1, 1);
}

static const struct jinja_function filters[] = {
    { "abs", filter_abs, { NULL }, 0, NULL },
    { "capitalize", filter_capitalize, { NULL }, 0, NULL },
    { "count", filter_length, { NULL }, 0, NULL },
    { "d", filter_default, { "default_value", "boolean" }, 0, NULL },
    { "default", filter_default, { "default_value", "boolean" }, 0, NULL },
    { "dictsort", filter_dictsort, { "case_sensitive", "by", "reverse" }, 0, NULL },
    { "first", filter_first, { NULL }, 0, NULL },
    { "float", filter_float, { "default" }, 0, NULL },
    { "indent", filter_indent, { "width", "first", "blank" }, 0, NULL },
    { "int", filter_int, { "default" }, 0, NULL },
    { "items", filter_items, { NULL }, 0, NULL },
    { "join", filter_join, { "d", "attribute" }, 0, NULL },
    { "last", filter_last, { NULL }, 0, NULL },
    { "length", filter_length, { NULL }, 0, NULL },
    { "list", filter_list, { NULL }, 0, NULL },
    { "lower", filter_lower, { NULL }, 0, NULL },
    { "map", NULL, { NULL }, 0, filter_map },
    { "max", filter_max, { "case_sensitive", "attribute" }, 0, NULL },
    { "min", filter_min, { "case_sensitive", "attribute" }, 0, NULL },
    { "reject", NULL, { NULL }, 0, filter_reject },
    { "rejectattr", NULL, { NULL }, 0, filter_rejectattr },
    { "replace", filter_replace, { "old", "new", "count" }, 2, NULL },
    { "reverse", filter_reverse, { NULL }, 0, NULL },
    { "round", filter_round, { "precision", "method" }, 0, NULL },
    { "safe", filter_safe, { NULL }, 0, NULL },
    { "select", NULL, { NULL }, 0, filter_select },
    { "selectattr", NULL, { NULL }, 0, filter_selectattr },
    { "sort", filter_sort, { "reverse", "case_sensitive", "attribute" }, 0, NULL },
    { "string", filter_string, { NULL }, 0, NULL },
    { "sum", filter_sum, { "attribute", "start" }, 0, NULL },
    { "title", filter_title, { NULL }, 0, NULL },
    { "tojson", filter_tojson, { "ensure_ascii", "indent", "separators", "sort_keys" }, 0, NULL },
    { "trim", filter_trim, { "chars" }, 0, NULL },
    { "unique", filter_unique, { "case_sensitive", "attribute" }, 0, NULL },
    { "upper", filter_upper, { NULL }, 0, NULL },
};

const struct jinja_function *jinja_find_filter(struct text name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (text_is(name, filters[i].name))
            return &filters[i];
    return NULL;
}
