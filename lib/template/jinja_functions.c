/*
 * jinja_functions.c - functions of templates without an object (range, namespace, ...), and how
 * filters, tests, methods and functions are called
 */
#include <string.h>
#include <time.h>

#include "template/jinja_impl.h"

struct text jinja_text_slot(struct jinja_render *r, const struct jinja_value *v)
{
    if (v->kind != JINJA_STRING)
        jinja_fail(r, "%s where a string is needed", jinja_kind_name(v));
    return v->kind == JINJA_STRING ? v->s : text_of("");
}

int64_t jinja_integer_slot(struct jinja_render *r, const struct jinja_value *v, int64_t otherwise)
{
    if (!jinja_is_given(v))
        return otherwise;
    if (v->kind != JINJA_INT && v->kind != JINJA_BOOL)
        jinja_fail(r, "%s where an integer is needed", jinja_kind_name(v));
    return r->failed ? otherwise : v->i;
}

static struct jinja_value call_range(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    int64_t step = jinja_integer_slot(r, &slots[2], 1);
    int64_t begin = jinja_is_given(&slots[1]) ? jinja_integer_slot(r, &slots[0], 0) : 0;
    int64_t end = jinja_integer_slot(r, &slots[jinja_is_given(&slots[1])], 0);
    struct jinja_value out = jinja_new_list(r);

    (void)in;
    if (step == 0)
        jinja_fail(r, "range with a step of 0");
    for (int64_t i = begin; (step > 0 ? i < end : i > end) && jinja_step(r, 24) == 0;) {
        jinja_list_add(r->arena, out.list, jinja_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return out;
}

static struct jinja_value dict_of(struct jinja_render *r, const struct jinja_arguments *arguments)
{
    struct jinja_value out = jinja_new_dict(r);

    if (arguments->n > 1 || (arguments->n && arguments->items[0].kind != JINJA_DICT &&
                             arguments->items[0].kind != JINJA_NAMESPACE)) {
        jinja_fail(r, "dict and namespace take a dict, and arguments with names");
        return out;
    }
    for (int i = 0; arguments->n && i < arguments->items[0].dict->n && jinja_step(r, 48) == 0; i++)
        jinja_dict_set(r->arena, out.dict, arguments->items[0].dict->items[i].key,
                       arguments->items[0].dict->items[i].value);
    for (int i = 0; i < arguments->n_named; i++)
        jinja_dict_set(r->arena, out.dict, arguments->named[i].key, arguments->named[i].value);
    return out;
}

static struct jinja_value call_dict(struct jinja_render *r, struct jinja_value in,
                                    const struct jinja_arguments *arguments)
{
    (void)in;
    return dict_of(r, arguments);
}

static struct jinja_value call_namespace(struct jinja_render *r, struct jinja_value in,
                                         const struct jinja_arguments *arguments)
{
    struct jinja_value out = dict_of(r, arguments);

    (void)in;
    out.kind = JINJA_NAMESPACE;
    return out;
}

static struct jinja_value call_raise(struct jinja_render *r, struct jinja_value in,
                                     const struct jinja_value *slots)
{
    struct text s = jinja_text(r, &slots[0]);

    (void)in;
    if (!r->failed) {
        jinja_fail(r, "the template refuses the conversation: %.*s", (int)(s.n < 800 ? s.n : 800),
                   s.data);
        r->refused = true;
    }
    return jinja_none();
}

static struct jinja_value call_strftime(struct jinja_render *r, struct jinja_value in,
                                        const struct jinja_value *slots)
{
    struct text format = jinja_text_slot(r, &slots[0]);
    char pattern[128], out[512];
    time_t now = time(NULL);
    struct tm tm;

    (void)in;
    if (format.n >= sizeof pattern || !localtime_r(&now, &tm))
        jinja_fail(r, "a time format of %zu bytes", format.n);
    if (r->failed || !format.n)
        return jinja_literal("");
    memcpy(pattern, format.data, format.n);
    pattern[format.n] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(out, sizeof out, pattern, &tm);
#pragma GCC diagnostic pop
    return jinja_copy_string(r, out, n);
}

static const struct jinja_function globals[] = {
    { "range", call_range, { "start", "stop", "step" }, 1, NULL },
    { "dict", NULL, { NULL }, 0, call_dict },
    { "namespace", NULL, { NULL }, 0, call_namespace },
    { "raise_exception", call_raise, { "message" }, 1, NULL },
    { "strftime_now", call_strftime, { "format" }, 1, NULL },
};

const struct jinja_function *jinja_find_global(struct text name)
{
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (text_is(name, globals[i].name))
            return &globals[i];
    return NULL;
}

/* Arguments to the slots of parameters. */
static int bind(struct jinja_render *r, const struct jinja_function *f,
                const struct jinja_arguments *arguments, struct jinja_value *slots)
{
    int n = 0;

    while (n < JINJA_N_PARAMETERS && f->parameters[n])
        n++;
    if (arguments->n > n)
        jinja_fail(r, "'%s' takes at most %d arguments", f->name, n);
    for (int i = 0; i < arguments->n && i < n; i++)
        slots[i] = arguments->items[i];
    for (int i = 0; i < arguments->n_named; i++) {
        int k = 0;

        while (k < n && !text_is(arguments->named[i].key.s, f->parameters[k]))
            k++;
        if (k == n || jinja_is_given(&slots[k]))
            jinja_fail(r, "'%s' takes no argument '%.*s' here", f->name,
                       (int)arguments->named[i].key.s.n, arguments->named[i].key.s.data);
        else
            slots[k] = arguments->named[i].value;
    }
    for (int i = 0; i < f->n_needed; i++)
        if (!jinja_is_given(&slots[i]))
            jinja_fail(r, "'%s' needs its argument '%s'", f->name, f->parameters[i]);
    return r->failed ? -1 : 0;
}

struct jinja_value jinja_apply(struct jinja_render *r, const struct jinja_function *function,
                               struct jinja_value in, const struct jinja_arguments *arguments)
{
    struct jinja_value slots[JINJA_N_PARAMETERS] = { { 0 } };

    struct jinja_value out = in;

    if (r->depth >= r->limits->depth)
        jinja_fail(r, "nested deeper than %d", r->limits->depth);
    if (jinja_step(r, in.kind == JINJA_STRING ? in.s.n : 0) < 0)
        return in;
    r->depth++; /* the filter of map can be map */
    if (function->variadic)
        out = function->variadic(r, in, arguments);
    else if (bind(r, function, arguments, slots) == 0)
        out = function->call(r, in, slots);
    r->depth--;
    return out;
}
