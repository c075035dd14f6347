/*
 * jinja_filters.c - filters of texts and numbers: x | name(...)
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "template/jinja_impl.h"

/* An integer parameter, or what it is by default. */
static int64_t integer(struct jinja_render *r, const struct jinja_value *v, int64_t otherwise)
{
    if (!jinja_is_given(v) || v->kind == JINJA_NONE)
        return otherwise;
    if (v->kind != JINJA_INT && v->kind != JINJA_BOOL)
        jinja_fail(r, "%s where an integer is needed", jinja_kind_name(v));
    return v->kind == JINJA_INT || v->kind == JINJA_BOOL ? v->i : otherwise;
}

struct jinja_value jinja_take_string(struct jinja_render *r, struct str *text)
{
    struct jinja_value v = jinja_copy_string(r, str_text(text), text->length);

    str_release(text);
    return v;
}

static struct jinja_value filter_trim(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    struct text chars = { 0 };

    if (jinja_is_given(&slots[0]))
        chars = jinja_text(r, &slots[0]);
    return jinja_string(text_strip(jinja_text(r, &in), jinja_is_given(&slots[0]) ? &chars : NULL,
                                   STRIP_LEFT | STRIP_RIGHT));
}

struct jinja_value jinja_to_case(struct jinja_render *r, struct jinja_value in, enum text_case to)
{
    struct str out = { 0 };
    struct text s = jinja_text(r, &in);

    if (jinja_reserve(r, &out, s.n) == 0)
        text_to_case(s, to, &out);
    return jinja_take_string(r, &out);
}

static struct jinja_value filter_upper(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return jinja_to_case(r, in, CASE_UPPER);
}

static struct jinja_value filter_lower(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return jinja_to_case(r, in, CASE_LOWER);
}

static struct jinja_value filter_title(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return jinja_to_case(r, in, CASE_TITLE);
}

static struct jinja_value filter_capitalize(struct jinja_render *r, struct jinja_value in,
                                            const struct jinja_value *slots)
{
    (void)slots;
    return jinja_to_case(r, in, CASE_CAPITAL);
}

static struct jinja_value filter_string(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    (void)slots;
    return jinja_string(jinja_text(r, &in));
}

static struct jinja_value filter_default(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_value *slots)
{
    int otherwise = in.kind == JINJA_UNDEFINED ||
                    (jinja_is_given(&slots[1]) && jinja_is_true(&slots[1]) && !jinja_is_true(&in));

    (void)r;
    if (!otherwise)
        return in;
    return jinja_is_given(&slots[0]) ? slots[0] : jinja_literal("");
}

static struct jinja_value filter_replace(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_value *slots)
{
    struct jinja_value text = jinja_string(jinja_text(r, &in)), swapped[3];
    struct jinja_arguments arguments = { .items = swapped, .n = jinja_is_given(&slots[2]) ? 3 : 2 };

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

    if (jinja_is_given(&slots[1]) && slots[1].kind != JINJA_NONE) {
        int64_t indent = integer(r, &slots[1], 0);

        style.indent = indent < 0 ? 0 : indent > 64 ? 64 : (int)indent;
        style.comma = text_of(",");
    }
    style.ascii = jinja_is_given(&slots[0]) && jinja_is_true(&slots[0]);
    style.sort = jinja_is_given(&slots[3]) && jinja_is_true(&slots[3]);
    if (jinja_is_given(&slots[2]) && slots[2].kind != JINJA_NONE) {
        struct jinja_list parts = jinja_items(r, &slots[2]);

        if (parts.n != 2 || r->failed) {
            jinja_fail(r, "tojson's separators are two texts");
            return in;
        }
        style.comma = jinja_text(r, &parts.items[0]);
        style.colon = jinja_text(r, &parts.items[1]);
    }
    jinja_add_json(r, &in, &style, 0, &out);
    return jinja_take_string(r, &out);
}

static struct jinja_value filter_indent(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    struct text s = jinja_text(r, &in), by = { 0 };
    int first = jinja_is_given(&slots[1]) && jinja_is_true(&slots[1]);
    int blank = jinja_is_given(&slots[2]) && jinja_is_true(&slots[2]);
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
    return jinja_take_string(r, &out);
}

static struct jinja_value filter_int(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    struct jinja_value otherwise = jinja_is_given(&slots[0]) ? slots[0] : jinja_int(0);
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
    return jinja_is_given(&slots[0]) ? slots[0] : jinja_float(0);
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
    struct text how = jinja_is_given(&slots[1]) ? jinja_text(r, &slots[1]) : text_of("common");

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

static const struct jinja_function filters[] = {
    { "abs", filter_abs, { NULL }, 0, NULL },
    { "capitalize", filter_capitalize, { NULL }, 0, NULL },
    { "d", filter_default, { "default_value", "boolean" }, 0, NULL },
    { "default", filter_default, { "default_value", "boolean" }, 0, NULL },
    { "float", filter_float, { "default" }, 0, NULL },
    { "indent", filter_indent, { "width", "first", "blank" }, 0, NULL },
    { "int", filter_int, { "default" }, 0, NULL },
    { "lower", filter_lower, { NULL }, 0, NULL },
    { "replace", filter_replace, { "old", "new", "count" }, 2, NULL },
    { "round", filter_round, { "precision", "method" }, 0, NULL },
    { "safe", filter_safe, { NULL }, 0, NULL },
    { "string", filter_string, { NULL }, 0, NULL },
    { "title", filter_title, { NULL }, 0, NULL },
    { "tojson", filter_tojson, { "ensure_ascii", "indent", "separators", "sort_keys" }, 0, NULL },
    { "trim", filter_trim, { "chars" }, 0, NULL },
    { "upper", filter_upper, { NULL }, 0, NULL },
};

const struct jinja_function *jinja_find_filter(struct text name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (text_is(name, filters[i].name))
            return &filters[i];
    return jinja_find_sequence_filter(name);
}
