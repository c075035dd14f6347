/*
 * yaml.c - a tree from libyaml's events
 *
 * Events come one at a time and open maps and lists wait on an explicit stack, so depth costs no
 * recursion and a hostile file stops at the first limit it hits.
 */
#include "base/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/file.h"

struct yaml_frame {
    struct yaml_node *node;
    const char *key; /* map: read, its value still to come */
    int key_line, key_column;
};

struct yaml_reader {
    yaml_parser_t parser;
    const char *text;
    size_t n_bytes;
    const char *source;
    int has_places; /* 0: one value of a command line */
    struct arena *arena;
    struct err *err;
    int n_nodes;
    int depth;
    struct yaml_frame stack[YAML_MAX_DEPTH];
    struct yaml_node *root;
};

static int fail_at(struct yaml_reader *r, yaml_mark_t mark, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fail_at(struct yaml_reader *r, yaml_mark_t mark, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!r->has_places)
        return err_set(r->err, ERR_CONFIG, "%s: %s", r->source, text);
    return err_set(r->err, ERR_CONFIG, "%s:%zu:%zu: %s", r->source, mark.line + 1, mark.column + 1,
                   text);
}

/* libyaml's reader errors (bad UTF-8, control characters) carry a byte offset and no mark. */
static yaml_mark_t mark_of_offset(const struct yaml_reader *r, size_t offset)
{
    yaml_mark_t mark = { 0 };

    for (size_t i = 0; i < offset && i < r->n_bytes; i++) {
        if (r->text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        } else if (((unsigned char)r->text[i] & 0xc0) != 0x80) {
            mark.column++;
        }
    }
    return mark;
}

static int fail_in_parser(struct yaml_reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "out of memory";

    if (p->error == YAML_READER_ERROR)
        return fail_at(r, mark_of_offset(r, p->problem_offset), "%s", problem);
    if (p->context && r->has_places)
        return fail_at(r, p->problem_mark, "%s (%s that starts at line %zu)", problem, p->context,
                       p->context_mark.line + 1);
    return fail_at(r, p->problem_mark, "%s", problem);
}

void yaml_append(struct yaml_node *parent, struct yaml_node *child)
{
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
    child->next = NULL;
}

static int mark_line(const struct yaml_reader *r, yaml_mark_t mark)
{
    return r->has_places ? (int)mark.line + 1 : 0;
}

static int mark_column(const struct yaml_reader *r, yaml_mark_t mark)
{
    return r->has_places ? (int)mark.column + 1 : 0;
}

/* A new node, hung under the open map or list (or the root). NULL after a mistake. */
static struct yaml_node *add_node(struct yaml_reader *r, enum yaml_kind kind, yaml_mark_t mark)
{
    if (++r->n_nodes > YAML_MAX_NODES) {
        fail_at(r, mark, "more than %d values", YAML_MAX_NODES);
        return NULL;
    }
    struct yaml_node *node = arena_new(r->arena, struct yaml_node);
    node->kind = kind;
    node->source = r->source;
    node->line = mark_line(r, mark);
    node->column = mark_column(r, mark);
    if (r->depth == 0) {
        r->root = node;
        return node;
    }
    struct yaml_frame *frame = &r->stack[r->depth - 1];
    if (frame->node->kind == YAML_MAP) {
        if (!frame->key) {
            fail_at(r, mark, "a key is a map or a list (hint: keys are strings)");
            return NULL;
        }
        node->key = frame->key;
        node->key_line = frame->key_line;
        node->key_column = frame->key_column;
        frame->key = NULL;
    }
    yaml_append(frame->node, node);
    return node;
}

