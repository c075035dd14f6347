/*
 * jinja_expression.c - expressions, by precedence from `x if y else z` down to names and brackets
 *
 * Recursion is bounded: every way around goes through jinja_parse_expression or jinja_parse_unary,
 * which count.
 */
#include <string.h>

#include "template/jinja_impl.h"

bool jinja_at_op(const struct jinja_parser *p, int op)
{
    return !p->failed && p->next->kind == TOKEN_OP && p->next->op == op;
}

bool jinja_at_word(const struct jinja_parser *p, const char *word)
{
    return !p->failed && p->next->kind == TOKEN_NAME && text_is(p->next->text, word);
}

bool jinja_take_op(struct jinja_parser *p, int op)
{
    int is = jinja_at_op(p, op);

    p->next += is;
    return is;
}

bool jinja_take_word(struct jinja_parser *p, const char *word)
{
    int is = jinja_at_word(p, word);

    p->next += is;
    return is;
}

void jinja_expect_op(struct jinja_parser *p, int op)
{
    if (!jinja_take_op(p, op))
        jinja_parse_fail(p, "a '%c' is missing", op);
}

struct text jinja_expect_name(struct jinja_parser *p)
{
    if (!p->failed && p->next->kind == TOKEN_NAME)
        return (p->next++)->text;
    jinja_parse_fail(p, "a name is missing");
    return (struct text){ "", 0 };
}

static struct jinja_node *binary(struct jinja_parser *p, enum jinja_node_kind kind, int op,
                                 struct jinja_node *a, struct jinja_node *b)
{
    struct jinja_node *node = jinja_new_node(p, kind);

    node->op = op;
    node->a = a;
    node->b = b;
    return node;
}

static void add_to(struct jinja_node ***end, struct jinja_node *node)
{
    if (node) {
        **end = node;
        *end = &node->next;
    }
}

/* Nodes up to `close`, of which the opening bracket was read. A trailing comma is fine. */
static struct jinja_node *parse_items(struct jinja_parser *p, int close, bool is_dict)
{
    struct jinja_node *first = NULL, **end = &first;

    while (!p->failed && !jinja_at_op(p, close)) {
        if (first)
            jinja_expect_op(p, ',');
        if (jinja_at_op(p, close))
            break;
        add_to(&end, jinja_parse_expression(p, true));
        if (is_dict) {
            jinja_expect_op(p, ':');
            add_to(&end, jinja_parse_expression(p, true));
        }
    }
    jinja_expect_op(p, close);
    return first;
}

static struct jinja_node *parse_arguments(struct jinja_parser *p)
{
    struct jinja_node *first = NULL, **end = &first;
    bool has_named = false;

    while (!p->failed && !jinja_at_op(p, ')')) {
        if (first)
            jinja_expect_op(p, ',');
        if (jinja_at_op(p, ')'))
            break;
        if (jinja_at_op(p, '*') || jinja_at_op(p, JINJA_OP('*', '*'))) {
            jinja_parse_fail(p, "arguments by * and ** are not supported");
        } else if (p->next->kind == TOKEN_NAME && p->next[1].kind == TOKEN_OP &&
                   p->next[1].op == '=') {
            struct jinja_node *named = jinja_new_node(p, NODE_NAMED);

            named->name = p->next->text;
            p->next += 2;
            named->a = jinja_parse_expression(p, true);
            add_to(&end, named);
            has_named = true;
        } else if (has_named) {
            jinja_parse_fail(p, "an argument without a name after one with a name");
        } else {
            add_to(&end, jinja_parse_expression(p, true));
        }
    }
    jinja_expect_op(p, ')');
    return first;
}

static struct jinja_node *parse_constant(struct jinja_parser *p)
{
    static const struct {
        const char *word;
        enum jinja_kind kind;
        int value;
    } words[] = {
        { "true", JINJA_BOOL, 1 },  { "True", JINJA_BOOL, 1 }, { "false", JINJA_BOOL, 0 },
        { "False", JINJA_BOOL, 0 }, { "none", JINJA_NONE, 0 }, { "None", JINJA_NONE, 0 }
    };
    struct jinja_node *node = jinja_new_node(p, NODE_NAME);

