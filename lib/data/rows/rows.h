/*
 * rows.h - files of rows, whatever they are written in, one row after the other
 *
 * JSON (an array of objects, or objects one behind the other), JSONL, CSV and TSV (with a header),
 * parquet, and text (a file is a row); each also as gzip, xz or zstd make them smaller (.jsonl.gz,
 * by their first bytes: decompress.h). Inputs are files, folders (all files in them and below whose
 * names say what they are, in the order of their paths) and globs. A row comes as the text of a
 * JSON object, or as a plain text; parsing it is left to the threads of the caller.
 *
 * Files are mapped and read forwards once. What is wrong with one row does not end the reading
 * where its end can still be found.
 */
#ifndef DATA_ROWS_ROWS_H
#define DATA_ROWS_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

#define ROW_BYTES_MAX ((size_t)64 << 20) /* of one row; text files may be longer */

enum rows_format { ROWS_AUTO, ROWS_JSON, ROWS_JSONL, ROWS_CSV, ROWS_PARQUET, ROWS_TEXT };

/* "auto", "json", ... in the enum's order, then NULL. */
extern const char *const rows_format_names[];

/* Rows begin to end - 1 of a file, from 0. */
struct file_rows {
    int64_t begin, end;
};

/* The files that inputs stand for. */
struct row_files {
    char **paths;             /* heap */
    struct file_rows *ranges; /* heap: of each file; NULL: all rows of all files */
    int n, capacity;
    int n_ignored; /* in folders: their names don't say what they are */
};

/* Returns 0, or -1 and ERR_DATA: an input is not there, or is a folder without any such file. */
int row_files_find(struct row_files *files, const char *const *inputs, int n_inputs,
                   struct err *err);
void row_files_release(struct row_files *files);

/* What a file of this name is by its ending; ROWS_AUTO if that says nothing. */
enum rows_format rows_format_of(const char *path);

enum row_kind {
    ROW_JSON, /* text is that of an object */
    ROW_TEXT, /* text is the text itself */
    ROW_BAD,  /* text is what is wrong with it */
};

struct row {
    enum row_kind kind;
    const char *text; /* n_bytes; until the next call */
    size_t n_bytes;
    int64_t number; /* its line, from 1; of parquet its row, from 1; of text files 0 */
};

struct rows;

/*
 * column: only this one's texts are wanted, so that CSV and parquet give ROW_TEXT (JSON gives
 * ROW_JSON all the same); or NULL. format ROWS_AUTO: by name, and text if that says nothing. path
 * is borrowed. Returns 0, or -1 and ERR_DATA.
 */
int rows_open(struct rows **rows, const char *path, enum rows_format format, const char *column,
              struct err *err);
/* rows_open of CSV without a header: its columns have these names, ended by NULL and borrowed. */
int rows_open_named(struct rows **rows, const char *path, const char *const *names,
                    struct err *err);
void rows_close(struct rows *rows);

/*
 * Where reading is (what rows_next gives begins there), and where it ends: bytes of the text, or of
 * parquet rows.
 */
int64_t rows_place(const struct rows *rows);
int64_t rows_size(const struct rows *rows);

/* Before the first row: leave out rows before `place` without reading them, as far as the format
 * can (parquet: whole row groups). Returns how many were left out. */
int64_t rows_skip(struct rows *rows, int64_t place);

/* The number of rows of a file: all but parquet is read for it. 0, or -1 and ERR_DATA. */
int rows_count(int64_t *n, const char *path, enum rows_format format, struct err *err);

/* 1 with the next row, 0 at the end, -1 and ERR_DATA with the line where reading can't go on. */
int rows_next(struct rows *rows, struct row *row, struct err *err);

#endif
