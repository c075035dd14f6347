/*
 * jinja_sequences.c - filters of lists, tuples and dicts: order, selection, and what they hold
 */
#include <stdlib.h>

#include "template/jinja_impl.h"

static struct jinja_value as_list(struct jinja_render *r, struct jinja_list items)
{
    struct jinja_value v = jinja_new_list(r);

    *v.list = items;
    return v;
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
    return in.kind == JINJA_STRING ? jinja_take_string(r, &text) : as_list(r, out);
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
        bool is_number = name.n > 0 && name.n < 10;

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
    struct text between = jinja_is_given(&slots[0]) ? jinja_text(r, &slots[0]) : text_of("");

    for (int i = 0; i < items.n && !r->failed; i++) {
        struct jinja_value v = jinja_is_given(&slots[1])
                                   ? attribute_path(r, items.items[i], &slots[1])
                                   : items.items[i];
        struct text s = jinja_text(r, &v);

        if (jinja_step(r, s.n + between.n) < 0)
            break;
        if (i)
            jinja_add(r, &out, between);
        jinja_add(r, &out, s);
    }
    return jinja_take_string(r, &out);
}

/* For sort, unique, min and max: an attribute, and texts in lower case unless case matters. */
static struct jinja_value sort_key(struct jinja_render *r, struct jinja_value item,
                                   const struct jinja_value *attribute, bool with_case)
{
    struct jinja_value key = jinja_is_given(attribute) && attribute->kind != JINJA_NONE
                                 ? attribute_path(r, item, attribute)
                                 : item;

    return key.kind == JINJA_STRING && !with_case ? jinja_to_case(r, key, CASE_LOWER) : key;
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
                                const struct jinja_value *attribute, bool with_case, bool reverse)
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
        sorted(r, jinja_items(r, &in), &slots[1], jinja_is_true(&slots[0]), false);

    return items.n ? items.items[0] : jinja_undefined(text_of("no item"));
}

static struct jinja_value filter_max(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    struct jinja_list items =
        sorted(r, jinja_items(r, &in), &slots[1], jinja_is_true(&slots[0]), true);

    return items.n ? items.items[0] : jinja_undefined(text_of("no item"));
}

static struct jinja_value filter_sum(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    struct jinja_list items = jinja_items(r, &in);
    struct jinja_value total = jinja_is_given(&slots[1]) ? slots[1] : jinja_int(0);

    for (int i = 0; i < items.n && !r->failed; i++)
        total =
            jinja_binary(r, '+', total,
                         jinja_is_given(&slots[0]) ? attribute_path(r, items.items[i], &slots[0])
                                                   : items.items[i]);
    return total;
}

static struct jinja_value filter_unique(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    struct jinja_list items = jinja_items(r, &in), seen = { 0 }, out = { 0 };

    for (int i = 0; i < items.n && jinja_step(r, 16 * (size_t)seen.n) == 0; i++) {
        struct jinja_value key = sort_key(r, items.items[i], &slots[1], jinja_is_true(&slots[0]));
        bool is_new = true;

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

    if (jinja_is_given(&slots[1]) && text_is(jinja_text(r, &slots[1]), "value"))
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

/*
 * Filters of Jinja are lazy: what is not iterable is an error only where it is iterated over, so
 * none gives no items here.
 */
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

    if (!jinja_is_given(&attribute)) {
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

        if (v.kind == JINJA_UNDEFINED && jinja_is_given(&otherwise))
            v = otherwise;
        jinja_list_add(r->arena, out.list, v);
    }
    return out;
}

enum { CHOOSE_BY_ATTRIBUTE = 1, CHOOSE_REJECTED = 2 };

/* The items for which a test is true, or is not; flags: of the enum above. */
static struct jinja_value choose(struct jinja_render *r, struct jinja_value in,
                                 const struct jinja_arguments *arguments, int flags)
{
    bool by_attribute = flags & CHOOSE_BY_ATTRIBUTE, reject = flags & CHOOSE_REJECTED;
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
    return choose(r, in, a, 0);
}

static struct jinja_value filter_reject(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_arguments *a)
{
    return choose(r, in, a, CHOOSE_REJECTED);
}

static struct jinja_value filter_selectattr(struct jinja_render *r, struct jinja_value in,
                                            const struct jinja_arguments *a)
{
    return choose(r, in, a, CHOOSE_BY_ATTRIBUTE);
}

static struct jinja_value filter_rejectattr(struct jinja_render *r, struct jinja_value in,
                                            const struct jinja_arguments *a)
{
    return choose(r, in, a, CHOOSE_BY_ATTRIBUTE | CHOOSE_REJECTED);
}

static const struct jinja_function filters[] = {
    { "count", filter_length, { NULL }, 0, NULL },
    { "dictsort", filter_dictsort, { "case_sensitive", "by", "reverse" }, 0, NULL },
    { "first", filter_first, { NULL }, 0, NULL },
    { "items", filter_items, { NULL }, 0, NULL },
    { "join", filter_join, { "d", "attribute" }, 0, NULL },
    { "last", filter_last, { NULL }, 0, NULL },
    { "length", filter_length, { NULL }, 0, NULL },
    { "list", filter_list, { NULL }, 0, NULL },
    { "map", NULL, { NULL }, 0, filter_map },
    { "max", filter_max, { "case_sensitive", "attribute" }, 0, NULL },
    { "min", filter_min, { "case_sensitive", "attribute" }, 0, NULL },
    { "reject", NULL, { NULL }, 0, filter_reject },
    { "rejectattr", NULL, { NULL }, 0, filter_rejectattr },
    { "reverse", filter_reverse, { NULL }, 0, NULL },
    { "select", NULL, { NULL }, 0, filter_select },
    { "selectattr", NULL, { NULL }, 0, filter_selectattr },
    { "sort", filter_sort, { "reverse", "case_sensitive", "attribute" }, 0, NULL },
    { "sum", filter_sum, { "attribute", "start" }, 0, NULL },
    { "unique", filter_unique, { "case_sensitive", "attribute" }, 0, NULL },
};

const struct jinja_function *jinja_find_sequence_filter(struct text name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (text_is(name, filters[i].name))
            return &filters[i];
    return NULL;
}
