/*
 * parquet.h - rows out of a parquet file
 *
 * Our own reader of the format (github.com/apache/parquet-format): flat columns, lists, maps and
 * structs at any depth up to 16; data pages v1 and v2; encodings plain, dictionary, RLE, the three
 * delta ones and byte stream split; compression none, snappy, gzip, zstd; checksums where a page
 * has one. What isn't among these (LZO, brotli, LZ4, encryption) is refused by name. The file is
 * mapped and not trusted: every offset, size, count and level is checked before it is used.
 */
#ifndef DATA_PARQUET_PARQUET_H
#define DATA_PARQUET_PARQUET_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

struct parquet;

/* bytes are the whole file's, borrowed; name is for errors, borrowed. Returns 0, or -1 and
 * ERR_DATA. */
int parquet_open(struct parquet **parquet, const void *bytes, size_t n_bytes, const char *name,
                 struct err *err);
void parquet_close(struct parquet *parquet);

int64_t parquet_n_rows(const struct parquet *parquet);

/* Top-level columns: how many, and what they are called. */
int parquet_n_columns(const struct parquet *parquet);
const char *parquet_column_name(const struct parquet *parquet, int column);

/*
 * Read one column of texts from its first row on: it must be flat. Others are not looked at. -1 and
 * ERR_DATA, with the columns there are, if there is none of this name.
 */
int parquet_select_text(struct parquet *parquet, const char *column, struct err *err);

/* Before the first row: leave out the row groups that end at or before row `row` (from 0). Returns
 * the number of the row that comes next, at most row. */
int64_t parquet_skip_groups(struct parquet *parquet, int64_t row);

/* 1 with the next row's text (NULL where it is null; until the next call), 0 at the end, -1. */
int parquet_next_text(struct parquet *parquet, const char **text, size_t *n_bytes, struct err *err);

/*
 * Append the next row as a JSON object of all columns. Lists are lists, maps of texts and structs
 * are objects, dates and times are the numbers that are stored, texts and bytes are strings with
 * the bytes as they are; numbers that JSON has not are null. 1, 0 at the end, or -1 and ERR_DATA.
 * After parquet_select_text it may not be called.
 */
int parquet_next_row(struct parquet *parquet, struct str *json, struct err *err);

#endif
