/*
 * value.c - JSON to a tree by a loop over a stack of open containers
 */
#include "data/rows/value.h"

#include <string.h>

#include "base/json_reader.h"

struct value_parser {
    struct json_reader reader;
    struct value *open[VALUE_DEPTH_MAX], **tails[VALUE_DEPTH_MAX];
    int depth, n_values;
};

static const char *copy_text(struct value_parser *p, struct json_span span, size_t *n_bytes)
{
    char *copy = arena_alloc(p->reader.arena, span.n_bytes + 1);

    *n_bytes = json_decode(span, copy);
    return copy;
}

/* A value that is not a container. */
static void read_plain(struct value_parser *p, struct value *value)
{
    struct json_span span = json_scalar(&p->reader);

    value->text = arena_strndup(p->reader.arena, span.text, span.n_bytes);
    value->n_bytes = span.n_bytes;
    value->kind = *span.text == 'n'                        ? VALUE_NULL
                  : *span.text == 't' || *span.text == 'f' ? VALUE_BOOL
                                                           : VALUE_NUMBER;
}

/* A list or an object, which is open then (on the stack). */
static void open_container(struct value_parser *p, struct value *value, enum json_kind kind)
{
    if (p->depth == VALUE_DEPTH_MAX) {
        json_fail(&p->reader, "values are nested too deep");
        return;
    }
    json_open(&p->reader, kind == JSON_ARRAY ? '[' : '{');
    value->kind = kind == JSON_ARRAY ? VALUE_LIST : VALUE_OBJECT;
    p->open[p->depth] = value;
    p->tails[p->depth++] = &value->first;
}

static struct value *read_value(struct value_parser *p)
{
    struct value *value = arena_new(p->reader.arena, struct value);
    enum json_kind kind = json_peek(&p->reader);

    if (p->n_values++ >= VALUE_COUNT_MAX)
        json_fail(&p->reader, "more than a million values");
    if (kind == JSON_STRING) {
        value->kind = VALUE_TEXT;
        value->text = copy_text(p, json_string_span(&p->reader), &value->n_bytes);
    } else if (kind == JSON_ARRAY || kind == JSON_OBJECT) {
        open_container(p, value, kind);
    } else {
        read_plain(p, value);
    }
    return value;
}

/* Put a value into a container. */
static void add_member(struct value_parser *p, int depth, struct value *value)
{
    struct value *container = p->open[depth - 1];
    int i = 0;

    /* Wide objects are checked no further: data rows have few fields, and this is quadratic. */
    for (const struct value *v = container->first; value->key && v && i < 256; v = v->next, i++)
        if (v->n_key == value->n_key && !memcmp(v->key, value->key, v->n_key))
            json_fail(&p->reader, "a key that was there before");
    *p->tails[depth - 1] = value;
    p->tails[depth - 1] = &value->next;
    container->n++;
}

/* The next member of the innermost container, or its end. */
static void read_member(struct value_parser *p)
{
    int depth = p->depth;
    bool is_object = p->open[depth - 1]->kind == VALUE_OBJECT;
    const char *key = NULL;
    size_t n_key = 0;

    if (!json_next(&p->reader, is_object ? '}' : ']')) {
        p->depth--;
        return;
    }
    if (is_object)
        key = copy_text(p, json_key_span(&p->reader), &n_key);
    struct value *value = read_value(p);
    value->key = key;
    value->n_key = n_key;
    add_member(p, depth, value);
}

int value_parse(struct value **value, const char *json, size_t n_bytes, struct arena *arena,
                struct err *err)
{
    struct value_parser p = { 0 };

    json_reader_init(&p.reader, json, n_bytes, arena);
    p.reader.any_bytes = true;
    struct value *root = read_value(&p);
    while (p.depth > 0 && !p.reader.problem)
        read_member(&p);
    if (json_end(&p.reader) < 0)
        return err_set(err, ERR_DATA, "%s at byte %zu", p.reader.problem, p.reader.problem_at);
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
