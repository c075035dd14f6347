/*
 * rows_csv.c - CSV as RFC 4180 has it, and with other separators
 *
 * The first record names the columns. A field in quotes may hold separators, line breaks and quotes
 * (doubled). The separator is the one of , tab ; | that comes first in the header.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "data/rows/json_value.h"
#include "data/rows/row_reader_impl.h"

#define COLUMNS_MAX 4096

struct csv {
    char separator;
    struct str names;      /* of the columns, each with a 0 byte behind it */
    size_t *name_at;       /* [n_columns] heap */
    int n_columns, wanted; /* wanted: of `column`, or -1 */
    struct str field;
};

enum field_end { FIELD_MORE, FIELD_LAST, FIELD_BROKEN };

static bool is_break(const char *at, const char *end)
{
    return at < end && (*at == '\n' || (*at == '\r' && at + 1 < end && at[1] == '\n') ||
                        (*at == '\r' && at + 1 == end));
}

static const char *skip_break(const char *at, const char *end)
{
    if (at < end && *at == '\r')
        at++;
    return at < end && *at == '\n' ? at + 1 : at;
}

/* Nothing of a field that is longer than any row may be. */
static void add_to_field(struct csv *csv, const char *text, size_t n_bytes)
{
    if (csv->field.length + n_bytes <= ROW_BYTES_MAX)
        str_add_bytes(&csv->field, text, n_bytes);
}

/* The field at *from into csv->field; *from goes behind it and its separator or line break. */
static enum field_end read_field(struct csv *csv, const char **from, const char *end,
                                 const char **wrong)
{
    const char *at = *from;

    str_clear(&csv->field);
    if (at < end && *at == '"') {
        for (at++;;) {
            const char *quote = at < end ? memchr(at, '"', (size_t)(end - at)) : NULL;

            if (!quote) {
                *wrong = "a quoted field does not end";
                *from = end;
                return FIELD_BROKEN;
            }
            add_to_field(csv, at, (size_t)(quote - at));
            at = quote + 1;
            if (at == end || *at != '"')
                break;
            add_to_field(csv, "\"", 1);
            at++;
        }
        if (at < end && *at != csv->separator && !is_break(at, end)) {
            *wrong = "text follows the closing quote of a field (hint: quotes within a field are "
                     "doubled)";
            *from = at;
            return FIELD_BROKEN;
        }
    } else {
        const char *start = at;

        while (at < end && *at != csv->separator && !is_break(at, end))
            at++;
        add_to_field(csv, start, (size_t)(at - start));
    }
    bool is_last = at == end || *at != csv->separator;
    *from = is_last ? skip_break(at, end) : at + 1;
    return is_last ? FIELD_LAST : FIELD_MORE;
}

static const char *line_end(const char *at, const char *end)
{
    const char *newline = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;

    return newline ? newline + 1 : end;
}

static const char *name_of(const struct csv *csv, int column)
{
    return csv->names.data + csv->name_at[column];
}

static void add_column(struct rows *r, struct csv *csv, int column)
{
    if (csv->wanted >= 0) {
        if (column == csv->wanted)
            str_add_bytes(&r->text, str_text(&csv->field), csv->field.length);
        return;
    }
    str_add_char(&r->text, column == 0 ? '{' : ',');
    json_value_print_text(name_of(csv, column), strlen(name_of(csv, column)), &r->text);
    str_add_char(&r->text, ':');
    json_value_print_text(str_text(&csv->field), csv->field.length, &r->text);
}

static int next_record(struct rows *r, struct row *row, struct err *err)
{
    struct csv *csv = r->state;
    const char *wrong = NULL;
    enum field_end field = FIELD_MORE;
    int n = 0;

    while (is_break(r->at, r->end)) /* empty lines */
        rows_advance(r, skip_break(r->at, r->end));
    if (r->at == r->end)
        return 0;
    const char *start = r->at, *at = start;
    int64_t line = r->line;
    str_clear(&r->text);
    for (; field == FIELD_MORE; n++) {
        field = read_field(csv, &at, r->end, &wrong);
        if (n < csv->n_columns && (size_t)(at - start) <= ROW_BYTES_MAX)
            add_column(r, csv, n);
    }
    if (field == FIELD_BROKEN &&
        at == r->end) /* all that follows is in it: nothing can be skipped */
        return err_set(err, ERR_DATA, "%s:%lld: %s", r->path, (long long)line, wrong);
    if (field == FIELD_BROKEN)
        at = line_end(at, r->end);
    rows_advance(r, at);
    if (field == FIELD_BROKEN)
        return rows_bad(r, row, line, "%s", wrong);
    if (n != csv->n_columns)
        return rows_bad(r, row, line, "%d fields, %s has %d", n,
                        r->names ? "a row of this format" : "the header", csv->n_columns);
    if ((size_t)(at - start) > ROW_BYTES_MAX)
        return rows_bad(r, row, line, "the row has %zu bytes, more than %zu", (size_t)(at - start),
                        ROW_BYTES_MAX);
    if (csv->wanted < 0)
        str_add_char(&r->text, '}');
    *row = (struct row){ csv->wanted < 0 ? ROW_JSON : ROW_TEXT, str_text(&r->text), r->text.length,
                         line };
    return 1;
}

