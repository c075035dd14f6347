/*
 * jinja_methods.c - methods of texts, dicts, lists and loops: x.name(...)
 */
#include <string.h>

#include "template/jinja_impl.h"

static struct jinja_value strip(struct jinja_render *r, struct jinja_value in,
                                const struct jinja_value *slots, int sides)
{
    struct text chars = { 0 };
    bool has_chars = jinja_is_given(&slots[0]) && slots[0].kind != JINJA_NONE;

    if (has_chars)
        chars = jinja_text_slot(r, &slots[0]);
    return jinja_string(text_strip(in.s, has_chars ? &chars : NULL, sides));
}

static struct jinja_value method_strip(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    return strip(r, in, slots, STRIP_LEFT | STRIP_RIGHT);
}

static struct jinja_value method_lstrip(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    return strip(r, in, slots, STRIP_LEFT);
}

static struct jinja_value method_rstrip(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    return strip(r, in, slots, STRIP_RIGHT);
}

static bool has_end(struct text s, struct text end, bool at_start)
{
    return s.n >= end.n &&
           (!end.n || !memcmp(s.data + (at_start ? 0 : s.n - end.n), end.data, end.n));
}

/* One text, or a tuple of them. */
static struct jinja_value has_any_end(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *of, bool at_start)
{
    int is = 0;

    if (of->kind != JINJA_TUPLE)
        return jinja_bool(has_end(in.s, jinja_text_slot(r, of), at_start));
    for (int i = 0; i < of->list->n && !is; i++)
        is = has_end(in.s, jinja_text_slot(r, &of->list->items[i]), at_start);
    return jinja_bool(is);
}

static struct jinja_value method_startswith(struct jinja_render *r, struct jinja_value in,
                                            const struct jinja_value *slots)
{
    return has_any_end(r, in, &slots[0], true);
}

static struct jinja_value method_endswith(struct jinja_render *r, struct jinja_value in,
                                          const struct jinja_value *slots)
{
    return has_any_end(r, in, &slots[0], false);
}

static struct jinja_value method_removeprefix(struct jinja_render *r, struct jinja_value in,
                                              const struct jinja_value *slots)
{
    struct text end = jinja_text_slot(r, &slots[0]);

    if (has_end(in.s, end, true)) {
        in.s.data += end.n;
        in.s.n -= end.n;
    }
    return in;
}

static struct jinja_value method_removesuffix(struct jinja_render *r, struct jinja_value in,
                                              const struct jinja_value *slots)
{
    struct text end = jinja_text_slot(r, &slots[0]);

    if (has_end(in.s, end, false))
        in.s.n -= end.n;
    return in;
}

static struct jinja_value method_replace(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_value *slots)
{
    struct text from = jinja_text_slot(r, &slots[0]), to = jinja_text_slot(r, &slots[1]);
    int64_t left = jinja_integer_slot(r, &slots[2], -1), found;
    struct str out = { 0 };
    uint32_t code;
    size_t at = 0;

    while (left != 0 && jinja_step(r, to.n + from.n) == 0 &&
           (found = text_find(in.s, from, at)) >= 0) {
        jinja_add(r, &out, (struct text){ in.s.data + at, (size_t)found - at });
        jinja_add(r, &out, to);
        at = (size_t)found + from.n;
        left -= left > 0;
        if (!from.n) { /* between all characters */
            if (at >= in.s.n)
                break;
            size_t step = text_step(in.s, at, &code);
            jinja_add(r, &out, (struct text){ in.s.data + at, step });
            at += step;
        }
    }
    jinja_add(r, &out, (struct text){ in.s.data + at, in.s.n - at });
    struct jinja_value v = jinja_copy_string(r, str_text(&out), out.length);
    str_release(&out);
    return v;
}

static void add_part(struct jinja_render *r, struct jinja_list *list, struct text s, size_t begin,
                     size_t end)
{
    if (jinja_step(r, 24) == 0)
        jinja_list_add(r->arena, list, jinja_string((struct text){ s.data + begin, end - begin }));
}

