/*
 * jinja_ops.c - arithmetic, attributes, items and slices
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "template/jinja_impl.h"

static struct jinja_value nothing(void)
{
    return jinja_undefined(text_of("nothing"));
}

static int integer_sum(int op, int64_t a, int64_t b, int64_t *out)
{
    switch (op) {
    case '+':
        return __builtin_add_overflow(a, b, out);
    case '-':
        return __builtin_sub_overflow(a, b, out);
    default:
        return __builtin_mul_overflow(a, b, out);
    }
}

/* The quotient is rounded down and the remainder has the sign of b, as in Python. */
static struct jinja_value divide(struct jinja_render *r, int op, struct jinja_value a,
                                 struct jinja_value b)
{
    double x = jinja_number(&a), y = jinja_number(&b);
    int floats = a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT;

    if (y == 0) {
        jinja_fail(r, "division by zero");
        return nothing();
    }
    if (op == '/')
        return jinja_float(x / y);
    if (floats)
        return jinja_float(op == '%' ? x - y * floor(x / y) : floor(x / y));
    if (b.i == -1)
        return op == '%' ? jinja_int(0) : jinja_binary(r, '-', jinja_int(0), a);
    int64_t quotient = a.i / b.i, rest = a.i % b.i;
    int below = rest && (rest < 0) != (b.i < 0);
    return jinja_int(op == '%' ? rest + (below ? b.i : 0) : quotient - below);
}

static struct jinja_value power(struct jinja_render *r, struct jinja_value a, struct jinja_value b)
{
    int64_t result = 1, base = a.i;

    if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT || b.i < 0)
        return jinja_float(pow(jinja_number(&a), jinja_number(&b)));
    for (int64_t n = b.i; n > 0; n >>= 1) {
        int wrong = n & 1 ? __builtin_mul_overflow(result, base, &result) : 0;

        if (!wrong && n > 1)
            wrong = __builtin_mul_overflow(base, base, &base);
        if (wrong) {
            jinja_fail(r, "an integer of more than 64 bits");
            return nothing();
        }
    }
    return jinja_int(result);
}

static struct jinja_value arithmetic(struct jinja_render *r, int op, struct jinja_value a,
                                     struct jinja_value b)
{
    double x = jinja_number(&a), y = jinja_number(&b);
    int64_t i;

    if (op == '/' || op == '%' || op == JINJA_OP('/', '/'))
        return divide(r, op, a, b);
    if (op == JINJA_OP('*', '*'))
        return power(r, a, b);
    if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT)
        return jinja_float(op == '+' ? x + y : op == '-' ? x - y : x * y);
    if (integer_sum(op, a.i, b.i, &i)) {
        jinja_fail(r, "an integer of more than 64 bits");
        return nothing();
    }
    return jinja_int(i);
}

/* Room for all of n items at once: growing step by step takes it several times. */
static void reserve_list(struct jinja_render *r, struct jinja_list *list, int64_t n)
{
    if (n >= INT_MAX / 2)
        jinja_fail(r, "a list of %lld items", (long long)n);
    if (n == 0 || jinja_reserve(r, NULL, sizeof *list->items * (size_t)n) < 0)
        return;
    list->items = arena_array(r->arena, struct jinja_value, n);
    list->capacity = (int)n;
}

static struct jinja_value join_lists(struct jinja_render *r, struct jinja_value a,
                                     struct jinja_value b)
{
    struct jinja_value out = jinja_new_list(r);

    out.kind = a.kind;
    jinja_step(r, 24 * ((size_t)a.list->n + (size_t)b.list->n));
    reserve_list(r, out.list, (int64_t)a.list->n + b.list->n);
    for (int i = 0; i < a.list->n && !r->failed; i++)
        jinja_list_add(r->arena, out.list, a.list->items[i]);
    for (int i = 0; i < b.list->n && !r->failed; i++)
        jinja_list_add(r->arena, out.list, b.list->items[i]);
    return out;
}

static struct jinja_value join_texts(struct jinja_render *r, struct text a, struct text b)
{
    if (jinja_step(r, a.n + b.n) < 0 || jinja_reserve(r, NULL, a.n + b.n) < 0)
        return nothing();
    char *data = arena_alloc(r->arena, a.n + b.n + 1);
    if (a.n)
        memcpy(data, a.data, a.n);
    if (b.n)
        memcpy(data + a.n, b.data, b.n);
    return jinja_string((struct text){ data, a.n + b.n });
}

