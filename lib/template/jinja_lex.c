/*
 * jinja_lex.c - a template to tokens, with the white space rules of trim_blocks and lstrip_blocks
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "template/jinja_impl.h"

struct lexer {
    struct jinja_tokens *tokens;
    struct text text;
    size_t at;
    int line;
    int line_starting; /* nothing but a line break stood before */
    const char *name;
    struct arena *arena;
    struct err *err;
};

static struct jinja_token *add(struct lexer *l, enum jinja_token_kind kind)
{
    struct jinja_tokens *t = l->tokens;

    t->items = arena_grow(l->arena, t->items, sizeof *t->items, &t->capacity, t->n + 1);
    t->items[t->n] = (struct jinja_token){ .kind = kind, .line = l->line };
    return &t->items[t->n++];
}

static int fail(struct lexer *l, const char *what)
{
    return err_set(l->err, ERR_DATA, "%s:%d: %s", l->name, l->line, what);
}

static int starts(const struct lexer *l, size_t at, const char *with)
{
    size_t n = strlen(with);

    return l->text.n - at >= n && !memcmp(l->text.data + at, with, n);
}

static void pass(struct lexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->line += l->text.data[l->at] == '\n';
}

static void pass_space(struct lexer *l)
{
    size_t at = l->at, step;
    uint32_t code;

    while (at < l->text.n) {
        step = text_step(l->text, at, &code);
        if (!text_is_space(code))
            break;
        at += step;
    }
    pass(l, at);
}

/* Behind a tag's end: "-" takes all white space, else a block's line break goes. */
static void end_tag(struct lexer *l, int sign, int trims)
{
    if (sign == '-')
        pass_space(l);
    else if (sign != '+' && trims && l->at < l->text.n && l->text.data[l->at] == '\n')
        pass(l, l->at + 1);
    l->line_starting = l->at > 0 && l->text.data[l->at - 1] == '\n';
}

/* The text before a tag that has the sign `sign` behind its start. */
static void add_data(struct lexer *l, size_t begin, size_t end, int sign, bool is_output)
{
    struct text data = { l->text.data + begin, end - begin };
    int line = l->line;

    if (sign == '-') {
        data = text_strip(data, NULL, STRIP_RIGHT);
    } else if (sign != '+' && !is_output) {
        size_t line_begin = data.n;

        while (line_begin > 0 && data.data[line_begin - 1] != '\n')
            line_begin--;
        struct text blank = { data.data + line_begin, data.n - line_begin };
        if ((line_begin > 0 || l->line_starting) && !text_strip(blank, NULL, STRIP_LEFT).n)
            data.n = line_begin;
    }
    if (data.n) {
        struct jinja_token *t = add(l, TOKEN_DATA);

        t->text = data;
        t->line = line;
    }
}

static int lex_comment(struct lexer *l)
{
    size_t end = l->at;

    while (end < l->text.n && !starts(l, end, "#}"))
        end++;
    if (end >= l->text.n)
        return fail(l, "a comment {# that does not end");
    int sign = end > l->at ? l->text.data[end - 1] : 0;
    pass(l, end + 2);
    end_tag(l, sign, 1);
    return 0;
}