    node->name = (p->next++)->text;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (text_is(node->name, words[i].word)) {
            node->kind = NODE_CONST;
            node->value = (struct jinja_value){ words[i].kind, { .i = words[i].value } };
        }
    return node;
}

/* Texts side by side are one. */
static struct jinja_node *parse_string(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_new_node(p, NODE_CONST);
    struct text s = (p->next++)->text;

    while (p->next->kind == TOKEN_STRING) {
        struct text more = (p->next++)->text;
        char *both = arena_alloc(p->arena, s.n + more.n + 1);

        memcpy(both, s.data, s.n);
        memcpy(both + s.n, more.data, more.n);
        s = (struct text){ both, s.n + more.n };
    }
    node->value = jinja_string(s);
    return node;
}

static struct jinja_node *parse_primary(struct jinja_parser *p)
{
    struct jinja_node *node;

    if (p->failed)
        return NULL;
    switch (p->next->kind) {
    case TOKEN_NAME:
        return parse_constant(p);
    case TOKEN_STRING:
        return parse_string(p);
    case TOKEN_INT:
    case TOKEN_FLOAT:
        node = jinja_new_node(p, NODE_CONST);
        node->value = p->next->kind == TOKEN_INT ? jinja_int(p->next->i) : jinja_float(p->next->f);
        p->next++;
        return node;
    default:
        break;
    }
    if (jinja_take_op(p, '(')) {
        node = jinja_parse_tuple(p, true, true);
        jinja_expect_op(p, ')');
        return node;
    }
    bool is_dict = jinja_at_op(p, '{');
    if (!is_dict && !jinja_at_op(p, '[')) {
        jinja_parse_fail(p, "an expression is missing");
        return NULL;
    }
    p->next++;
    node = jinja_new_node(p, is_dict ? NODE_DICT : NODE_LIST);
    node->list = parse_items(p, is_dict ? '}' : ']', is_dict);
    return node;
}

/* What stands in x[ ]: an expression, or a slice, each part of which may be missing. */
static struct jinja_node *parse_subscript(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *parts[3] = { NULL }, *node;
    int n = 0;

    if (!jinja_at_op(p, ':'))
        parts[0] = jinja_parse_expression(p, true);
    while (n < 2 && jinja_take_op(p, ':')) {
        n++;
        if (!jinja_at_op(p, ':') && !jinja_at_op(p, ']'))
            parts[n] = jinja_parse_expression(p, true);
    }
    jinja_expect_op(p, ']');
    node = jinja_new_node(p, n ? NODE_SLICE : NODE_GETITEM);
    if (n) {
        node->target = of;
        node->a = parts[0];
        node->b = parts[1];
        node->other = parts[2];
    } else {
        node->a = of;
        node->b = parts[0];
    }
    return node;
}

static struct jinja_node *parse_call(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *node = jinja_new_node(p, NODE_CALL);

    node->a = of;
    node->list = parse_arguments(p);
    return node;
}

static struct jinja_node *parse_postfix(struct jinja_parser *p, struct jinja_node *node)
{
    while (!p->failed) {
        if (jinja_take_op(p, '.')) {
            struct jinja_node *of = node;

            if (p->next->kind == TOKEN_INT) {
                node = jinja_new_node(p, NODE_GETITEM);
                node->b = parse_primary(p);
            } else {
                node = jinja_new_node(p, NODE_GETATTR);
                node->name = jinja_expect_name(p);
            }
            node->a = of;
        } else if (jinja_take_op(p, '[')) {
            node = parse_subscript(p, node);
        } else if (jinja_take_op(p, '(')) {
            node = parse_call(p, node);
        } else {
            break;
        }
    }
    return node;
}

