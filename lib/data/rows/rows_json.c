/*
 * rows_json.c - an array of objects, objects one behind the other, and lines
 *
 * Only the ends of rows are found here, by brackets outside of strings, so that reading can resume
 * behind a row that is not valid. What is wrong within a row is found when it is parsed.
 */
#include <stdbool.h>
#include <string.h>

#include "base/json_reader.h"
#include "data/rows/row_reader_impl.h"

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n'))
        at++;
    return at;
}

static int give(struct rows *r, struct row *row, const char *start, const char *end)
{
    int64_t line = r->line;

    rows_advance(r, end);
    if ((size_t)(end - start) > ROW_BYTES_MAX)
        return rows_bad(r, row, line, "the row has %zu bytes, more than %zu", (size_t)(end - start),
                        ROW_BYTES_MAX);
    *row = (struct row){ ROW_JSON, start, (size_t)(end - start), line };
    return 1;
}

static int next_line(struct rows *r, struct row *row, struct err *err)
{
    (void)err;
    while (r->at < r->end) {
        const char *start = r->at, *newline = memchr(start, '\n', (size_t)(r->end - start));
        const char *end = newline ? newline : r->end;
        bool is_blank = skip_space(start, end) == end;

        if (!is_blank) {
            int rc = give(r, row, start, end);

            rows_advance(r, newline ? newline + 1 : r->end);
            return rc;
        }
        rows_advance(r, newline ? newline + 1 : r->end);
    }
    return 0;
}

static int broken(struct rows *r, const char *what, struct err *err)
{
    return err_set(err, ERR_DATA, "%s:%lld: %s", r->path, (long long)r->line, what);
}

/* The object that comes next, of an array or not; behind it stands what may be. */
static int next_object(struct rows *r, struct row *row, struct err *err)
{
    rows_advance(r, skip_space(r->at, r->end));
    if (r->at == r->end)
        return 0;
    if (*r->at != '{')
        return broken(r, "no object starts here (hint: a row is {\"column\": value, ...})", err);
    const char *end = json_find_end(r->at, r->end);
    if (!end)
        return broken(r, "the object that starts here does not end", err);
    return give(r, row, r->at, end);
}

/* state: NULL before the first element. */
static int next_element(struct rows *r, struct row *row, struct err *err)
{
    rows_advance(r, skip_space(r->at, r->end));
    if (r->at == r->end)
        return broken(r, "the array does not end", err);
    if (*r->at == ']') {
        rows_advance(r, skip_space(r->at + 1, r->end));
        if (r->at < r->end)
            return broken(r, "unexpected characters after the array", err);
        r->next = next_object; /* which finds the end */
        return 0;
    }
    if (r->state) {
        if (*r->at != ',')
            return broken(r, "no ',' between the rows of the array", err);
        rows_advance(r, skip_space(r->at + 1, r->end));
    }
    r->state = r;
    int rc = next_object(r, row, err);
    return rc == 0 ? broken(r, "the array does not end", err) : rc;
}

int rows_open_lines(struct rows *rows, struct err *err)
{
    (void)err;
    rows->next = next_line;
    return 0;
}

int rows_open_json(struct rows *rows, struct err *err)
{
    const char *first = skip_space(rows->at, rows->end);

    if (first < rows->end && *first == '[') {
        rows_advance(rows, first + 1);
        rows->next = next_element;
        return 0;
    }
    /* Files called .json are often JSONL, which can be read on behind a bad row: an object that is
     * whole at its line's end says so. */
    const char *newline = memchr(first, '\n', (size_t)(rows->end - first));
    if (newline && *first == '{' && json_find_end(first, newline))
        return rows_open_lines(rows, err);
    rows->next = next_object;
    return 0;
}