static int escape_digits(struct lexer *l, struct text s, size_t *at, int n, struct str *out)
{
    uint32_t code = 0;

    for (int i = 0; i < n; i++) {
        int c = *at < s.n ? (unsigned char)s.data[*at] : 0;

        if (!isxdigit(c))
            return fail(l, "a \\x, \\u or \\U without its digits");
        code = code * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
        (*at)++;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return fail(l, "an escape that is not a character");
    if (code < 0x80) {
        str_add_char(out, (char)code);
    } else if (code < 0x800) {
        str_add_char(out, (char)(0xc0 | code >> 6));
        str_add_char(out, (char)(0x80 | (code & 63)));
    } else {
        if (code >= 0x10000) {
            str_add_char(out, (char)(0xf0 | code >> 18));
            str_add_char(out, (char)(0x80 | (code >> 12 & 63)));
        } else {
            str_add_char(out, (char)(0xe0 | code >> 12));
        }
        str_add_char(out, (char)(0x80 | (code >> 6 & 63)));
        str_add_char(out, (char)(0x80 | (code & 63)));
    }
    return 0;
}

/* The escapes of a Python string. */
static int unescape(struct lexer *l, struct text s, struct str *out)
{
    static const char plain[] = "\\'\"abfnrtv", means[] = "\\'\"\a\b\f\n\r\t\v";

    for (size_t at = 0; at < s.n;) {
        char c = s.data[at++];

        if (c != '\\' || at == s.n) {
            str_add_char(out, c);
            continue;
        }
        c = s.data[at++];
        const char *found = c ? strchr(plain, c) : NULL;
        if (found) {
            str_add_char(out, means[found - plain]);
        } else if (c == 'x' || c == 'u' || c == 'U') {
            if (escape_digits(l, s, &at, c == 'x' ? 2 : c == 'u' ? 4 : 8, out) < 0)
                return -1;
        } else if (c == 'N' || (c >= '0' && c <= '7')) {
            return fail(l, "escapes of octal digits or names are not supported in texts");
        } else if (c != '\n') {
            str_add_char(out, '\\');
            str_add_char(out, c);
        }
    }
    return 0;
}

static int lex_string(struct lexer *l)
{
    char quote = l->text.data[l->at];
    size_t end = l->at + 1;
    struct str out = { 0 };

    while (end < l->text.n && l->text.data[end] != quote)
        end += l->text.data[end] == '\\' ? 2 : 1;
    if (end >= l->text.n)
        return fail(l, "a string that does not end");
    struct text inside = { l->text.data + l->at + 1, end - l->at - 1 };
    struct jinja_token *t = add(l, TOKEN_STRING);
    int status = 0;

    t->text = inside;
    if (inside.n && memchr(inside.data, '\\', inside.n)) {
        status = unescape(l, inside, &out);
        t->text = (struct text){ arena_strndup(l->arena, str_text(&out), out.length), out.length };
        str_release(&out);
    }
    pass(l, end + 1);
    return status;
}

/* Digits with "_" between; a fraction and an exponent make it a float. */
static int lex_number(struct lexer *l)
{
    char digits[64], *end;
    size_t n = 0, at = l->at;
    bool is_float = false;

    while (at < l->text.n && n + 1 < sizeof digits) {
        char c = l->text.data[at];
        int next = at + 1 < l->text.n ? (unsigned char)l->text.data[at + 1] : 0;

        if (c == '.' && !is_float && isdigit(next))
            is_float = true;
        else if ((c == 'e' || c == 'E') && (isdigit(next) || next == '-' || next == '+'))
            is_float = true;
        else if ((c == '-' || c == '+') && n && (digits[n - 1] | 32) == 'e')
            ;
        else if (c == '_' && isdigit(next) && n)
            c = 0;
        else if (!isdigit((unsigned char)c))
            break;
        if (c)
            digits[n++] = c;
        at++;
    }
    digits[n] = 0;
    errno = 0;
    struct jinja_token *t = add(l, is_float ? TOKEN_FLOAT : TOKEN_INT);
    if (is_float)
        t->f = strtod(digits, &end);
    else
        t->i = strtoll(digits, &end, 10);
    if (*end || errno || (at < l->text.n && (isalnum((unsigned char)l->text.data[at]))))
        return fail(l, "a number that cannot be read");
    pass(l, at);
    return 0;
}

static int lex_operator(struct lexer *l, int *n_open)
{
    static const char *const pairs[] = { "//", "**", "==", "!=", "<=", ">=" };
    char c = l->text.data[l->at];

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (starts(l, l->at, pairs[i])) {
            add(l, TOKEN_OP)->op = JINJA_OP(pairs[i][0], pairs[i][1]);
            l->at += 2;
            return 0;
        }
    if (!c || !strchr("+-*/%~<>()[]{},.:|=", c))
        return fail(l, "a character that is not part of an expression");
    *n_open += strchr("([{", c) ? 1 : strchr(")]}", c) ? -1 : 0;
    if (*n_open < 0)
        return fail(l, "a closing bracket without its opening one");
    add(l, TOKEN_OP)->op = c;
    l->at++;
    return 0;
}

/* Up to and with the end of {{ }} or {% %}, of which the start was passed. */
static int lex_inside(struct lexer *l, bool is_output)
{
    const char *end = is_output ? "}}" : "%}";
    int n_open = 0, status = 0;

    while (!status) {
        pass_space(l);
        if (l->at >= l->text.n)
            return fail(l, is_output ? "{{ without }}" : "{% without %}");
        char c = l->text.data[l->at];
        int sign = c == '-' || (c == '+' && !is_output) ? c : 0;
        if (!n_open && starts(l, l->at + (sign != 0), end)) {
            add(l, is_output ? TOKEN_OUTPUT_END : TOKEN_BLOCK_END);
            l->at += sign ? 3 : 2;
            end_tag(l, sign, !is_output);
            return 0;
        }
        if (c == '\'' || c == '"') {
            status = lex_string(l);
        } else if (isdigit((unsigned char)c)) {
            status = lex_number(l);
        } else if (isalpha((unsigned char)c) || c == '_') {
            size_t to = l->at;

            while (to < l->text.n &&
                   (isalnum((unsigned char)l->text.data[to]) || l->text.data[to] == '_'))
                to++;
            add(l, TOKEN_NAME)->text = (struct text){ l->text.data + l->at, to - l->at };
            l->at = to;
        } else {
            status = lex_operator(l, &n_open);
        }
    }
    return status;
}

/* At the start of a block: whether it is {% word %}; *end is then behind it, *sign that of its
 * end. */
static bool is_word_block(const struct lexer *l, size_t at, const char *word, size_t *end,
                          int *sign)
{
    at += 2;
    if (at < l->text.n && (l->text.data[at] == '-' || l->text.data[at] == '+'))
        at++;
    while (at < l->text.n && isspace((unsigned char)l->text.data[at]))
        at++;
    if (!starts(l, at, word))
        return false;
    at += strlen(word);
    while (at < l->text.n && isspace((unsigned char)l->text.data[at]))
        at++;
    *sign = at < l->text.n && (l->text.data[at] == '-' || l->text.data[at] == '+')
                ? l->text.data[at]
                : 0;
    at += *sign != 0;
    *end = at + 2;
    return starts(l, at, "%}");
}

static int sign_at(const struct lexer *l, size_t at)
{
    char c = at < l->text.n ? l->text.data[at] : 0;

    return c == '-' || c == '+' ? c : 0;
}

static int lex_raw(struct lexer *l, size_t begin, int begin_sign)
{
    size_t end, after;
    int sign;

    pass(l, begin);
    end_tag(l, begin_sign, 0);
    for (end = begin = l->at; end < l->text.n; end++)
        if (starts(l, end, "{%") && is_word_block(l, end, "endraw", &after, &sign))
            break;
    if (end >= l->text.n)
        return fail(l, "{% raw %} without {% endraw %}");
    add_data(l, begin, end, sign_at(l, end + 2), false);
    pass(l, after);
    end_tag(l, sign, 1);
    return 0;
}

static int lex_tag(struct lexer *l, size_t at)
{
    char kind = l->text.data[at + 1];
    size_t after;
    int sign = sign_at(l, at + 2), end_sign;

    add_data(l, l->at, at, sign, kind == '{');
    pass(l, at);
    if (kind == '%' && is_word_block(l, at, "raw", &after, &end_sign))
        return lex_raw(l, after, end_sign);
    pass(l, at + 2 + (sign != 0));
    if (kind == '#')
        return lex_comment(l);
    add(l, kind == '{' ? TOKEN_OUTPUT_BEGIN : TOKEN_BLOCK_BEGIN);
    return lex_inside(l, kind == '{');
}

/* Line breaks become \n, and the last one goes. */
static struct text normalize(struct text s, struct arena *arena)
{
    char *data = arena_alloc(arena, s.n + 1);
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++) {
        if (s.data[i] == '\r') {
            if (i + 1 < s.n && s.data[i + 1] == '\n')
                i++;
            data[n++] = '\n';
        } else {
            data[n++] = s.data[i];
        }
    }
    if (n && data[n - 1] == '\n')
        n--;
    return (struct text){ data, n };
}

int jinja_lex(struct jinja_tokens *tokens, struct text text, const char *name, struct arena *arena,
              struct err *err)
{
    struct lexer l = { .tokens = tokens,
                       .text = normalize(text, arena),
                       .line = 1,
                       .line_starting = 1,
                       .name = name,
                       .arena = arena,
                       .err = err };

    while (l.at < l.text.n) {
        size_t at = l.at;

        while (at + 1 < l.text.n && !(l.text.data[at] == '{' &&
                                      strchr("{%#", l.text.data[at + 1]) && l.text.data[at + 1]))
            at++;
        if (at + 1 >= l.text.n) {
            add(&l, TOKEN_DATA)->text = (struct text){ l.text.data + l.at, l.text.n - l.at };
            pass(&l, l.text.n);
        } else if (lex_tag(&l, at) < 0) {
            return -1;
        }
    }
    add(&l, TOKEN_END);
    return 0;
}
