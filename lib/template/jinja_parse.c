/*
 * jinja_parse.c - statements
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "template/jinja_impl.h"

void jinja_parse_fail(struct jinja_parser *p, const char *format, ...)
{
    char text[256];
    va_list args;

    if (p->failed)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->failed = true;
    err_set(p->err, ERR_DATA, "%s:%d: %s", p->name, p->next->line, text);
}

struct jinja_node *jinja_new_node(struct jinja_parser *p, enum jinja_node_kind kind)
{
    struct jinja_node *node = arena_new(p->arena, struct jinja_node);

    node->kind = kind;
    node->line = p->next->line;
    return node;
}

static struct jinja_node *parse_body(struct jinja_parser *p, const char *const *ends);

static void end_block(struct jinja_parser *p)
{
    if (!p->failed && p->next->kind != TOKEN_BLOCK_END)
        jinja_parse_fail(p, "expected the end of the block");
    else if (!p->failed)
        p->next++;
}

/* A name, a namespace's field, or several with commas. */
static struct jinja_node *parse_target(struct jinja_parser *p, bool with_field)
{
    struct jinja_node *first = NULL, **end = &first, *tuple;
    int n = 0, in_brackets = jinja_take_op(p, '(');
    bool has_comma = false;

    do {
        if (n && (jinja_at_op(p, '=') || jinja_at_op(p, ')') || jinja_at_word(p, "in")))
            break;
        struct jinja_node *node = jinja_new_node(p, NODE_NAME);

        node->name = jinja_expect_name(p);
        if (with_field && jinja_take_op(p, '.')) {
            node->kind = NODE_FIELD;
            node->value = jinja_string(jinja_expect_name(p));
        }
        *end = node;
        end = &node->next;
        n++;
        has_comma |= jinja_at_op(p, ',');
    } while (!p->failed && jinja_take_op(p, ','));
    if (in_brackets)
        jinja_expect_op(p, ')');
    if (!has_comma)
        return first;
    tuple = jinja_new_node(p, NODE_TUPLE);
    tuple->list = first;
    return tuple;
}

static struct jinja_node *parse_for(struct jinja_parser *p)
{
    static const char *const ends[] = { "endfor", "else", NULL }, *const end[] = { "endfor", NULL };
    struct jinja_node *node = jinja_new_node(p, NODE_FOR);
    bool was_in_loop = p->in_loop;

    node->target = parse_target(p, false);
    if (!jinja_take_word(p, "in"))
        jinja_parse_fail(p, "'in' is missing");
    node->a = jinja_parse_tuple(p, false, false);
    if (jinja_take_word(p, "if"))
        node->b = jinja_parse_expression(p, true);
    if (jinja_at_word(p, "recursive"))
        jinja_parse_fail(p, "recursive loops are not supported");
    end_block(p);
    p->in_loop = true;
    node->body = parse_body(p, ends);
    p->in_loop = was_in_loop;
    if (jinja_take_word(p, "else")) {
        end_block(p);
        node->other = parse_body(p, end);
    }
    jinja_take_word(p, "endfor");
    end_block(p);
    return node;
}

static struct jinja_node *parse_if(struct jinja_parser *p)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL }, *const end[] = { "endif",
                                                                                          NULL };
    struct jinja_node *first = jinja_new_node(p, NODE_IF), *node = first;

    for (;;) {
        node->a = jinja_parse_tuple(p, false, false);
        end_block(p);
        node->body = parse_body(p, ends);
        if (!jinja_take_word(p, "elif"))
            break;
        node = node->other = jinja_new_node(p, NODE_IF);
        node->op = 1; /* of an elif */
    }
    if (jinja_take_word(p, "else")) {
        end_block(p);
        node->other = parse_body(p, end);
    }
    jinja_take_word(p, "endif");
    end_block(p);
    return first;
}

/* Filters with pipes between; the innermost takes the block's text. */
static struct jinja_node *parse_block_filters(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_parse_pipe(p, NULL);

    while (jinja_take_op(p, '|'))
        node = jinja_parse_pipe(p, node);
    return node;
}

