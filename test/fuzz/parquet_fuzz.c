/*
 * parquet_fuzz.c - parquet files: rows to their end, then each column of texts
 *
 * Nothing is read outside the bytes, and rows are JSON as value.h reads it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/parquet/parquet.h"
#include "data/rows/json_value.h"

#define ROWS_MAX 2000 /* a run of nulls may be long in few bytes */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void read_rows(const void *bytes, size_t n_bytes)
{
    struct parquet *parquet;
    struct str row = { 0 };
    struct err err;

    if (parquet_open(&parquet, bytes, n_bytes, "fuzz", &err) < 0)
        return;
    for (int i = 0; i < ROWS_MAX && parquet_next_row(parquet, &row, &err) > 0; i++) {
        struct arena arena = { 0 };
        struct json_value *value;

        /* Columns of one name are the file's mistake, and said as such. */
        if (json_value_parse(&value, str_text(&row), row.length, &arena, &err) < 0)
            CHECK(strstr(err.text, "was there before") || strstr(err.text, "million"));
        arena_release(&arena);
        str_clear(&row);
    }
    parquet_close(parquet);
    str_release(&row);
}

static void read_texts(const void *bytes, size_t n_bytes, int column)
{
    struct parquet *parquet;
    struct err err;
    const char *text;
    size_t n;
    volatile char sum = 0;

    if (parquet_open(&parquet, bytes, n_bytes, "fuzz", &err) < 0)
        return;
    if (column < parquet_n_columns(parquet) &&
        parquet_select_text(parquet, parquet_column_name(parquet, column), &err) == 0)
        for (int i = 0; i < ROWS_MAX && parquet_next_text(parquet, &text, &n, &err) > 0; i++)
            for (size_t k = 0; k < n; k++)
                sum = (char)(sum + text[k]);
    parquet_close(parquet);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    /* A copy of just its size, so that a byte read behind the end is seen. */
    void *copy = malloc(n_bytes ? n_bytes : 1);

    if (!copy)
        return 0;
    memcpy(copy, data, n_bytes);
    read_rows(copy, n_bytes);
    read_texts(copy, n_bytes, 0);
    read_texts(copy, n_bytes, 1);
    free(copy);
    return 0;
}