/* name, and .name for those of Jinja's that have a module: none. */
static void find_function(struct jinja_parser *p, struct jinja_node *node, bool is_test)
{
    node->name = jinja_expect_name(p);
    if (p->failed)
        return;
    node->function = is_test ? jinja_find_test(node->name) : jinja_find_filter(node->name);
    if (!node->function)
        jinja_parse_fail(p, "the %s '%.*s' is not supported", is_test ? "test" : "filter",
                         (int)(node->name.n < 80 ? node->name.n : 80), node->name.data);
}

struct jinja_node *jinja_parse_pipe(struct jinja_parser *p, struct jinja_node *in)
{
    struct jinja_node *node = jinja_new_node(p, NODE_PIPE);

    node->a = in;
    find_function(p, node, false);
    if (jinja_take_op(p, '('))
        node->list = parse_arguments(p);
    return node;
}

/* x is [not] name, name(arguments) or name argument. */
static struct jinja_node *parse_test(struct jinja_parser *p, struct jinja_node *in)
{
    struct jinja_node *node;
    bool is_not = jinja_take_word(p, "not");

    node = jinja_new_node(p, NODE_TEST);
    node->a = in;
    find_function(p, node, true);
    if (p->failed)
        return NULL;
    enum jinja_token_kind kind = p->next->kind;
    if (jinja_take_op(p, '(')) {
        node->list = parse_arguments(p);
    } else if ((kind == TOKEN_NAME && !jinja_at_word(p, "else") && !jinja_at_word(p, "or") &&
                !jinja_at_word(p, "and") && !jinja_at_word(p, "is") && !jinja_at_word(p, "if") &&
                !jinja_at_word(p, "in") && !jinja_at_word(p, "not")) ||
               kind == TOKEN_STRING || kind == TOKEN_INT || kind == TOKEN_FLOAT ||
               jinja_at_op(p, '[') || jinja_at_op(p, '{')) {
        node->list = parse_postfix(p, parse_primary(p));
    }
    if (is_not)
        node = binary(p, NODE_NOT, 0, node, NULL);
    return node;
}

