/*
 * table.c - small text tables
 */
#include "report/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/num.h"

enum line_kind { LINE_ROW, LINE_HEADING, LINE_TOTAL };

struct report_table_line {
    struct report_table_line *next;
    enum line_kind kind;
    const char *cells[REPORT_TABLE_COLUMNS_MAX];
};

void report_table_init(struct report_table *table, const char *align)
{
    size_t n = strlen(align);

    CHECK(n > 0);
    CHECK(n <= REPORT_TABLE_COLUMNS_MAX);
    CHECK(strspn(align, "lr") == n);
    *table = (struct report_table){ .align = align, .n_columns = (int)n };
}

void report_table_release(struct report_table *table)
{
    arena_release(&table->arena);
    *table = (struct report_table){ 0 };
}

static void add_line(struct report_table *table, enum line_kind kind, const char *text)
{
    struct report_table_line *line = arena_new(&table->arena, struct report_table_line);
    int column = 0;

    line->kind = kind;
    for (;;) {
        size_t length = strcspn(text, "\t");

        CHECK(column < table->n_columns);
        line->cells[column++] = arena_strndup(&table->arena, text, length);
        if (!text[length])
            break;
        text += length + 1;
    }
    while (column < table->n_columns)
        line->cells[column++] = "";
    if (table->last)
        table->last->next = line;
    else
        table->first = line;
    table->last = line;
}

#define LINE_FUNCTION(name, kind) \
    void name(struct report_table *table, const char *format, ...) \
    { \
        va_list args; \
        char *text = NULL; \
        va_start(args, format); \
        CHECK(vasprintf(&text, format, args) >= 0); \
        va_end(args); \
        add_line(table, kind, text); \
        free(text); \
    }

LINE_FUNCTION(report_table_heading, LINE_HEADING)
LINE_FUNCTION(report_table_row, LINE_ROW)
LINE_FUNCTION(report_table_total, LINE_TOTAL)

/* Characters of UTF-8: all bytes but those that continue one. */
static int text_width(const char *text)
{
    int width = 0;

    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void add_repeated(struct str *out, char c, int n)
{
    for (int i = 0; i < n; i++)
        str_add_char(out, c);
}

static void end_line(struct str *out)
{
    while (out->length && out->data[out->length - 1] == ' ')
        out->data[--out->length] = '\0';
    str_add_char(out, '\n');
}

static void print_rule(const int *widths, int n_columns, int indent, struct str *out)
{
    add_repeated(out, ' ', indent);
    for (int column = 0; column < n_columns; column++) {
        add_repeated(out, ' ', column ? 2 : 0);
        add_repeated(out, '-', widths[column]);
    }
    end_line(out);
}

void report_table_print(const struct report_table *table, int indent, struct str *out)
{
    int widths[REPORT_TABLE_COLUMNS_MAX] = { 0 };

    for (const struct report_table_line *line = table->first; line; line = line->next)
        for (int column = 0; column < table->n_columns; column++)
            widths[column] = max_int(widths[column], text_width(line->cells[column]));
    for (const struct report_table_line *line = table->first; line; line = line->next) {
        if (line->kind == LINE_TOTAL)
            print_rule(widths, table->n_columns, indent, out);
        add_repeated(out, ' ', indent);
        for (int column = 0; column < table->n_columns; column++) {
            int blanks = widths[column] - text_width(line->cells[column]);

            add_repeated(out, ' ', column ? 2 : 0);
            if (table->align[column] == 'r')
                add_repeated(out, ' ', blanks);
            str_add(out, line->cells[column]);
            if (table->align[column] == 'l')
                add_repeated(out, ' ', blanks);
        }
        end_line(out);
        if (line->kind == LINE_HEADING)
            print_rule(widths, table->n_columns, indent, out);
    }
}
