/*
 * jinja_impl.h - the subset of Jinja that chat templates are written in
 *
 * Statements: for (with if, else, unpacking, loop.*, break, continue), if/elif/else, set (also of a
 * namespace's field, of several names, of a block with filters), macro and call, filter, with, raw,
 * generation (its body). Expressions: literals, lists, tuples, dicts, attributes, items, slices,
 * calls with named arguments, + - * / // % ** ~, comparisons (chained), in, and/or/not, x if y else
 * z, filters (jinja_filters.c, jinja_sequences.c), tests (jinja_tests.c), methods
 * (jinja_methods.c), and range, namespace, dict, raise_exception, strftime_now. Not there, and
 * refused by name: include, import, extends, block, do, recursive loops, *args. Values cannot be
 * changed but for namespaces, as in transformers' sandbox.
 *
 * Text is UTF-8 and counted in code points; integers have 64 bits. A rendering lives in one arena
 * and is bounded by struct jinja_limits: recursion here is never deeper than `depth`, nor is the
 * parser's.
 */
#ifndef TEMPLATE_JINJA_IMPL_H
#define TEMPLATE_JINJA_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

#define JINJA_PARSE_DEPTH 100
#define JINJA_JSON_DEPTH 64

struct text {
    const char *data; /* need not end in 0 */
    size_t n;
};

enum text_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL };

enum jinja_kind {
    JINJA_ABSENT, /* an argument that was not given */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_MACRO,
    JINJA_LOOP,
    JINJA_METHOD,
    JINJA_GLOBAL,
};

struct jinja_value {
    enum jinja_kind kind;
    union {
        int64_t i;     /* BOOL, INT */
        double f;      /* FLOAT */
        struct text s; /* STRING; UNDEFINED: what is */
        struct jinja_list *list;
        struct jinja_dict *dict; /* DICT, NAMESPACE */
        struct jinja_macro *macro;
        struct jinja_loop *loop;
        struct jinja_method *method;
        const struct jinja_function *global;
    };
};

struct jinja_list {
    struct jinja_value *items;
    int n, capacity;
};

struct jinja_pair {
    struct jinja_value key, value;
};

struct jinja_dict { /* in the order of insertion */
    struct jinja_pair *items;
    int n, capacity;
};

struct jinja_loop {
    const struct jinja_value *items;
    int n, index;
    struct jinja_value changed; /* what loop.changed saw last */
};

/* ---- the tree ---- */

enum jinja_node_kind {
    NODE_DATA,       /* value */
    NODE_OUTPUT,     /* a */
    NODE_IF,         /* a ? body : other; other may be the IF of an elif */
    NODE_FOR,        /* target in a [if b]: body, other */
    NODE_SET,        /* target = a, or = the text of body through the filter a (may be NULL) */
    NODE_MACRO,      /* name, list of parameters, body */
    NODE_CALL_BLOCK, /* a: the call; list of parameters of caller, body */
    NODE_FILTER,     /* the text of body through a */
    NODE_SCOPE,      /* list of NODE_SET, then body */
    NODE_GENERATION, /* body, whose text is noted in jinja_spans */
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_CONST, /* value */
    NODE_NAME,  /* name; as a target too */
    NODE_FIELD, /* target only: name.field of a namespace; value is the field */
    NODE_LIST,  /* list */
    NODE_TUPLE,
    NODE_DICT,    /* list of key, value, key, ... */
    NODE_GETATTR, /* a.name */
    NODE_GETITEM, /* a[b] */
    NODE_SLICE,   /* target[a:b:other], each may be NULL */
    NODE_CALL,    /* a(list) */
    NODE_PIPE,    /* a | name(list); a is NULL where a block's text comes in */
    NODE_TEST,    /* a is name(list) */
    NODE_UNARY,   /* op a */
    NODE_BINARY,  /* a op b */
    NODE_AND,
    NODE_OR,
    NODE_NOT,
    NODE_COMPARE, /* a, then list of NODE_COMPARE with op and a */
    NODE_CONCAT,  /* list */
    NODE_COND,    /* a ? b : other (NULL: undefined) */
    NODE_NAMED,   /* in a list of arguments: name = a; of parameters: name, default a or NULL */
};

/* Operators are their one or two characters; these are words. */
#define JINJA_OP(a, b) ((a) | (b) << 8)
#define JINJA_IN JINJA_OP('i', 'n')
#define JINJA_NOT_IN JINJA_OP('!', 'i')