static int take_key(struct yaml_reader *r, struct yaml_frame *frame, const char *text,
                    const yaml_event_t *event)
{
    if (!strcmp(text, "<<") && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return fail_at(r, event->start_mark,
                       "merge key << is not supported (hint: repeat the keys)");
    if (!*text)
        return fail_at(r, event->start_mark, "a key is empty");
    frame->key = text;
    frame->key_line = mark_line(r, event->start_mark);
    frame->key_column = mark_column(r, event->start_mark);
    return 0;
}

static int take_scalar(struct yaml_reader *r, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    struct yaml_frame *frame = r->depth ? &r->stack[r->depth - 1] : NULL;

    if (memchr(value, 0, length))
        return fail_at(r, event->start_mark, "text with a zero byte");
    const char *text = arena_strndup(r->arena, value, length);
    if (frame && frame->node->kind == YAML_MAP && !frame->key)
        return take_key(r, frame, text, event);
    struct yaml_node *node = add_node(r, YAML_SCALAR, event->start_mark);
    if (!node)
        return -1;
    node->text = text;
    node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return 0;
}

static int open_collection(struct yaml_reader *r, enum yaml_kind kind, yaml_mark_t mark)
{
    if (r->depth == YAML_MAX_DEPTH)
        return fail_at(r, mark, "nested deeper than %d levels", YAML_MAX_DEPTH);
    struct yaml_node *node = add_node(r, kind, mark);
    if (!node)
        return -1;
    r->stack[r->depth++] = (struct yaml_frame){ .node = node };
    return 0;
}

static int compare_keys(const void *a, const void *b)
{
    const struct yaml_node *const *left = a, *const *right = b;
    int order = strcmp((*left)->key, (*right)->key);

    if (order)
        return order;
    if ((*left)->key_line != (*right)->key_line)
        return (*left)->key_line < (*right)->key_line ? -1 : 1;
    return ((*left)->key_column > (*right)->key_column) -
           ((*left)->key_column < (*right)->key_column);
}

/* Sorting, not comparing all pairs: a map may have 100,000 keys. */
static int check_duplicates(struct yaml_reader *r, const struct yaml_node *map)
{
    int n = 0;

    for (const struct yaml_node *child = map->first; child; child = child->next)
        n++;
    if (n < 2)
        return 0;
    const struct yaml_node **sorted = arena_array(r->arena, const struct yaml_node *, n);
    n = 0;
    for (const struct yaml_node *child = map->first; child; child = child->next)
        sorted[n++] = child;
    qsort(sorted, (size_t)n, sizeof *sorted, compare_keys);
    for (int i = 1; i < n; i++) {
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) != 0)
            continue;
        if (!r->has_places)
            return err_set(r->err, ERR_CONFIG, "%s: key %s is given twice", r->source,
                           sorted[i]->key);
        return err_set(r->err, ERR_CONFIG, "%s:%d:%d: key %s is given twice (first in line %d)",
                       r->source, sorted[i]->key_line, sorted[i]->key_column, sorted[i]->key,
                       sorted[i - 1]->key_line);
    }
    return 0;
}

static int close_collection(struct yaml_reader *r)
{
    CHECK(r->depth > 0);
    const struct yaml_node *node = r->stack[--r->depth].node;

    return node->kind == YAML_MAP ? check_duplicates(r, node) : 0;
}

static int refuse_extras(struct yaml_reader *r, const yaml_event_t *event,
                         const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor)
        return fail_at(r, event->start_mark,
                       "anchor &%s is not supported (hint: repeat the value where it is used)",
                       (const char *)anchor);
    if (tag)
        return fail_at(r, event->start_mark, "tag %s is not supported (hint: remove it)",
                       (const char *)tag);
    return 0;
}