static char find_separator(const char *at, const char *end)
{
    bool in_quotes = false;

    for (; at < end && (in_quotes || !is_break(at, end)); at++) {
        if (*at == '"')
            in_quotes = !in_quotes;
        else if (!in_quotes && *at && strchr(",\t;|", *at))
            return *at;
    }
    return ',';
}

static int refuse_header(struct rows *r, const char *what, struct err *err)
{
    return err_set(err, ERR_DATA, "%s:%lld: %s in the header", r->path, (long long)r->line, what);
}

static int check_name(struct rows *r, const struct csv *csv, struct err *err)
{
    const char *name = str_text(&csv->field);

    if (strlen(name) != csv->field.length)
        return refuse_header(r, "a zero byte", err);
    for (int i = 0; i < csv->n_columns; i++)
        if (!strcmp(name_of(csv, i), name))
            return err_set(err, ERR_DATA, "%s:%lld: column '%s' occurs twice", r->path,
                           (long long)r->line, name);
    return 0;
}

static int read_header(struct rows *r, struct csv *csv, struct err *err)
{
    enum field_end field = FIELD_MORE;
    const char *wrong = NULL, *at = r->at;

    csv->separator = find_separator(r->at, r->end);
    while (field == FIELD_MORE) {
        if (csv->n_columns == COLUMNS_MAX)
            return refuse_header(r, "more than 4096 columns", err);
        field = read_field(csv, &at, r->end, &wrong);
        if (field == FIELD_BROKEN)
            return refuse_header(r, wrong, err);
        if (check_name(r, csv, err) < 0)
            return -1;
        csv->name_at[csv->n_columns++] = csv->names.length;
        str_add_bytes(&csv->names, str_text(&csv->field), csv->field.length);
        str_add_char(&csv->names, '\0');
    }
    rows_advance(r, at);
    return 0;
}

/* Without a header the separator is a comma: a text may hold any other. */
static void take_names(struct rows *r, struct csv *csv)
{
    csv->separator = ',';
    for (; r->names[csv->n_columns]; csv->n_columns++) {
        const char *name = r->names[csv->n_columns];

        CHECK(csv->n_columns < COLUMNS_MAX);
        csv->name_at[csv->n_columns] = csv->names.length;
        str_add_bytes(&csv->names, name, strlen(name) + 1);
    }
}

static int find_wanted(struct rows *r, struct csv *csv, struct err *err)
{
    struct str names = { 0 };

    csv->wanted = -1;
    for (int i = 0; i < csv->n_columns && r->column; i++) {
        if (!strcmp(name_of(csv, i), r->column))
            csv->wanted = i;
        str_printf(&names, "%s%s", i > 0 ? ", " : "", name_of(csv, i));
    }
    int missing = r->column && csv->wanted < 0;
    if (missing)
        err_set(err, ERR_DATA, "%s: there is no column '%s' (hint: it has %.500s)", r->path,
                r->column, str_text(&names));
    str_release(&names);
    return missing ? -1 : 0;
}

static void close_csv(struct rows *r)
{
    struct csv *csv = r->state;

    str_release(&csv->names);
    str_release(&csv->field);
    free(csv->name_at);
    free(csv);
}

int rows_open_csv(struct rows *rows, struct err *err)
{
    struct csv *csv = calloc(1, sizeof *csv);

    if (!csv || !(csv->name_at = calloc(COLUMNS_MAX, sizeof *csv->name_at))) {
        free(csv);
        return err_set(err, ERR_DEVICE, "out of host memory");
    }
    rows->state = csv;
    rows->close = close_csv;
    rows->next = next_record;
    if (rows->names) {
        take_names(rows, csv);
        return find_wanted(rows, csv, err);
    }
    if (rows->at == rows->end)
        return err_set(err, ERR_DATA, "%s: no header: the file is empty", rows->path);
    return read_header(rows, csv, err) < 0 ? -1 : find_wanted(rows, csv, err);
}