struct jinja_node {
    enum jinja_node_kind kind;
    int line, op;
    struct text name;
    struct jinja_value value;
    const struct jinja_function *function; /* of a filter or test */
    struct jinja_node *a, *b, *target, *list, *body, *other, *next;
};

struct jinja_macro {
    const struct jinja_node *node; /* MACRO or CALL_BLOCK */
    struct jinja_scope *scope;     /* where it was defined */
};

struct jinja {
    struct arena arena;
    const char *name; /* in errors */
    struct jinja_node *body;
    bool has_generation; /* it has a {% generation %} block */
};

/* ---- tokens ---- */

enum jinja_token_kind {
    TOKEN_END,
    TOKEN_DATA,
    TOKEN_OUTPUT_BEGIN, /* {{ */
    TOKEN_OUTPUT_END,
    TOKEN_BLOCK_BEGIN, /* {% */
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_OP,
};

struct jinja_token {
    enum jinja_token_kind kind;
    int line, op;
    struct text text;
    int64_t i;
    double f;
};

struct jinja_tokens {
    struct jinja_token *items;
    int n, capacity;
};

/* Strings are in the arena or in text. Returns 0, or -1 and ERR_DATA. */
int jinja_lex(struct jinja_tokens *tokens, struct text text, const char *name, struct arena *arena,
              struct err *err);

struct jinja_parser {
    struct arena *arena;
    const char *name;
    const struct jinja_token *next;
    int depth;
    bool failed, in_loop, has_generation;
    struct err *err;
};

/* What parser files share. After the first failure nothing is read on and nodes are NULL. */
void jinja_parse_fail(struct jinja_parser *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
struct jinja_node *jinja_new_node(struct jinja_parser *p, enum jinja_node_kind kind);
bool jinja_at_op(const struct jinja_parser *p, int op);
bool jinja_at_word(const struct jinja_parser *p, const char *word);
bool jinja_take_op(struct jinja_parser *p, int op);
bool jinja_take_word(struct jinja_parser *p, const char *word);
void jinja_expect_op(struct jinja_parser *p, int op);
struct text jinja_expect_name(struct jinja_parser *p);
struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool with_condition);
/* Several with commas are a tuple. stop: the word that may follow a comma, or NULL. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool with_condition,
                                     bool may_be_empty);
/* node: what goes in, or NULL. */
struct jinja_node *jinja_parse_pipe(struct jinja_parser *p, struct jinja_node *node);
struct jinja_node *jinja_parse_unary(struct jinja_parser *p, bool with_filter);

/* Returns 0, or -1 and ERR_DATA with name and line. text must outlive it. */
int jinja_parse(struct jinja *jinja, const char *name, struct text text, struct err *err);
void jinja_release(struct jinja *jinja);

/* ---- rendering ---- */

struct jinja_limits {
    int64_t steps; /* about nodes visited, and 64 bytes of text copied */
    size_t bytes;  /* of output, and of all values */
    int depth;
};
extern const struct jinja_limits jinja_limits;

struct jinja_scope {
    struct jinja_dict names;
    struct jinja_scope *parent;
};

/* What a {% generation %} block wrote: the byte of the text where it begins, and its code
 * points. */
struct jinja_span {
    size_t begin, n_codes;
};

struct jinja_spans {
    struct jinja_span *items; /* in the order of their ends, in the rendering's arena */
    int n, capacity;
};

struct jinja_render {
    const char *name;
    struct arena *arena;
    const struct jinja_limits *limits;
    struct str *out;
    const struct str
        *whole; /* the template's text so far; out is another one inside macros, set, ... */
    struct jinja_spans *spans; /* or NULL */
    struct jinja_scope *scope;
    int64_t steps;
    /* of texts that wait while another is made: what macros were called from, ... */
    size_t held_bytes;
    int depth, line;
    bool failed;  /* the first failure is in err; what comes after it means nothing */
    int leaving;  /* 0, NODE_BREAK or NODE_CONTINUE */
    bool refused; /* the failure is raise_exception's */
    struct err *err;
};

/* variables: in the arena. out is as it was on failure (-1, ERR_DATA). */
int jinja_render(const struct jinja *jinja, const struct jinja_limits *limits,
                 const struct jinja_dict *variables, struct arena *arena, struct str *out,
                 struct err *err);