/* By white space: none at the ends, and no empty parts. */
static void split_words(struct jinja_render *r, struct text s, int64_t left, struct jinja_list *out)
{
    uint32_t code;

    s = text_strip(s, NULL, STRIP_LEFT);
    while (s.n && !r->failed) {
        size_t n = 0;

        if (left == 0) {
            s = text_strip(s, NULL, STRIP_RIGHT);
            n = s.n;
        }
        while (n < s.n) {
            size_t step = text_step(s, n, &code);

            if (text_is_space(code))
                break;
            n += step;
        }
        add_part(r, out, s, 0, n);
        left -= left > 0;
        s.data += n;
        s.n -= n;
        s = text_strip(s, NULL, STRIP_LEFT);
    }
}

static struct jinja_value method_split(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    struct jinja_value out = jinja_new_list(r);
    int64_t left = jinja_integer_slot(r, &slots[1], -1), found;
    size_t at = 0;

    if (!jinja_is_given(&slots[0]) || slots[0].kind == JINJA_NONE) {
        split_words(r, in.s, left, out.list);
        return out;
    }
    struct text by = jinja_text_slot(r, &slots[0]);
    if (!by.n)
        jinja_fail(r, "a string cannot be split by an empty separator");
    while (!r->failed && left != 0 && (found = text_find(in.s, by, at)) >= 0) {
        add_part(r, out.list, in.s, at, (size_t)found);
        at = (size_t)found + by.n;
        left -= left > 0;
    }
    add_part(r, out.list, in.s, at, in.s.n);
    return out;
}

static struct jinja_value method_rsplit(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    int64_t left = jinja_integer_slot(r, &slots[1], -1);
    struct jinja_value parts = method_split(r, in, (struct jinja_value[2]){ slots[0] }), out;

    if (r->failed || left < 0 || parts.list->n <= left + 1)
        return parts;
    if (!jinja_is_given(&slots[0]) || slots[0].kind == JINJA_NONE) {
        jinja_fail(r, "rsplit with a limit needs a separator");
        return parts;
    }
    out = jinja_new_list(r);
    int first = parts.list->n - (int)left;
    const struct text *head = &parts.list->items[first - 1].s;
    add_part(r, out.list, in.s, 0, (size_t)(head->data + head->n - in.s.data));
    for (int i = first; i < parts.list->n; i++)
        jinja_list_add(r->arena, out.list, parts.list->items[i]);
    return out;
}

static struct jinja_value method_splitlines(struct jinja_render *r, struct jinja_value in,
                                            const struct jinja_value *slots)
{
    struct jinja_value out = jinja_new_list(r);
    int keep = jinja_is_true(&slots[0]);

    for (size_t at = 0, begin = 0; at < in.s.n; begin = at) {
        while (at < in.s.n && in.s.data[at] != '\n' && in.s.data[at] != '\r')
            at++;
        size_t end = at;
        if (at < in.s.n)
            at += at + 1 < in.s.n && in.s.data[at] == '\r' && in.s.data[at + 1] == '\n' ? 2 : 1;
        add_part(r, out.list, in.s, begin, keep ? at : end);
    }
    return out;
}

static struct jinja_value by_filter(struct jinja_render *r, struct jinja_value in, const char *name)
{
    const struct jinja_arguments none = { 0 };

    return jinja_apply(r, jinja_find_filter(text_of(name)), in, &none);
}

static struct jinja_value method_upper(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return by_filter(r, in, "upper");
}

static struct jinja_value method_lower(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return by_filter(r, in, "lower");
}

static struct jinja_value method_title(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return by_filter(r, in, "title");
}

static struct jinja_value method_capitalize(struct jinja_render *r, struct jinja_value in,
                                            const struct jinja_value *slots)
{
    (void)slots;
    return by_filter(r, in, "capitalize");
}

static struct jinja_value method_join(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    struct jinja_value of = slots[0];
    struct jinja_arguments arguments = { .items = &in, .n = 1 };

    return jinja_apply(r, jinja_find_filter(text_of("join")), of, &arguments);
}

