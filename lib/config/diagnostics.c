/*
 * diagnostics.c - collecting and sorting what is wrong
 */
#include "config/diagnostics_impl.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add(struct diagnostics *m, const char *source, int line, int column, const char *text)
{
    char place[64] = "";

    if (line > 0)
        snprintf(place, sizeof place, ":%d:%d", line, column);
    m->items = arena_grow(m->arena, m->items, sizeof *m->items, &m->capacity, m->n + 1);
    m->items[m->n] = (struct diagnostic){
        .line = line > 0 && !strcmp(source, m->source) ? line : INT_MAX,
        .column = column,
        .order = m->n,
        .text = arena_printf(m->arena, "%s%s: %s", source, place, text),
    };
    m->n++;
    return -1;
}

int diagnostics_add(struct diagnostics *m, const struct yaml_node *node, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!node)
        return add(m, m->source, 0, 0, text);
    return add(m, node->source, node->line, node->column, text);
}

int diagnostics_add_at_key(struct diagnostics *m, const struct yaml_node *node, const char *format,
                           ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return add(m, node->source, node->key_line, node->key_column, text);
}

int diagnostics_add_text(struct diagnostics *m, const char *text)
{
    m->items = arena_grow(m->arena, m->items, sizeof *m->items, &m->capacity, m->n + 1);
    m->items[m->n] =
        (struct diagnostic){ .line = INT_MAX, .order = m->n, .text = arena_strdup(m->arena, text) };
    m->n++;
    return -1;
}

static int compare(const void *a, const void *b)
{
    const struct diagnostic *left = a, *right = b;

    if (left->line != right->line)
        return left->line < right->line ? -1 : 1;
    if (left->column != right->column && left->line != INT_MAX)
        return left->column < right->column ? -1 : 1;
    return left->order < right->order ? -1 : 1;
}

int diagnostics_tell(struct diagnostics *m, struct err *err)
{
    char text[sizeof err->text];
    size_t used = 0, room = sizeof text - sizeof "\n... and 1000000000 more";
    int told = 0;

    if (m->n == 0)
        return 0;
    qsort(m->items, (size_t)m->n, sizeof *m->items, compare);
    for (; told < m->n; told++) {
        size_t length = strlen(m->items[told].text);

        if (used + length + 1 > room && told > 0)
            break;
        if (length + 1 > room)
            length = room - 1;
        if (told > 0)
            text[used++] = '\n';
        memcpy(text + used, m->items[told].text, length);
        used += length;
    }
    text[used] = '\0';
    if (told < m->n)
        return err_set(err, ERR_CONFIG, "%s\n... and %d more", text, m->n - told);
    return err_set(err, ERR_CONFIG, "%s", text);
}
