/*
 * jinja_eval.c - expressions of the tree to values, and the limits of a rendering
 *
 * The depth is counted in jinja_eval and jinja_run, through which every recursion goes. A failure
 * is noted once; from then on everything evaluates to nothing and loops end.
 */
#include <stdarg.h>
#include <stdio.h>

#include "template/jinja_impl.h"

const struct jinja_limits jinja_limits = { .steps = 100000000,
                                           .bytes = (size_t)1 << 29,
                                           .depth = 400 };

void jinja_fail(struct jinja_render *r, const char *format, ...)
{
    char text[1024];
    va_list args;

    if (r->failed)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->failed = true;
    err_set(r->err, ERR_DATA, "%s:%d: %s", r->name, r->line, text);
}

int jinja_step(struct jinja_render *r, size_t n_bytes)
{
    r->steps += 1 + (int64_t)(n_bytes / 64);
    if (r->steps > r->limits->steps || n_bytes > r->limits->bytes)
        jinja_fail(r, "the template takes more than %lld steps", (long long)r->limits->steps);
    return jinja_reserve(r, NULL, 0);
}

int jinja_reserve(struct jinja_render *r, const struct str *out, size_t n_bytes)
{
    size_t used = r->arena->used_bytes + r->held_bytes + r->out->length;

    if (out && out != r->out)
        used += out->length;
    if (used > r->limits->bytes || n_bytes > r->limits->bytes - used)
        jinja_fail(r, "the template needs more than %zu bytes", r->limits->bytes);
    return r->failed ? -1 : 0;
}

void jinja_add(struct jinja_render *r, struct str *out, struct text text)
{
    if (jinja_reserve(r, out, text.n) == 0)
        str_add_bytes(out, text.data, text.n);
}

struct jinja_value jinja_look_up(struct jinja_render *r, struct text name)
{
    const struct jinja_value *found;
    const struct jinja_function *global;

    for (const struct jinja_scope *s = r->scope; s; s = s->parent)
        if ((found = jinja_dict_find_text(&s->names, name)))
            return *found;
    if ((global = jinja_find_global(name)))
        return (struct jinja_value){ JINJA_GLOBAL, { .global = global } };
    return jinja_undefined(name);
}

static struct jinja_value eval_list(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_value v = jinja_new_list(r);

    v.kind = node->kind == NODE_TUPLE ? JINJA_TUPLE : JINJA_LIST;
    for (const struct jinja_node *i = node->list; i && !r->failed; i = i->next)
        jinja_list_add(r->arena, v.list, jinja_eval(r, i));
    return v;
}

static struct jinja_value eval_dict(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_value v = jinja_new_dict(r);

    for (const struct jinja_node *i = node->list; i && i->next && !r->failed; i = i->next->next) {
        struct jinja_value key = jinja_eval(r, i);

        jinja_dict_set(r->arena, v.dict, key, jinja_eval(r, i->next));
    }
    return v;
}

static struct jinja_arguments eval_arguments(struct jinja_render *r, const struct jinja_node *list)
{
    struct jinja_arguments out = { 0 };
    struct jinja_list items = { 0 };
    struct jinja_dict named = { 0 };

    for (const struct jinja_node *i = list; i && !r->failed; i = i->next) {
        if (i->kind == NODE_NAMED)
            jinja_dict_set(r->arena, &named, jinja_string(i->name), jinja_eval(r, i->a));
        else
            jinja_list_add(r->arena, &items, jinja_eval(r, i));
    }
    out.items = items.items;
    out.n = items.n;
    out.named = named.items;
    out.n_named = named.n;
    return out;
}

struct jinja_value jinja_eval_call(struct jinja_render *r, const struct jinja_node *node,
                                   struct jinja_value caller)
{
    struct jinja_value of = jinja_eval(r, node->a);
    struct jinja_arguments arguments = eval_arguments(r, node->list);

    r->line = node->line;
    if (r->failed)
        return of;
    if (of.kind == JINJA_MACRO)
        return jinja_call_macro(r, of.macro, &arguments, caller);
    if (of.kind == JINJA_METHOD)
        return jinja_apply(r, of.method->function, of.method->self, &arguments);
    if (of.kind == JINJA_GLOBAL)
        return jinja_apply(r, of.global, jinja_none(), &arguments);
    if (of.kind == JINJA_UNDEFINED)
        jinja_fail(r, "'%.*s' is undefined, and so cannot be called",
                   (int)(of.s.n < 80 ? of.s.n : 80), of.s.data);
    else
        jinja_fail(r, "%s cannot be called", jinja_kind_name(&of));
    return jinja_none();
}

struct jinja_value jinja_eval_pipe(struct jinja_render *r, const struct jinja_node *node,
                                   struct jinja_value text)
{
    struct jinja_value in = text;

    if (node->a && node->a->kind == NODE_PIPE && text.kind == JINJA_STRING)
        in = jinja_eval_pipe(r, node->a, text);
    else if (node->a)
        in = jinja_eval(r, node->a);
    struct jinja_arguments arguments = eval_arguments(r, node->list);
    r->line = node->line;
    return r->failed ? in : jinja_apply(r, node->function, in, &arguments);
}

static struct jinja_value eval_test(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_value in = jinja_eval(r, node->a);
    struct jinja_arguments arguments = eval_arguments(r, node->list);

    r->line = node->line;
    return r->failed ? in : jinja_apply(r, node->function, in, &arguments);
}