static struct jinja_value method_find(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    int64_t at = text_find(in.s, jinja_text_slot(r, &slots[0]), 0);

    return jinja_int(at < 0 ? -1 : (int64_t)text_length((struct text){ in.s.data, (size_t)at }));
}

static struct jinja_value method_count(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    struct text of = jinja_text_slot(r, &slots[0]);
    int64_t n = 0, found;

    if (!of.n)
        return jinja_int((int64_t)text_length(in.s) + 1);
    for (size_t at = 0; (found = text_find(in.s, of, at)) >= 0; n++)
        at = (size_t)found + of.n;
    return jinja_int(n);
}

static struct jinja_value all_between(struct text s, char low, char high)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.data[i] < low || s.data[i] > high)
            return jinja_bool(0);
    return jinja_bool(s.n > 0);
}

static struct jinja_value method_isdigit(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_value *slots)
{
    (void)r;
    (void)slots;
    return all_between(in.s, '0', '9');
}

static struct jinja_value method_isspace(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_value *slots)
{
    (void)r;
    (void)slots;
    return jinja_bool(in.s.n > 0 && !text_strip(in.s, NULL, STRIP_LEFT).n);
}

static struct jinja_value method_get(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    const struct jinja_value *found = jinja_dict_find(in.dict, slots[0]);

    (void)r;
    return found ? *found : jinja_is_given(&slots[1]) ? slots[1] : jinja_none();
}

static struct jinja_value method_items(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    (void)slots;
    return by_filter(r, in, "items");
}

static struct jinja_value method_keys(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    (void)slots;
    return by_filter(r, in, "list");
}

static struct jinja_value method_values(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    struct jinja_value out = jinja_new_list(r);

    (void)slots;
    for (int i = 0; i < in.dict->n && jinja_step(r, 24) == 0; i++)
        jinja_list_add(r->arena, out.list, in.dict->items[i].value);
    return out;
}

static struct jinja_value method_copy(struct jinja_render *r, struct jinja_value in,
                                      const struct jinja_value *slots)
{
    (void)r;
    (void)slots;
    return in; /* nothing changes values */
}

static struct jinja_value method_index(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_value *slots)
{
    for (int i = 0; i < in.list->n; i++)
        if (jinja_equal(r, &in.list->items[i], &slots[0]))
            return jinja_int(i);
    jinja_fail(r, "the list has no such item");
    return jinja_none();
}

static struct jinja_value method_count_items(struct jinja_render *r, struct jinja_value in,
                                             const struct jinja_value *slots)
{
    int64_t n = 0;

    (void)r;
    for (int i = 0; i < in.list->n; i++)
        n += jinja_equal(r, &in.list->items[i], &slots[0]);
    return jinja_int(n);
}

static struct jinja_value method_cycle(struct jinja_render *r, struct jinja_value in,
                                       const struct jinja_arguments *arguments)
{
    if (arguments->n)
        return arguments->items[in.loop->index % arguments->n];
    jinja_fail(r, "loop.cycle needs an argument");
    return jinja_none();
}

static struct jinja_value method_changed(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_arguments *arguments)
{
    struct jinja_value now = jinja_new_list(r);

    for (int i = 0; i < arguments->n; i++)
        jinja_list_add(r->arena, now.list, arguments->items[i]);
    int is = !jinja_is_given(&in.loop->changed) || !jinja_equal(r, &in.loop->changed, &now);
    in.loop->changed = now;
    return jinja_bool(is);
}

static struct jinja_value method_refused(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_arguments *arguments)
{
    (void)arguments;
    jinja_fail(r, "a template must not modify a %s", jinja_kind_name(&in));
    return jinja_none();
}

struct method {
    enum jinja_kind of;
    struct jinja_function function;
};