/*
 * The same, and where {% generation %} blocks have written, from where out ended. As transformers
 * counts, a block begins at what the template itself has written so far: one within a macro, whose
 * text is not written yet, begins where the macro's will.
 */
int jinja_render_spans(const struct jinja *jinja, const struct jinja_limits *limits,
                       const struct jinja_dict *variables, struct arena *arena, struct str *out,
                       struct jinja_spans *spans, struct err *err);

void jinja_fail(struct jinja_render *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Count work; -1 once there was a failure. */
int jinja_step(struct jinja_render *r, size_t n_bytes);
/*
 * To be called before n_bytes are allocated, or added to out (NULL, or a text under construction):
 * -1 if values and texts would then have more bytes than the limit, or there was a failure.
 */
int jinja_reserve(struct jinja_render *r, const struct str *out, size_t n_bytes);
/* Append to a text under construction, if there is room. */
void jinja_add(struct jinja_render *r, struct str *out, struct text text);

struct jinja_value jinja_eval(struct jinja_render *r, const struct jinja_node *node);
/* One level deeper, at node: 0 once there was a failure, or the nesting or the work is at its
 * limit; else 1, and the caller decrements r->depth afterwards. */
bool jinja_enter(struct jinja_render *r, const struct jinja_node *node);
/* The value of a name: of the innermost scope that has it, else a global function, else
 * undefined. */
struct jinja_value jinja_look_up(struct jinja_render *r, struct text name);
/* The filters of node (NODE_PIPE), applied to text where the innermost has no operand of its
 * own. */
struct jinja_value jinja_eval_pipe(struct jinja_render *r, const struct jinja_node *node,
                                   struct jinja_value text);
/* The call node (NODE_CALL); caller: the macro of a {% call %} block, or absent. */
struct jinja_value jinja_eval_call(struct jinja_render *r, const struct jinja_node *node,
                                   struct jinja_value caller);
void jinja_run(struct jinja_render *r, const struct jinja_node *body);
/* The text that body writes, in a scope of its own whose parent is scope. */
struct jinja_value jinja_capture(struct jinja_render *r, const struct jinja_node *body);
void jinja_assign(struct jinja_render *r, const struct jinja_node *target,
                  struct jinja_value value);

/* ---- functions ---- */

#define JINJA_N_PARAMETERS 5

struct jinja_arguments {
    struct jinja_value *items;
    int n;
    struct jinja_pair *named; /* keys are strings */
    int n_named;
};

/* in: what a filter, test or method is applied to. slots: parameters in order, ABSENT where not
 * given. */
typedef struct jinja_value (*jinja_function_fn)(struct jinja_render *r, struct jinja_value in,
                                                const struct jinja_value *slots);
/* One that takes any arguments. */
typedef struct jinja_value (*jinja_variadic_fn)(struct jinja_render *r, struct jinja_value in,
                                                const struct jinja_arguments *arguments);

struct jinja_function {
    const char *name;
    jinja_function_fn call;
    const char *parameters[JINJA_N_PARAMETERS];
    int n_needed;
    jinja_variadic_fn variadic;
};

struct jinja_method {
    const struct jinja_function *function;
    struct jinja_value self;
};

const struct jinja_function *jinja_find_filter(struct text name);
/* Of those, the filters of lists and dicts (jinja_sequences.c). */
const struct jinja_function *jinja_find_sequence_filter(struct text name);
const struct jinja_function *jinja_find_test(struct text name);
const struct jinja_function *jinja_find_global(struct text name);
/* NULL if a value of that kind has no such method. */
const struct jinja_function *jinja_find_method(const struct jinja_value *of, struct text name);
struct jinja_value jinja_apply(struct jinja_render *r, const struct jinja_function *function,
                               struct jinja_value in, const struct jinja_arguments *arguments);
struct jinja_value jinja_call_macro(struct jinja_render *r, struct jinja_macro *macro,
                                    const struct jinja_arguments *arguments,
                                    struct jinja_value caller);

/* Whether an argument was given. */
static inline bool jinja_is_given(const struct jinja_value *v)
{
    return v->kind != JINJA_ABSENT;
}
/* The string or the integer of a slot; fails where it is another kind. otherwise: where it was
 * not given. */
struct text jinja_text_slot(struct jinja_render *r, const struct jinja_value *v);
int64_t jinja_integer_slot(struct jinja_render *r, const struct jinja_value *v, int64_t otherwise);

/* ---- values ---- */

struct jinja_value jinja_undefined(struct text what);
struct jinja_value jinja_none(void);
struct jinja_value jinja_bool(int b);
struct jinja_value jinja_int(int64_t i);
struct jinja_value jinja_float(double f);
struct jinja_value jinja_string(struct text s);
struct jinja_value jinja_literal(const char *text); /* which must live on */
struct jinja_value jinja_new_list(struct jinja_render *r);
struct jinja_value jinja_new_dict(struct jinja_render *r);
/* A copy in the arena; counted. */
struct jinja_value jinja_copy_string(struct jinja_render *r, const char *data, size_t n);
/* A copy of text in the arena; text is released. */
struct jinja_value jinja_take_string(struct jinja_render *r, struct str *text);
/* A string with its letters in another case. */
struct jinja_value jinja_to_case(struct jinja_render *r, struct jinja_value in, enum text_case to);

void jinja_list_add(struct arena *arena, struct jinja_list *list, struct jinja_value value);
/* Replaces what is there. */
void jinja_dict_set(struct arena *arena, struct jinja_dict *dict, struct jinja_value key,
                    struct jinja_value value);
struct jinja_value *jinja_dict_find(const struct jinja_dict *dict, struct jinja_value key);
struct jinja_value *jinja_dict_find_text(const struct jinja_dict *dict, struct text key);

const char *jinja_kind_name(const struct jinja_value *v);
bool jinja_is_true(const struct jinja_value *v);
bool jinja_is_number(const struct jinja_value *v);
double jinja_number(const struct jinja_value *v);
/* r: counts the work, as values may hold the same one many times; NULL: for keys, which are
 * unequal after some thousand comparisons. */
bool jinja_equal(struct jinja_render *r, const struct jinja_value *a, const struct jinja_value *b);
/* <0, 0, >0; fails where there is no order. */
int jinja_compare(struct jinja_render *r, const struct jinja_value *a, const struct jinja_value *b);
/* Whether a is in b. */
bool jinja_contains(struct jinja_render *r, const struct jinja_value *a,
                    const struct jinja_value *b);
/* As str() of Python has it. */
struct text jinja_text(struct jinja_render *r, const struct jinja_value *v);
/* What iterating gives: characters, items, keys. Fails where there is nothing to iterate over. */
struct jinja_list jinja_items(struct jinja_render *r, const struct jinja_value *v);
/* -1 where there is none. */
int64_t jinja_length(const struct jinja_value *v);
/* x.name and x["name"], which look at methods and items in another order. */
struct jinja_value jinja_attribute(struct jinja_render *r, struct jinja_value of, struct text name);
struct jinja_value jinja_item(struct jinja_render *r, struct jinja_value of,
                              struct jinja_value key);
struct jinja_value jinja_slice(struct jinja_render *r, struct jinja_value of,
                               const struct jinja_value bounds[3]);
struct jinja_value jinja_binary(struct jinja_render *r, int op, struct jinja_value a,
                                struct jinja_value b);
/* Shortest decimal that reads back the same, as Python prints it. buffer of 40. */
const char *jinja_print_float(char *buffer, size_t size, double f);

/* ---- text ---- */

bool text_equal(struct text a, struct text b);
bool text_is(struct text a, const char *b);
struct text text_of(const char *z);
/* Bytes of the code point at i < n (1 where it is none); *code is it. */
size_t text_step(struct text s, size_t at, uint32_t *code);
size_t text_length(struct text s); /* code points */
bool text_is_space(uint32_t code);
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
/* chars: NULL for white space. */
struct text text_strip(struct text s, const struct text *chars, int sides);
/* Where needle is in s from `from` on, or -1. */
int64_t text_find(struct text s, struct text needle, size_t from);
/* Latin, Greek and Cyrillic letters; others stay. */
void text_to_case(struct text s, enum text_case to, struct str *out);

/* ---- JSON ---- */

/* The whole of json as a value in the arena. Returns 0, or -1 and a problem. */
int jinja_read_json(struct jinja_value *out, struct text json, struct arena *arena,
                    const char **problem);

struct jinja_json_style {
    bool ascii, sort;
    int indent; /* indent -1: one line */
    struct text comma, colon;
};
void jinja_add_json(struct jinja_render *r, const struct jinja_value *v,
                    const struct jinja_json_style *style, int level, struct str *out);

#endif