static struct jinja_node *parse_set(struct jinja_parser *p)
{
    static const char *const end[] = { "endset", NULL };
    struct jinja_node *node = jinja_new_node(p, NODE_SET);

    node->target = parse_target(p, true);
    if (jinja_take_op(p, '=')) {
        node->a = jinja_parse_tuple(p, true, false);
        end_block(p);
        return node;
    }
    if (jinja_take_op(p, '|'))
        node->a = parse_block_filters(p);
    node->op = 1; /* of a block */
    end_block(p);
    node->body = parse_body(p, end);
    jinja_take_word(p, "endset");
    end_block(p);
    return node;
}

static struct jinja_node *parse_parameters(struct jinja_parser *p)
{
    struct jinja_node *first = NULL, **end = &first;

    jinja_expect_op(p, '(');
    while (!p->failed && !jinja_at_op(p, ')')) {
        if (first)
            jinja_expect_op(p, ',');
        if (jinja_at_op(p, ')'))
            break;
        struct jinja_node *node = jinja_new_node(p, NODE_NAMED);
        node->name = jinja_expect_name(p);
        if (jinja_take_op(p, '='))
            node->a = jinja_parse_expression(p, true);
        *end = node;
        end = &node->next;
    }
    jinja_expect_op(p, ')');
    return first;
}

/* Bodies that become text of their own: break and continue do not reach out of them. */
static struct jinja_node *parse_own_body(struct jinja_parser *p, const char *end)
{
    const char *const ends[] = { end, NULL };
    bool was_in_loop = p->in_loop;

    end_block(p);
    p->in_loop = false;
    struct jinja_node *body = parse_body(p, ends);
    p->in_loop = was_in_loop;
    jinja_take_word(p, end);
    return body;
}

static struct jinja_node *parse_macro(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_new_node(p, NODE_MACRO);

    node->name = jinja_expect_name(p);
    node->list = parse_parameters(p);
    node->body = parse_own_body(p, "endmacro");
    if (!p->failed && p->next->kind == TOKEN_NAME)
        p->next++;
    end_block(p);
    return node;
}

static struct jinja_node *parse_call_block(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_new_node(p, NODE_CALL_BLOCK);

    if (jinja_at_op(p, '('))
        node->list = parse_parameters(p);
    node->a = jinja_parse_unary(p, true);
    if (node->a && node->a->kind != NODE_CALL)
        jinja_parse_fail(p, "{%% call %%} without a call");
    node->body = parse_own_body(p, "endcall");
    end_block(p);
    return node;
}

static struct jinja_node *parse_filter_block(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_new_node(p, NODE_FILTER);

    node->a = parse_block_filters(p);
    node->body = parse_own_body(p, "endfilter");
    end_block(p);
    return node;
}

static struct jinja_node *parse_with(struct jinja_parser *p)
{
    static const char *const ends[] = { "endwith", NULL };
    struct jinja_node *node = jinja_new_node(p, NODE_SCOPE), **end = &node->list;

    while (!p->failed && p->next->kind != TOKEN_BLOCK_END) {
        if (node->list)
            jinja_expect_op(p, ',');
        struct jinja_node *set = jinja_new_node(p, NODE_SET);
        set->target = parse_target(p, false);
        jinja_expect_op(p, '=');
        set->a = jinja_parse_expression(p, true);
        *end = set;
        end = &set->next;
    }
    end_block(p);
    node->body = parse_body(p, ends);
    jinja_take_word(p, "endwith");
    end_block(p);
    return node;
}

/* transformers' mark around what an assistant says; its body is written as it is. */
static struct jinja_node *parse_generation(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_new_node(p, NODE_GENERATION);

    p->has_generation = true;
    node->body = parse_own_body(p, "endgeneration");
    end_block(p);
    return node;
}

static struct jinja_node *parse_leave(struct jinja_parser *p, enum jinja_node_kind kind)
{
    struct jinja_node *node = jinja_new_node(p, kind);