static const struct method methods[] = {
    { JINJA_STRING, { "strip", method_strip, { "chars" }, 0, NULL } },
    { JINJA_STRING, { "lstrip", method_lstrip, { "chars" }, 0, NULL } },
    { JINJA_STRING, { "rstrip", method_rstrip, { "chars" }, 0, NULL } },
    { JINJA_STRING, { "split", method_split, { "sep", "maxsplit" }, 0, NULL } },
    { JINJA_STRING, { "rsplit", method_rsplit, { "sep", "maxsplit" }, 0, NULL } },
    { JINJA_STRING, { "splitlines", method_splitlines, { "keepends" }, 0, NULL } },
    { JINJA_STRING, { "startswith", method_startswith, { "prefix" }, 1, NULL } },
    { JINJA_STRING, { "endswith", method_endswith, { "suffix" }, 1, NULL } },
    { JINJA_STRING, { "removeprefix", method_removeprefix, { "prefix" }, 1, NULL } },
    { JINJA_STRING, { "removesuffix", method_removesuffix, { "suffix" }, 1, NULL } },
    { JINJA_STRING, { "replace", method_replace, { "old", "new", "count" }, 2, NULL } },
    { JINJA_STRING, { "upper", method_upper, { NULL }, 0, NULL } },
    { JINJA_STRING, { "lower", method_lower, { NULL }, 0, NULL } },
    { JINJA_STRING, { "title", method_title, { NULL }, 0, NULL } },
    { JINJA_STRING, { "capitalize", method_capitalize, { NULL }, 0, NULL } },
    { JINJA_STRING, { "join", method_join, { "iterable" }, 1, NULL } },
    { JINJA_STRING, { "find", method_find, { "sub" }, 1, NULL } },
    { JINJA_STRING, { "count", method_count, { "sub" }, 1, NULL } },
    { JINJA_STRING, { "isdigit", method_isdigit, { NULL }, 0, NULL } },
    { JINJA_STRING, { "isspace", method_isspace, { NULL }, 0, NULL } },
    { JINJA_DICT, { "get", method_get, { "key", "default" }, 1, NULL } },
    { JINJA_DICT, { "items", method_items, { NULL }, 0, NULL } },
    { JINJA_DICT, { "keys", method_keys, { NULL }, 0, NULL } },
    { JINJA_DICT, { "values", method_values, { NULL }, 0, NULL } },
    { JINJA_DICT, { "copy", method_copy, { NULL }, 0, NULL } },
    { JINJA_DICT, { "update", NULL, { NULL }, 0, method_refused } },
    { JINJA_DICT, { "pop", NULL, { NULL }, 0, method_refused } },
    { JINJA_DICT, { "popitem", NULL, { NULL }, 0, method_refused } },
    { JINJA_DICT, { "setdefault", NULL, { NULL }, 0, method_refused } },
    { JINJA_DICT, { "clear", NULL, { NULL }, 0, method_refused } },
    { JINJA_LIST, { "index", method_index, { "value" }, 1, NULL } },
    { JINJA_LIST, { "count", method_count_items, { "value" }, 1, NULL } },
    { JINJA_LIST, { "copy", method_copy, { NULL }, 0, NULL } },
    { JINJA_LIST, { "append", NULL, { NULL }, 0, method_refused } },
    { JINJA_LIST, { "extend", NULL, { NULL }, 0, method_refused } },
    { JINJA_LIST, { "insert", NULL, { NULL }, 0, method_refused } },
    { JINJA_LIST, { "pop", NULL, { NULL }, 0, method_refused } },
    { JINJA_LIST, { "remove", NULL, { NULL }, 0, method_refused } },
    { JINJA_LIST, { "sort", NULL, { NULL }, 0, method_refused } },
    { JINJA_LIST, { "reverse", NULL, { NULL }, 0, method_refused } },
    { JINJA_LIST, { "clear", NULL, { NULL }, 0, method_refused } },
    { JINJA_TUPLE, { "index", method_index, { "value" }, 1, NULL } },
    { JINJA_TUPLE, { "count", method_count_items, { "value" }, 1, NULL } },
    { JINJA_LOOP, { "cycle", NULL, { NULL }, 0, method_cycle } },
    { JINJA_LOOP, { "changed", NULL, { NULL }, 0, method_changed } },
};

const struct jinja_function *jinja_find_method(const struct jinja_value *of, struct text name)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (methods[i].of == of->kind && text_is(name, methods[i].function.name))
            return &methods[i].function;
    return NULL;
}