static int compare_as(struct jinja_render *r, int op, const struct jinja_value *a,
                      const struct jinja_value *b)
{
    switch (op) {
    case JINJA_OP('=', '='):
        return jinja_equal(r, a, b);
    case JINJA_OP('!', '='):
        return !jinja_equal(r, a, b);
    case JINJA_IN:
        return jinja_contains(r, a, b);
    case JINJA_NOT_IN:
        return !jinja_contains(r, a, b);
    case '<':
        return jinja_compare(r, a, b) < 0;
    case '>':
        return jinja_compare(r, a, b) > 0;
    case JINJA_OP('<', '='):
        return jinja_compare(r, a, b) <= 0;
    default:
        return jinja_compare(r, a, b) >= 0;
    }
}

static struct jinja_value eval_compare(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_value left = jinja_eval(r, node->a), right;

    for (const struct jinja_node *i = node->list; i && !r->failed; i = i->next) {
        right = jinja_eval(r, i->a);
        r->line = node->line;
        if (!r->failed && !compare_as(r, i->op, &left, &right))
            return jinja_bool(0);
        left = right;
    }
    return jinja_bool(1);
}

static struct jinja_value eval_unary(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_value v = jinja_eval(r, node->a);

    r->line = node->line;
    if (!r->failed && !jinja_is_number(&v))
        jinja_fail(r, "%c%s cannot be computed", node->op, jinja_kind_name(&v));
    return r->failed ? v : jinja_binary(r, node->op, jinja_int(0), v);
}

static struct jinja_value eval_concat(struct jinja_render *r, const struct jinja_node *node)
{
    struct str out = { 0 };

    for (const struct jinja_node *i = node->list; i && !r->failed; i = i->next) {
        size_t held = r->held_bytes;

        r->held_bytes += out.length;
        struct jinja_value v = jinja_eval(r, i);
        struct text s = jinja_text(r, &v);
        r->held_bytes = held;
        if (jinja_step(r, s.n) == 0)
            jinja_add(r, &out, s);
    }
    struct jinja_value v = jinja_copy_string(r, str_text(&out), out.length);
    str_release(&out);
    return v;
}

static struct jinja_value eval_slice(struct jinja_render *r, const struct jinja_node *node)
{
    const struct jinja_node *parts[3] = { node->a, node->b, node->other };
    struct jinja_value of = jinja_eval(r, node->target), bounds[3];

    for (int i = 0; i < 3; i++)
        bounds[i] = parts[i] ? jinja_eval(r, parts[i]) : (struct jinja_value){ 0 };
    r->line = node->line;
    return r->failed ? of : jinja_slice(r, of, bounds);
}

static struct jinja_value eval_parts(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_value a = jinja_eval(r, node->a), b = jinja_none();

    if (node->b)
        b = jinja_eval(r, node->b);
    r->line = node->line;
    if (r->failed)
        return a;
    if (node->kind == NODE_GETATTR)
        return jinja_attribute(r, a, node->name);
    return node->kind == NODE_GETITEM ? jinja_item(r, a, b) : jinja_binary(r, node->op, a, b);
}

static struct jinja_value eval_choice(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_value a = jinja_eval(r, node->a);
    int is = jinja_is_true(&a);

    switch (node->kind) {
    case NODE_NOT:
        return jinja_bool(!is);
    case NODE_AND:
        return is ? jinja_eval(r, node->b) : a;
    case NODE_OR:
        return is ? a : jinja_eval(r, node->b);
    default:
        if (is)
            return jinja_eval(r, node->body);
        return node->other ? jinja_eval(r, node->other)
                           : jinja_undefined(text_of("if without else"));
    }
}

static struct jinja_value eval_node(struct jinja_render *r, const struct jinja_node *node)
{
    switch (node->kind) {
    case NODE_CONST:
        return node->value;
    case NODE_NAME:
        return jinja_look_up(r, node->name);
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_list(r, node);
    case NODE_DICT:
        return eval_dict(r, node);
    case NODE_GETATTR:
    case NODE_GETITEM:
    case NODE_BINARY:
        return eval_parts(r, node);
    case NODE_SLICE:
        return eval_slice(r, node);
    case NODE_CALL:
        return jinja_eval_call(r, node, (struct jinja_value){ 0 });
    case NODE_PIPE:
        return jinja_eval_pipe(r, node, jinja_none());
    case NODE_TEST:
        return eval_test(r, node);
    case NODE_UNARY:
        return eval_unary(r, node);
    case NODE_COMPARE:
        return eval_compare(r, node);
    case NODE_CONCAT:
        return eval_concat(r, node);
    default:
        return eval_choice(r, node);
    }
}

/* Whether there is room for one more level. */
bool jinja_enter(struct jinja_render *r, const struct jinja_node *node)
{
    r->line = node->line;
    if (r->depth >= r->limits->depth)
        jinja_fail(r, "nested deeper than %d", r->limits->depth);
    if (jinja_step(r, 0) < 0)
        return false;
    r->depth++;
    return true;
}

struct jinja_value jinja_eval(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_value v = jinja_undefined(text_of("nothing"));

    if (!jinja_enter(r, node))
        return v;
    v = eval_node(r, node);
    r->depth--;
    return v;
}
