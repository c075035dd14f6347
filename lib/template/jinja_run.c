/*
 * jinja_run.c - statements: they write text, assign names and call macros
 *
 * Names are looked up from the innermost scope outwards. Each round of a loop, a {% with %} block,
 * and the body of a macro or of a block whose text is captured has a scope of its own, so what is
 * set there is not seen outside; if has none. A macro's scope has as its parent the scope of its
 * definition, not that of the call.
 */
#include "template/jinja_impl.h"

void jinja_assign(struct jinja_render *r, const struct jinja_node *target, struct jinja_value value)
{
    if (r->failed)
        return;
    if (target->kind == NODE_FIELD) {
        struct jinja_value space = jinja_look_up(r, target->name);

        if (space.kind == JINJA_NAMESPACE)
            jinja_dict_set(r->arena, space.dict, target->value, value);
        else
            jinja_fail(r, "'%.*s' is not a namespace, so its fields cannot be set",
                       (int)(target->name.n < 80 ? target->name.n : 80), target->name.data);
    } else if (target->kind == NODE_NAME) {
        jinja_dict_set(r->arena, &r->scope->names, jinja_string(target->name), value);
    } else {
        struct jinja_list items = jinja_items(r, &value);
        const struct jinja_node *each = target->list;

        for (int i = 0; i < items.n && each && !r->failed; i++, each = each->next)
            if (!each->next == (i == items.n - 1))
                jinja_assign(r, each, items.items[i]);
            else
                break;
        if (each)
            jinja_fail(r, "the number of names is not that of values (%d)", items.n);
    }
}

static void push_scope(struct jinja_render *r, struct jinja_scope *parent)
{
    struct jinja_scope *scope = arena_new(r->arena, struct jinja_scope);

    scope->parent = parent;
    r->scope = scope;
}

struct jinja_value jinja_capture(struct jinja_render *r, const struct jinja_node *body)
{
    struct jinja_scope *outer = r->scope;
    struct str *out = r->out, text = { 0 };
    size_t held = r->held_bytes;

    push_scope(r, outer);
    r->held_bytes += out->length;
    r->out = &text;
    jinja_run(r, body);
    struct jinja_value v = jinja_copy_string(r, str_text(&text), text.length);
    r->out = out;
    r->held_bytes = held;
    r->scope = outer;
    str_release(&text);
    return v;
}

/*
 * The items for which the loop's condition is true; it is evaluated before the first round, as in
 * Jinja.
 */
static struct jinja_list kept_items(struct jinja_render *r, const struct jinja_node *node,
                                    struct jinja_list items)
{
    struct jinja_scope *outer = r->scope;
    struct jinja_list kept = { 0 };

    for (int i = 0; i < items.n && !r->failed; i++) {
        push_scope(r, outer);
        jinja_assign(r, node->target, items.items[i]);
        struct jinja_value is = jinja_eval(r, node->b);
        if (jinja_is_true(&is))
            jinja_list_add(r->arena, &kept, items.items[i]);
    }
    r->scope = outer;
    return kept;
}

static void run_for(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_scope *outer = r->scope;
    struct jinja_value of = jinja_eval(r, node->a);
    struct jinja_list items = { 0 };

    r->line = node->line;
    if (!r->failed)
        items = jinja_items(r, &of);
    if (node->b)
        items = kept_items(r, node, items);
    struct jinja_loop *loop = arena_new(r->arena, struct jinja_loop);
    *loop = (struct jinja_loop){ items.items, items.n, 0, { 0 } };
    for (; loop->index < items.n && !r->failed && r->leaving != NODE_BREAK; loop->index++) {
        push_scope(r, outer);
        r->leaving = 0;
        jinja_dict_set(r->arena, &r->scope->names, jinja_literal("loop"),
                       (struct jinja_value){ JINJA_LOOP, { .loop = loop } });
        r->line = node->line;
        jinja_assign(r, node->target, items.items[loop->index]);
        jinja_run(r, node->body);
        r->scope = outer;
    }
    r->leaving = 0;
    if (!items.n && node->other) {
        push_scope(r, outer);
        jinja_run(r, node->other);
    }
    r->scope = outer;
}

static void run_if(struct jinja_render *r, const struct jinja_node *node)
{
    for (;;) {
        struct jinja_value test = jinja_eval(r, node->a);

        if (r->failed)
            return;
        if (jinja_is_true(&test)) {
            jinja_run(r, node->body);
            return;
        }
        /* An elif is an if alone; what an else holds ends with another block. */
        if (!node->other || node->other->kind != NODE_IF || node->other->next || !node->other->op)
            break;
        node = node->other;
    }
    if (node->other)
        jinja_run(r, node->other);
}

static void run_set(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_value v;

    if (!node->op) {
        v = jinja_eval(r, node->a);
    } else {
        v = jinja_capture(r, node->body);
        if (node->a && !r->failed)
            v = jinja_eval_pipe(r, node->a, v);
    }
    r->line = node->line;
    jinja_assign(r, node->target, v);
}

static void write_value(struct jinja_render *r, struct jinja_value v)
{
    struct text s = jinja_text(r, &v);

    if (!r->failed && jinja_step(r, s.n) == 0)
        jinja_add(r, r->out, s);
}