static int take_event(struct yaml_reader *r, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (event->data.document_start.tag_directives.start !=
            event->data.document_start.tag_directives.end)
            return fail_at(r, event->start_mark,
                           "a %%TAG directive is not supported (hint: remove it)");
        if (r->root)
            return fail_at(r, event->start_mark,
                           "a second document is not supported (hint: one file is one job)");
        return 0;
    case YAML_ALIAS_EVENT:
        return fail_at(r, event->start_mark, "alias *%s is not supported (hint: repeat the value)",
                       (const char *)event->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        if (refuse_extras(r, event, event->data.scalar.anchor, event->data.scalar.tag))
            return -1;
        return take_scalar(r, event);
    case YAML_SEQUENCE_START_EVENT:
        if (refuse_extras(r, event, event->data.sequence_start.anchor,
                          event->data.sequence_start.tag))
            return -1;
        return open_collection(r, YAML_LIST, event->start_mark);
    case YAML_MAPPING_START_EVENT:
        if (refuse_extras(r, event, event->data.mapping_start.anchor,
                          event->data.mapping_start.tag))
            return -1;
        return open_collection(r, YAML_MAP, event->start_mark);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return close_collection(r);
    default:
        return 0;
    }
}

static int read_events(struct yaml_reader *r)
{
    int done = 0;

    while (!done) {
        yaml_event_t event;

        if (!yaml_parser_parse(&r->parser, &event))
            return fail_in_parser(r);
        done = event.type == YAML_STREAM_END_EVENT;
        int status = take_event(r, &event);
        yaml_event_delete(&event);
        if (status)
            return -1;
    }
    return 0;
}

static struct yaml_node *parse(const char *text, size_t n_bytes, const char *source, int has_places,
                               struct arena *arena, struct err *err)
{
    struct yaml_reader r = { .text = text,
                             .n_bytes = n_bytes,
                             .source = arena_strdup(arena, source),
                             .has_places = has_places,
                             .arena = arena,
                             .err = err };
    int status = -1;

    if (n_bytes > YAML_MAX_BYTES) {
        err_set(err, ERR_CONFIG, "%s: %zu bytes, more than %zu", source, n_bytes, YAML_MAX_BYTES);
        return NULL;
    }
    if (!yaml_parser_initialize(&r.parser)) {
        err_set(err, ERR_FAILED, "%s: out of memory", source);
        return NULL;
    }
    /* Editors of another system put a mark before UTF-8; places count from behind it. */
    if (n_bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) {
        r.text = text += 3;
        r.n_bytes = n_bytes -= 3;
    }
    /* Else libyaml would guess UTF-16 from the first bytes. */
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n_bytes);
    status = read_events(&r);
    yaml_parser_delete(&r.parser);
    if (status)
        return NULL;
    if (!r.root) {
        r.root = add_node(&r, YAML_SCALAR, (yaml_mark_t){ 0 });
        r.root->text = "";
        r.root->plain = true;
    }
    return r.root;
}

struct yaml_node *yaml_parse(const char *text, size_t n_bytes, const char *source,
                             struct arena *arena, struct err *err)
{
    return parse(text, n_bytes, source, 1, arena, err);
}

struct yaml_node *yaml_parse_value(const char *text, const char *source, struct arena *arena,
                                   struct err *err)
{
    return parse(text, strlen(text), source, 0, arena, err);
}

struct yaml_node *yaml_read(const char *path, struct arena *arena, struct err *err)
{
    char *text;
    size_t n_bytes;

    if (file_read(path, YAML_MAX_BYTES, ERR_CONFIG, &text, &n_bytes, err))
        return NULL;
    struct yaml_node *root = yaml_parse(text, n_bytes, path, arena, err);
    free(text);
    return root;
}

struct yaml_node *yaml_get(const struct yaml_node *map, const char *key)
{
    if (map->kind != YAML_MAP)
        return NULL;
    for (struct yaml_node *child = map->first; child; child = child->next)
        if (!strcmp(child->key, key))
            return child;
    return NULL;
}

bool yaml_is_null(const struct yaml_node *node)
{
    static const char *const words[] = { "", "~", "null", "Null", "NULL" };

    if (node->kind != YAML_SCALAR || !node->plain)
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(node->text, words[i]))
            return true;
    return false;
}
