/*
 * json_value.c - JSON to a tree by a loop over a stack of open containers
 */
#include "data/rows/json_value.h"

#include <string.h>

struct value_parser {
    struct json_reader reader;
    struct json_value *open[JSON_VALUE_DEPTH_MAX], **tails[JSON_VALUE_DEPTH_MAX];
    int depth, n_values;
};

static const char *copy_text(struct value_parser *p, struct json_span span, size_t *n_bytes)
{
    char *copy = arena_alloc(p->reader.arena, span.n_bytes + 1);

    *n_bytes = json_decode(span, copy);
    return copy;
}

/* A value that is not a container. */
static void read_plain(struct value_parser *p, struct json_value *value)
{
    struct json_span span = json_scalar(&p->reader);

    value->text = arena_strndup(p->reader.arena, span.text, span.n_bytes);
    value->n_bytes = span.n_bytes;
}

/* A list or an object, which is open then (on the stack). */
static void open_container(struct value_parser *p, struct json_value *value)
{
    if (p->depth == JSON_VALUE_DEPTH_MAX) {
        json_fail(&p->reader, "values are nested too deep");
        return;
    }
    json_open(&p->reader, value->kind == JSON_ARRAY ? '[' : '{');
    p->open[p->depth] = value;
    p->tails[p->depth++] = &value->first;
}

static struct json_value *read_value(struct value_parser *p)
{
    struct json_value *value = arena_new(p->reader.arena, struct json_value);

    value->kind = json_peek(&p->reader);
    if (p->n_values++ >= JSON_VALUE_COUNT_MAX)
        json_fail(&p->reader, "more than a million values");
    if (value->kind == JSON_STRING)
        value->text = copy_text(p, json_string_span(&p->reader), &value->n_bytes);
    else if (value->kind == JSON_ARRAY || value->kind == JSON_OBJECT)
        open_container(p, value);
    else
        read_plain(p, value);
    return value;
}

/* Put a value into a container. */
static void add_member(struct value_parser *p, int depth, struct json_value *value)
{
    struct json_value *container = p->open[depth - 1];
    int i = 0;

    /* Wide objects are checked no further: data rows have few fields, and this is quadratic. */
    for (const struct json_value *v = container->first; value->key && v && i < 256;
         v = v->next, i++)
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
    bool is_object = p->open[depth - 1]->kind == JSON_OBJECT;
    const char *key = NULL;
    size_t n_key = 0;

    if (!json_next(&p->reader, is_object ? '}' : ']')) {
        p->depth--;
        return;
    }
    if (is_object)
        key = copy_text(p, json_key_span(&p->reader), &n_key);
    struct json_value *value = read_value(p);
    value->key = key;
    value->n_key = n_key;
    add_member(p, depth, value);
}

int json_value_parse(struct json_value **value, const char *json, size_t n_bytes,
                     struct arena *arena, struct err *err)
{
    struct value_parser p = { 0 };

    json_reader_init(&p.reader, json, n_bytes, arena);
    p.reader.any_bytes = true;
    struct json_value *root = read_value(&p);
    while (p.depth > 0 && !p.reader.problem)
        read_member(&p);
    if (json_end(&p.reader) < 0)
        return err_set(err, ERR_DATA, "%s at byte %zu", p.reader.problem, p.reader.problem_at);
    *value = root;
    return 0;
}

const struct json_value *json_value_get(const struct json_value *object, const char *key)
{
    size_t n = strlen(key);

    if (!object || object->kind != JSON_OBJECT)
        return NULL;
    for (const struct json_value *v = object->first; v; v = v->next)
        if (v->n_key == n && !memcmp(v->key, key, n))
            return v->kind == JSON_NULL ? NULL : v;
    return NULL;
}

const char *json_value_kind_name(const struct json_value *value)
{
    static const char *const names[] = { "null",     "true or false", "a number",
                                         "a string", "a list",        "an object" };

    return value ? names[value->kind] : "missing";
}

void json_value_print_text(const char *text, size_t n_bytes, struct str *out)
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

void json_value_print_utf8(const char *text, size_t n_bytes, struct str *out)
{
    struct str valid = { 0 };

    str_add_utf8(&valid, text, n_bytes);
    json_value_print_text(str_text(&valid), valid.length, out);
    str_release(&valid);
}

/* What stands for a value on its own; of containers, what opens them. */
static void print_head(const struct json_value *v, struct str *out)
{
    if (v->key) {
        json_value_print_text(v->key, v->n_key, out);
        str_add_char(out, ':');
    }
    if (v->kind == JSON_STRING)
        json_value_print_text(v->text, v->n_bytes, out);
    else if (v->kind == JSON_ARRAY || v->kind == JSON_OBJECT)
        str_add_char(out, v->kind == JSON_ARRAY ? '[' : '{');
    else
        str_add(out, v->kind == JSON_NULL ? "null" : v->text);
}

void json_value_print(const struct json_value *value, struct str *out)
{
    const struct json_value *open[JSON_VALUE_DEPTH_MAX + 1], *v = value;
    struct json_value root = *value;
    int depth = 0;

    root.key = NULL; /* a member is printed without its key */
    root.next = NULL;
    v = &root;
    while (v) {
        print_head(v, out);
        if ((v->kind == JSON_ARRAY || v->kind == JSON_OBJECT) && depth <= JSON_VALUE_DEPTH_MAX) {
            open[depth++] = v;
            if (v->first) {
                v = v->first;
                continue;
            }
            depth--;
            str_add_char(out, v->kind == JSON_ARRAY ? ']' : '}');
        }
        while (!v->next && depth > 0) {
            v = open[--depth];
            str_add_char(out, v->kind == JSON_ARRAY ? ']' : '}');
        }
        v = v->next;
        if (v)
            str_add_char(out, ',');
    }
}
