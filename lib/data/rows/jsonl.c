/*
 * jsonl.c - one text out of one line of JSON
 */
#include "data/rows/jsonl.h"

#include <string.h>

#include "base/json_reader.h"

#define COLUMNS_SHOWN 8 /* of a row, in messages */

static struct json_reader open_line(const char *line, size_t n_bytes)
{
    struct json_reader reader;

    json_reader_init(&reader, line, n_bytes, NULL);
    reader.any_bytes = true;
    json_open(&reader, '{');
    return reader;
}

/* Of a line that is an object without the column: the columns that it has instead. */
static int refuse_columns(const char *line, size_t n_bytes, const char *column, struct err *err)
{
    struct json_reader reader = open_line(line, n_bytes);
    struct str key = { 0 }, names = { 0 };

    for (int n = 0; n < COLUMNS_SHOWN && json_next(&reader, '}'); n++) {
        str_clear(&key);
        json_add_decoded(&key, json_key_span(&reader));
        json_skip(&reader);
        str_make_printable(key.data);
        str_printf(&names, n ? ", %.40s" : "%.40s", key.data);
    }
    err_set(err, ERR_DATA,
            names.data ? "there is no field '%s' (hint: it has %s)" : "there is no field '%s'",
            column, str_text(&names));
    str_release(&key);
    str_release(&names);
    return -1;
}

int jsonl_text(const char *line, size_t n_bytes, const char *column, struct str *out,
               struct err *err)
{
    struct json_reader reader = open_line(line, n_bytes);
    size_t n_column = strlen(column);
    bool found = false;

    while (json_next(&reader, '}')) {
        struct json_span key = json_key_span(&reader);

        if (reader.problem)
            break;
        if (!json_span_is(key, column, n_column)) {
            json_skip(&reader);
            continue;
        }
        if (found)
            return err_set(err, ERR_DATA, "field '%s' occurs twice", column);
        if (json_peek(&reader) != JSON_STRING)
            return err_set(err, ERR_DATA, "field '%s' is not a string", column);
        struct json_span text = json_string_span(&reader);
        if (!reader.problem)
            json_add_decoded(out, text);
        found = true;
    }
    if (json_end(&reader) < 0)
        return err_set(err, ERR_DATA, "%s at byte %zu", reader.problem, reader.problem_at);
    return found ? 0 : refuse_columns(line, n_bytes, column, err);
}