    if (!p->in_loop)
        jinja_parse_fail(p, "%s outside of a loop", kind == NODE_BREAK ? "break" : "continue");
    end_block(p);
    return node;
}

static struct jinja_node *parse_block(struct jinja_parser *p)
{
    struct text word = p->next->text;

    if (jinja_take_word(p, "for"))
        return parse_for(p);
    if (jinja_take_word(p, "if"))
        return parse_if(p);
    if (jinja_take_word(p, "set"))
        return parse_set(p);
    if (jinja_take_word(p, "macro"))
        return parse_macro(p);
    if (jinja_take_word(p, "call"))
        return parse_call_block(p);
    if (jinja_take_word(p, "filter"))
        return parse_filter_block(p);
    if (jinja_take_word(p, "with"))
        return parse_with(p);
    if (jinja_take_word(p, "generation"))
        return parse_generation(p);
    if (jinja_take_word(p, "break"))
        return parse_leave(p, NODE_BREAK);
    if (jinja_take_word(p, "continue"))
        return parse_leave(p, NODE_CONTINUE);
    if (p->next->kind == TOKEN_NAME)
        jinja_parse_fail(p, "{%% %.*s %%} is not supported here", (int)(word.n < 80 ? word.n : 80),
                         word.data);
    else
        jinja_parse_fail(p, "a block without a name");
    return NULL;
}

static struct jinja_node *parse_output(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_new_node(p, NODE_OUTPUT);

    node->a = jinja_parse_tuple(p, true, false);
    if (!p->failed && p->next->kind != TOKEN_OUTPUT_END)
        jinja_parse_fail(p, "expected the end of the expression");
    else if (!p->failed)
        p->next++;
    return node;
}

/* Whether the block at hand is one of ends (NULL: the end of the template), whose word is then
 * next. */
static bool is_end(struct jinja_parser *p, const char *const *ends)
{
    if (p->next->kind == TOKEN_END) {
        if (ends)
            jinja_parse_fail(p, "the template ends before {%% %s %%}", ends[0]);
        return true;
    }
    if (p->next->kind != TOKEN_BLOCK_BEGIN || p->next[1].kind != TOKEN_NAME)
        return false;
    for (int i = 0; ends && ends[i]; i++)
        if (text_is(p->next[1].text, ends[i])) {
            p->next++;
            return true;
        }
    return false;
}

static struct jinja_node *parse_body(struct jinja_parser *p, const char *const *ends)
{
    struct jinja_node *first = NULL, **end = &first, *node;

    if (++p->depth > JINJA_PARSE_DEPTH)
        jinja_parse_fail(p, "nested deeper than %d", JINJA_PARSE_DEPTH);
    while (!p->failed && !is_end(p, ends)) {
        const struct jinja_token *token = p->next++;

        if (token->kind == TOKEN_DATA) {
            node = jinja_new_node(p, NODE_DATA);
            node->value = jinja_string(token->text);
        } else {
            node = token->kind == TOKEN_OUTPUT_BEGIN ? parse_output(p) : parse_block(p);
        }
        if (node) {
            *end = node;
            end = &node->next;
        }
    }
    p->depth--;
    return first;
}

int jinja_parse(struct jinja *jinja, const char *name, struct text text, struct err *err)
{
    struct jinja_tokens tokens = { 0 };

    memset(jinja, 0, sizeof *jinja);
    jinja->name = arena_strdup(&jinja->arena, name);
    struct jinja_parser p = { .arena = &jinja->arena, .name = jinja->name, .err = err };
    int status = jinja_lex(&tokens, text, jinja->name, &jinja->arena, err);
    if (!status) {
        p.next = tokens.items;
        jinja->body = parse_body(&p, NULL);
        jinja->has_generation = p.has_generation;
    }
    if (status < 0 || p.failed) {
        jinja_release(jinja);
        return -1;
    }
    return 0;
}

void jinja_release(struct jinja *jinja)
{
    arena_release(&jinja->arena);
    memset(jinja, 0, sizeof *jinja);
}