/* {% with %}: what is set is seen inside; the values are computed outside. */
static void run_scope(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_scope *outer = r->scope, *inner;

    push_scope(r, outer);
    inner = r->scope;
    for (const struct jinja_node *set = node->list; set && !r->failed; set = set->next) {
        r->scope = outer;
        struct jinja_value v = jinja_eval(r, set->a);
        r->scope = inner;
        jinja_assign(r, set->target, v);
    }
    jinja_run(r, node->body);
    r->scope = outer;
}

static void run_generation(struct jinja_render *r, const struct jinja_node *node)
{
    size_t begin = r->whole->length;
    struct jinja_value text = jinja_capture(r, node->body);
    struct jinja_spans *spans = r->spans;

    if (r->failed)
        return;
    if (spans) {
        spans->items = arena_grow(r->arena, spans->items, sizeof *spans->items, &spans->capacity,
                                  spans->n + 1);
        spans->items[spans->n].begin = begin;
        spans->items[spans->n++].n_codes = text_length(text.s);
    }
    write_value(r, text);
}

static void run_node(struct jinja_render *r, const struct jinja_node *node)
{
    struct jinja_macro *macro;

    switch (node->kind) {
    case NODE_DATA:
        write_value(r, node->value);
        break;
    case NODE_OUTPUT:
        write_value(r, jinja_eval(r, node->a));
        break;
    case NODE_IF:
        run_if(r, node);
        break;
    case NODE_FOR:
        run_for(r, node);
        break;
    case NODE_SET:
        run_set(r, node);
        break;
    case NODE_SCOPE:
        run_scope(r, node);
        break;
    case NODE_GENERATION:
        run_generation(r, node);
        break;
    case NODE_FILTER:
        write_value(r, jinja_eval_pipe(r, node->a, jinja_capture(r, node->body)));
        break;
    case NODE_MACRO:
    case NODE_CALL_BLOCK:
        macro = arena_new(r->arena, struct jinja_macro);
        *macro = (struct jinja_macro){ node, r->scope };
        struct jinja_value v = { JINJA_MACRO, { .macro = macro } };
        if (node->kind == NODE_CALL_BLOCK)
            write_value(r, jinja_eval_call(r, node->a, v));
        else
            jinja_dict_set(r->arena, &r->scope->names, jinja_string(node->name), v);
        break;
    default:
        r->leaving = (int)node->kind;
    }
}

void jinja_run(struct jinja_render *r, const struct jinja_node *body)
{
    for (; body && !r->failed && !r->leaving; body = body->next) {
        if (!jinja_enter(r, body))
            break;
        run_node(r, body);
        r->depth--;
    }
}

static void bind_parameters(struct jinja_render *r, const struct jinja_node *list,
                            const struct jinja_arguments *arguments)
{
    int i = 0, n_used = 0;

    for (const struct jinja_node *p = list; p && !r->failed; p = p->next, i++) {
        struct jinja_value v = jinja_undefined(p->name), *found = NULL;

        for (int k = 0; k < arguments->n_named; k++)
            if (text_equal(arguments->named[k].key.s, p->name))
                found = &arguments->named[k].value;
        n_used += found != NULL;
        if (found && i < arguments->n)
            jinja_fail(r, "the argument '%.*s' is given twice", (int)p->name.n, p->name.data);
        if (i < arguments->n)
            v = arguments->items[i];
        else if (found)
            v = *found;
        else if (p->a)
            v = jinja_eval(r, p->a);
        jinja_dict_set(r->arena, &r->scope->names, jinja_string(p->name), v);
    }
    if (i < arguments->n || n_used < arguments->n_named)
        jinja_fail(r, "the macro has no such argument");
}

struct jinja_value jinja_call_macro(struct jinja_render *r, struct jinja_macro *macro,
                                    const struct jinja_arguments *arguments,
                                    struct jinja_value caller)
{
    struct jinja_scope *scope = r->scope;

    push_scope(r, macro->scope);
    if (caller.kind != JINJA_ABSENT)
        jinja_dict_set(r->arena, &r->scope->names, jinja_literal("caller"), caller);
    bind_parameters(r, macro->node->list, arguments);
    struct jinja_value v = jinja_capture(r, macro->node->body);
    r->scope = scope;
    return v;
}

int jinja_render_spans(const struct jinja *jinja, const struct jinja_limits *limits,
                       const struct jinja_dict *variables, struct arena *arena, struct str *out,
                       struct jinja_spans *spans, struct err *err)
{
    struct str text = { 0 };
    struct jinja_scope outer = { .names = *variables };
    struct jinja_render r = { .name = jinja->name,
                              .arena = arena,
                              .limits = limits,
                              .out = &text,
                              .whole = &text,
                              .spans = spans,
                              .err = err };

    push_scope(&r, &outer);
    jinja_run(&r, jinja->body);
    if (!r.failed)
        str_add_bytes(out, str_text(&text), text.length);
    str_release(&text);
    return r.failed ? -1 : 0;
}

int jinja_render(const struct jinja *jinja, const struct jinja_limits *limits,
                 const struct jinja_dict *variables, struct arena *arena, struct str *out,
                 struct err *err)
{
    return jinja_render_spans(jinja, limits, variables, arena, out, NULL, err);
}