static struct jinja_value repeat(struct jinja_render *r, struct jinja_value of,
                                 struct jinja_value times)
{
    int64_t n = times.i < 0 ? 0 : times.i;
    struct jinja_value out = of.kind == JINJA_STRING ? jinja_literal("") : jinja_new_list(r);
    size_t each = of.kind == JINJA_STRING ? of.s.n : 24 * (size_t)of.list->n;

    if (!each || !n)
        return out;
    if ((uint64_t)n > r->limits->bytes / each || jinja_step(r, each * (size_t)n) < 0 ||
        jinja_reserve(r, NULL, each * (size_t)n) < 0) {
        jinja_fail(r, "a text of more than %zu bytes", r->limits->bytes);
        return nothing();
    }
    if (of.kind != JINJA_STRING) {
        out.kind = of.kind;
        reserve_list(r, out.list, n * of.list->n);
        for (int64_t i = 0; i < n && !r->failed; i++)
            for (int j = 0; j < of.list->n; j++)
                jinja_list_add(r->arena, out.list, of.list->items[j]);
        return out;
    }
    char *data = arena_alloc(r->arena, each * (size_t)n + 1);
    for (size_t i = 0; i < (size_t)n; i++)
        memcpy(data + i * each, of.s.data, each);
    return jinja_string((struct text){ data, each * (size_t)n });
}

static bool is_sequence(const struct jinja_value *v)
{
    return v->kind == JINJA_LIST || v->kind == JINJA_TUPLE;
}

static bool is_integer(const struct jinja_value *v)
{
    return v->kind == JINJA_INT || v->kind == JINJA_BOOL;
}

struct jinja_value jinja_binary(struct jinja_render *r, int op, struct jinja_value a,
                                struct jinja_value b)
{
    const struct jinja_value *undefined = a.kind == JINJA_UNDEFINED   ? &a
                                          : b.kind == JINJA_UNDEFINED ? &b
                                                                      : NULL;

    if (r->failed)
        return nothing();
    if (jinja_is_number(&a) && jinja_is_number(&b))
        return arithmetic(r, op, a, b);
    if (op == '+' && a.kind == JINJA_STRING && b.kind == JINJA_STRING)
        return join_texts(r, a.s, b.s);
    if (op == '+' && is_sequence(&a) && a.kind == b.kind)
        return join_lists(r, a, b);
    if (op == '*' && (a.kind == JINJA_STRING || is_sequence(&a)) && is_integer(&b))
        return repeat(r, a, b);
    if (op == '*' && (b.kind == JINJA_STRING || is_sequence(&b)) && is_integer(&a))
        return repeat(r, b, a);
    if (undefined)
        jinja_fail(r, "'%.*s' is undefined", (int)undefined->s.n, undefined->s.data);
    else
        jinja_fail(r, "%s %c%s %s cannot be computed", jinja_kind_name(&a), op & 255,
                   op > 255 ? (char[]){ (char)(op >> 8), 0 } : "", jinja_kind_name(&b));
    return nothing();
}

static struct jinja_value loop_attribute(struct jinja_loop *loop, struct text name)
{
    static const char *const names[] = { "index",    "index0",    "first", "last",  "length",
                                         "revindex", "revindex0", "depth", "depth0" };
    const int values[] = { loop->index + 1,
                           loop->index,
                           loop->index == 0,
                           loop->index == loop->n - 1,
                           loop->n,
                           loop->n - loop->index,
                           loop->n - loop->index - 1,
                           1,
                           0 };

    for (int i = 0; i < 9; i++)
        if (text_is(name, names[i]))
            return i == 2 || i == 3 ? jinja_bool(values[i]) : jinja_int(values[i]);
    if (text_is(name, "previtem") && loop->index > 0)
        return loop->items[loop->index - 1];
    if (text_is(name, "nextitem") && loop->index + 1 < loop->n)
        return loop->items[loop->index + 1];
    return jinja_undefined(name);
}

/* Undefined has nothing, not even an undefined attribute. */
static bool has_parts(struct jinja_render *r, const struct jinja_value *v, struct text name)
{
    if (v->kind == JINJA_UNDEFINED && !r->failed)
        jinja_fail(r, "'%.*s' is undefined, and so has no '%.*s'", (int)(v->s.n < 80 ? v->s.n : 80),
                   v->s.data, (int)(name.n < 80 ? name.n : 80), name.data);
    return !r->failed;
}

