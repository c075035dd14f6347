/*
 * value.c - JSON to a tree by a loop over a stack of open containers
 */
#include "data/rows/value.h"

#include <string.h>

#include "data/rows/jsonl_impl.h"

struct parser {
    struct jsonl_reader reader;
    struct arena *arena;
    struct str text; /* the string at hand */
    struct value *open[VALUE_DEPTH_MAX], **tails[VALUE_DEPTH_MAX];
    int depth, n_values;
};

static struct value *new_value(struct parser *p, enum value_kind kind)
{
    struct value *value = arena_new(p->arena, struct value);

    value->kind = kind;
    p->n_values++;
    return value;
}

static int take_text(struct parser *p, const char **text, size_t *n_bytes)
{
    str_clear(&p->text);
    if (jsonl_read_string(&p->reader, &p->text) < 0)
        return -1;
    *n_bytes = p->text.length;
    *text = arena_strndup(p->arena, "", 0);
    if (*n_bytes > 0) {
        char *copy = arena_alloc(p->arena, *n_bytes + 1);

        memcpy(copy, p->text.data, *n_bytes);
        *text = copy;
    }
    return 0;
}

/* -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)? */
static int is_number(const char *s, size_t n)
{
    size_t i = n > 0 && s[0] == '-', start = i;

    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    if (i == start || (s[start] == '0' && i > start + 1))
        return 0;
    if (i < n && s[i] == '.') {
        start = ++i;
        while (i < n && s[i] >= '0' && s[i] <= '9')
            i++;
        if (i == start)
            return 0;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        i += i < n && (s[i] == '+' || s[i] == '-');
        start = i;
        while (i < n && s[i] >= '0' && s[i] <= '9')
            i++;
        if (i == start)
            return 0;
    }
    return i == n;
}

static struct value *read_plain(struct parser *p)
{
    size_t start = p->reader.at;

    if (jsonl_skip_plain(&p->reader) < 0)
        return NULL;
    const char *text = p->reader.text + start;
    size_t n = p->reader.at - start;
    struct value *value = new_value(p, *text == 'n'                   ? VALUE_NULL
                                       : *text == 't' || *text == 'f' ? VALUE_BOOL
                                                                      : VALUE_NUMBER);
    if (value->kind == VALUE_NUMBER && !is_number(text, n)) {
        p->reader.at = start;
        jsonl_wrong(&p->reader, "an invalid number");
        return NULL;
    }
    value->text = arena_strndup(p->arena, text, n);
    value->n_bytes = n;
    return value;
}

/* A value, or an open container (on the stack). */
static struct value *read_value(struct parser *p)
{
    struct value *value;

    if (p->n_values >= VALUE_COUNT_MAX) {
        jsonl_wrong(&p->reader, "more than a million values");
        return NULL;
    }
    if (jsonl_take(&p->reader, '"')) {
        value = new_value(p, VALUE_TEXT);
        return take_text(p, &value->text, &value->n_bytes) < 0 ? NULL : value;
    }
    int is_list = jsonl_take(&p->reader, '['), is_object = !is_list && jsonl_take(&p->reader, '{');
    if (!is_list && !is_object)
        return read_plain(p);
    if (p->depth == VALUE_DEPTH_MAX) {
        jsonl_wrong(&p->reader, "nested too deep");
        return NULL;
    }
    value = new_value(p, is_list ? VALUE_LIST : VALUE_OBJECT);
    p->open[p->depth] = value;
    p->tails[p->depth++] = &value->first;
    return value;
}

/* Put a value into the innermost container. */
static int add(struct parser *p, struct value *value, const char *key, size_t n_key)
{
    struct value *object = p->open[p->depth - 1];

    value->key = key;
    value->n_key = n_key;
    /* Wide objects are checked no further: data rows have few fields, and this is quadratic. */
    int i = 0;
    for (const struct value *v = object->first; key && v && i < 256; v = v->next, i++)
        if (v->n_key == n_key && !memcmp(v->key, key, n_key))
            return jsonl_wrong(&p->reader, "a key that was there before");
    *p->tails[p->depth - 1] = value;
    p->tails[p->depth - 1] = &value->next;
    object->n++;
    return 0;
}

