/*
 * rows_parquet.c - rows of a parquet file; numbers are those of rows, from 1
 */
#include "data/parquet/parquet.h"
#include "data/rows/row_reader_impl.h"

static int next_row(struct rows *r, struct row *row, struct err *err)
{
    str_clear(&r->text);
    int rc = parquet_next_row(r->state, &r->text, err);

    if (rc <= 0)
        return rc;
    if (r->text.length > ROW_BYTES_MAX)
        return rows_bad(r, row, r->line++, "the row has %zu bytes, more than %zu", r->text.length,
                        ROW_BYTES_MAX);
    *row = (struct row){ ROW_JSON, str_text(&r->text), r->text.length, r->line++ };
    return 1;
}

static int next_text(struct rows *r, struct row *row, struct err *err)
{
    const char *text;
    size_t n_bytes;
    int rc = parquet_next_text(r->state, &text, &n_bytes, err);

    if (rc <= 0)
        return rc;
    *row = (struct row){ ROW_TEXT, text ? text : "", n_bytes, r->line++ };
    return 1;
}

static int64_t skip(struct rows *r, int64_t place)
{
    int64_t n = parquet_skip_groups(r->state, place);

    r->line = n + 1;
    return n;
}

static void close_parquet(struct rows *r)
{
    parquet_close(r->state);
}

int rows_open_parquet(struct rows *rows, struct err *err)
{
    struct parquet *parquet;

    if (parquet_open(&parquet, rows->map.data, rows->map.n_bytes, rows->path, err) < 0)
        return -1;
    rows->state = parquet;
    rows->n_rows = parquet_n_rows(parquet);
    rows->skip = skip;
    rows->close = close_parquet;
    rows->next = rows->column ? next_text : next_row;
    return rows->column ? parquet_select_text(parquet, rows->column, err) : 0;
}