static struct jinja_value method_of(struct jinja_render *r, struct jinja_value of,
                                    const struct jinja_function *function)
{
    struct jinja_value v = { JINJA_METHOD, { .method = arena_new(r->arena, struct jinja_method) } };

    *v.method = (struct jinja_method){ function, of };
    return v;
}

struct jinja_value jinja_attribute(struct jinja_render *r, struct jinja_value of, struct text name)
{
    const struct jinja_function *method;
    const struct jinja_value *found = NULL;

    if (!has_parts(r, &of, name))
        return nothing();
    if ((method = jinja_find_method(&of, name)))
        return method_of(r, of, method);
    if (of.kind == JINJA_LOOP)
        return loop_attribute(of.loop, name);
    if (of.kind == JINJA_DICT || of.kind == JINJA_NAMESPACE)
        found = jinja_dict_find_text(of.dict, name);
    return found ? *found : jinja_undefined(name);
}

static struct jinja_value item_at(struct jinja_render *r, struct jinja_value of, int64_t i)
{
    struct jinja_list items = jinja_items(r, &of);

    if (i < 0)
        i += items.n;
    return i >= 0 && i < items.n ? items.items[i] : jinja_undefined(text_of("item out of range"));
}

struct jinja_value jinja_item(struct jinja_render *r, struct jinja_value of, struct jinja_value key)
{
    const struct jinja_function *method;
    struct text name = key.kind == JINJA_STRING ? key.s : text_of("item");

    if (!has_parts(r, &of, name))
        return nothing();
    if (of.kind == JINJA_DICT) {
        const struct jinja_value *found = jinja_dict_find(of.dict, key);

        if (found)
            return *found;
    }
    if (key.kind == JINJA_STRING) {
        if ((method = jinja_find_method(&of, name)))
            return method_of(r, of, method);
        if (of.kind == JINJA_LOOP || of.kind == JINJA_NAMESPACE)
            return jinja_attribute(r, of, name);
        return jinja_undefined(name);
    }
    if ((of.kind == JINJA_STRING || is_sequence(&of)) && is_integer(&key))
        return item_at(r, of, key.i);
    return jinja_undefined(name);
}

/* A bound of a slice: none, or counted from the end if negative; kept within low..high. */
static int64_t bound(struct jinja_render *r, const struct jinja_value *v, int64_t otherwise,
                     int64_t n, int64_t low, int64_t high)
{
    if (v->kind == JINJA_ABSENT || v->kind == JINJA_NONE)
        return otherwise;
    if (!is_integer(v)) {
        jinja_fail(r, "a slice's bound is %s, not an integer", jinja_kind_name(v));
        return 0;
    }
    int64_t i = v->i < 0 ? (v->i < -n ? -n - 1 : v->i) + n : v->i;
    return i < low ? low : i > high ? high : i;
}

struct jinja_value jinja_slice(struct jinja_render *r, struct jinja_value of,
                               const struct jinja_value bounds[3])
{
    struct jinja_list items = { 0 };
    struct jinja_value out = jinja_new_list(r);
    struct str text = { 0 };

    if (!has_parts(r, &of, text_of("slice")))
        return nothing();
    if (of.kind != JINJA_STRING && !is_sequence(&of))
        jinja_fail(r, "%s has no slices", jinja_kind_name(&of));
    else
        items = jinja_items(r, &of);
    int64_t n = items.n, step = bound(r, &bounds[2], 1, 0, INT64_MIN + 1, INT64_MAX);
    if (step == 0)
        jinja_fail(r, "a slice's step is 0");
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    int64_t begin = bound(r, &bounds[0], step > 0 ? 0 : n - 1, n, low, high);
    int64_t end = bound(r, &bounds[1], step > 0 ? n : -1, n, low, high);
    for (int64_t i = begin; !r->failed && (step > 0 ? i < end : i > end); i += step) {
        if (of.kind == JINJA_STRING)
            jinja_add(r, &text, items.items[i].s);
        else
            jinja_list_add(r->arena, out.list, items.items[i]);
        if (jinja_step(r, 16) < 0 || (step > 0 ? step >= n - i : -step > i))
            break;
    }
    out.kind = of.kind;
    if (of.kind == JINJA_STRING)
        out = jinja_copy_string(r, str_text(&text), text.length);
    str_release(&text);
    return r->failed ? nothing() : out;
}