/* Key if need be, value, into the container at hand, which may then be that value. */
static int read_member(struct parser *p)
{
    const struct value *container = p->open[p->depth - 1];
    const char *key = NULL;
    size_t n_key = 0;

    if (container->kind == VALUE_OBJECT) {
        if (!jsonl_take(&p->reader, '"'))
            return jsonl_wrong(&p->reader, "no key");
        if (take_text(p, &key, &n_key) < 0)
            return -1;
        if (!jsonl_take(&p->reader, ':'))
            return jsonl_wrong(&p->reader, "no ':' after a key");
    }
    int depth = p->depth;
    struct value *value = read_value(p);
    if (!value)
        return -1;
    int is_open = p->depth > depth;
    p->depth = depth;
    if (add(p, value, key, n_key) < 0)
        return -1;
    p->depth += is_open;
    return 0;
}

/* Close what ends here. 1 if something else may come next in a container, 0 if it may not. */
static int close_containers(struct parser *p)
{
    while (p->depth > 0 &&
           jsonl_take(&p->reader, p->open[p->depth - 1]->kind == VALUE_LIST ? ']' : '}'))
        p->depth--;
    return p->depth > 0;
}

static struct value *parse(struct parser *p)
{
    struct value *root = read_value(p);

    if (!root)
        return NULL;
    while (close_containers(p)) {
        if (p->open[p->depth - 1]->n > 0 && !jsonl_take(&p->reader, ',')) {
            jsonl_wrong(&p->reader, "no ',' between values");
            return NULL;
        }
        if (read_member(p) < 0)
            return NULL;
    }
    if (!jsonl_at_end(&p->reader)) {
        jsonl_wrong(&p->reader, "unexpected characters after the value");
        return NULL;
    }
    return root;
}

int value_parse(struct value **value, const char *json, size_t n_bytes, struct arena *arena,
                struct err *err)
{
    struct parser p = { .reader = { .text = json, .n = n_bytes, .err = err }, .arena = arena };
    struct value *root = parse(&p);

    str_release(&p.text);
    if (!root)
        return -1;
    *value = root;
    return 0;
}

const struct value *value_get(const struct value *object, const char *key)
{
    size_t n = strlen(key);

    if (!object || object->kind != VALUE_OBJECT)
        return NULL;
    for (const struct value *v = object->first; v; v = v->next)
        if (v->n_key == n && !memcmp(v->key, key, n))
            return v->kind == VALUE_NULL ? NULL : v;
    return NULL;
}

const char *value_kind_name(const struct value *value)
{
    static const char *const names[] = { "null",     "true or false", "a number",
                                         "a string", "a list",        "an object" };

    return value ? names[value->kind] : "missing";
}

void value_print_text(const char *text, size_t n_bytes, struct str *out)
{
    size_t done = 0;

    str_add_char(out, '"');
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        str_add_bytes(out, text + done, i - done);
        done = i + 1;
        if (c == '"' || c == '\\')
            str_printf(out, "\\%c", c);
        else if (c == '\n')
            str_add(out, "\\n");
        else
            str_printf(out, "\\u%04x", c);
    }
    str_add_bytes(out, text + done, n_bytes - done);
    str_add_char(out, '"');
}

void value_print_utf8(const char *text, size_t n_bytes, struct str *out)
{
    struct str valid = { 0 };

    str_add_utf8(&valid, text, n_bytes);
    value_print_text(str_text(&valid), valid.length, out);
    str_release(&valid);
}

/* What stands for a value on its own; of containers, what opens them. */
static void print_head(const struct value *v, struct str *out)
{
    if (v->key) {
        value_print_text(v->key, v->n_key, out);
        str_add_char(out, ':');
    }
    if (v->kind == VALUE_TEXT)
        value_print_text(v->text, v->n_bytes, out);
    else if (v->kind == VALUE_LIST || v->kind == VALUE_OBJECT)
        str_add_char(out, v->kind == VALUE_LIST ? '[' : '{');
    else
        str_add(out, v->kind == VALUE_NULL ? "null" : v->text);
}

void value_print(const struct value *value, struct str *out)
{
    const struct value *open[VALUE_DEPTH_MAX + 1], *v = value;
    struct value root = *value;
    int depth = 0;

    root.key = NULL; /* a member is printed without its key */
    root.next = NULL;
    v = &root;
    while (v) {
        print_head(v, out);
        if ((v->kind == VALUE_LIST || v->kind == VALUE_OBJECT) && depth <= VALUE_DEPTH_MAX) {
            open[depth++] = v;
            if (v->first) {
                v = v->first;
                continue;
            }
            depth--;
            str_add_char(out, v->kind == VALUE_LIST ? ']' : '}');
        }
        while (!v->next && depth > 0) {
            v = open[--depth];
            str_add_char(out, v->kind == VALUE_LIST ? ']' : '}');
        }
        v = v->next;
        if (v)
            str_add_char(out, ',');
    }
}