static struct jinja_node *parse_pipes(struct jinja_parser *p, struct jinja_node *node)
{
    while (!p->failed) {
        if (jinja_take_op(p, '|'))
            node = jinja_parse_pipe(p, node);
        else if (jinja_take_word(p, "is"))
            node = parse_test(p, node);
        else if (jinja_take_op(p, '('))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

struct jinja_node *jinja_parse_unary(struct jinja_parser *p, bool with_filter)
{
    struct jinja_node *node;

    if (++p->depth > JINJA_PARSE_DEPTH)
        jinja_parse_fail(p, "nested deeper than %d", JINJA_PARSE_DEPTH);
    if (jinja_at_op(p, '-') || jinja_at_op(p, '+')) {
        int op = (p->next++)->op;

        node = binary(p, NODE_UNARY, op, jinja_parse_unary(p, false), NULL);
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    if (with_filter)
        node = parse_pipes(p, node);
    p->depth--;
    return node;
}

static struct jinja_node *parse_power(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_parse_unary(p, true);

    while (jinja_take_op(p, JINJA_OP('*', '*')))
        node = binary(p, NODE_BINARY, JINJA_OP('*', '*'), node, jinja_parse_unary(p, true));
    return node;
}

static struct jinja_node *parse_product(struct jinja_parser *p)
{
    struct jinja_node *node = parse_power(p);

    while (jinja_at_op(p, '*') || jinja_at_op(p, '/') || jinja_at_op(p, '%') ||
           jinja_at_op(p, JINJA_OP('/', '/'))) {
        int op = (p->next++)->op;

        node = binary(p, NODE_BINARY, op, node, parse_power(p));
    }
    return node;
}

static struct jinja_node *parse_concat(struct jinja_parser *p)
{
    struct jinja_node *node = parse_product(p), **end;

    if (!jinja_at_op(p, '~'))
        return node;
    struct jinja_node *concat = jinja_new_node(p, NODE_CONCAT);
    end = &concat->list;
    add_to(&end, node);
    while (jinja_take_op(p, '~'))
        add_to(&end, parse_product(p));
    return concat;
}

static struct jinja_node *parse_sum(struct jinja_parser *p)
{
    struct jinja_node *node = parse_concat(p);

    while (jinja_at_op(p, '+') || jinja_at_op(p, '-')) {
        int op = (p->next++)->op;

        node = binary(p, NODE_BINARY, op, node, parse_concat(p));
    }
    return node;
}

/* The comparison at hand, which is read; 0 if there is none. */
static int take_comparison(struct jinja_parser *p)
{
    static const int ops[] = {
        '<', '>', JINJA_OP('=', '='), JINJA_OP('!', '='), JINJA_OP('<', '='), JINJA_OP('>', '=')
    };

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (jinja_take_op(p, ops[i]))
            return ops[i];
    if (jinja_take_word(p, "in"))
        return JINJA_IN;
    if (jinja_at_word(p, "not") && p->next[1].kind == TOKEN_NAME &&
        text_is(p->next[1].text, "in")) {
        p->next += 2;
        return JINJA_NOT_IN;
    }
    return 0;
}

static struct jinja_node *parse_compare(struct jinja_parser *p)
{
    struct jinja_node *node = parse_sum(p), *first = NULL, **end = &first;
    int op;

    while (!p->failed && (op = take_comparison(p)))
        add_to(&end, binary(p, NODE_COMPARE, op, parse_sum(p), NULL));
    if (!first)
        return node;
    struct jinja_node *compare = binary(p, NODE_COMPARE, 0, node, NULL);
    compare->list = first;
    return compare;
}

static struct jinja_node *parse_not(struct jinja_parser *p)
{
    int n = 0;

    while (jinja_take_word(p, "not"))
        n++;
    struct jinja_node *node = parse_compare(p);
    /* Two are one less than three only in what they are: a bool. */
    for (n = n > 2 ? 2 - n % 2 : n; n > 0; n--)
        node = binary(p, NODE_NOT, 0, node, NULL);
    return node;
}

static struct jinja_node *parse_and(struct jinja_parser *p)
{
    struct jinja_node *node = parse_not(p);

    while (jinja_take_word(p, "and"))
        node = binary(p, NODE_AND, 0, node, parse_not(p));
    return node;
}

static struct jinja_node *parse_or(struct jinja_parser *p)
{
    struct jinja_node *node = parse_and(p);

    while (jinja_take_word(p, "or"))
        node = binary(p, NODE_OR, 0, node, parse_and(p));
    return node;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool with_condition)
{
    if (++p->depth > JINJA_PARSE_DEPTH)
        jinja_parse_fail(p, "nested deeper than %d", JINJA_PARSE_DEPTH);
    struct jinja_node *node = p->failed ? NULL : parse_or(p);
    while (with_condition && jinja_take_word(p, "if")) {
        struct jinja_node *cond = jinja_new_node(p, NODE_COND);

        cond->body = node;
        cond->a = parse_or(p);
        if (jinja_take_word(p, "else"))
            cond->other = jinja_parse_expression(p, true);
        node = cond;
    }
    p->depth--;
    return node;
}

static bool is_tuple_end(const struct jinja_parser *p)
{
    return p->failed || p->next->kind == TOKEN_BLOCK_END || p->next->kind == TOKEN_OUTPUT_END ||
           jinja_at_op(p, ')');
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool with_condition, bool may_be_empty)
{
    struct jinja_node *first, **end;

    if (is_tuple_end(p)) {
        if (!may_be_empty)
            jinja_parse_fail(p, "an expression is missing");
        return jinja_new_node(p, NODE_TUPLE);
    }
    first = jinja_parse_expression(p, with_condition);
    if (!jinja_at_op(p, ','))
        return first;
    struct jinja_node *tuple = jinja_new_node(p, NODE_TUPLE);
    end = &tuple->list;
    add_to(&end, first);
    while (jinja_take_op(p, ',') && !is_tuple_end(p))
        add_to(&end, jinja_parse_expression(p, with_condition));
    return tuple;
}
