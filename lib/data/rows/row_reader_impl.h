/*
 * row_reader_impl.h - a reader of rows from the inside: one struct of hooks a format
 */
#ifndef DATA_ROWS_ROW_READER_IMPL_H
#define DATA_ROWS_ROW_READER_IMPL_H

#include "base/file.h"
#include "data/rows/rows.h"

struct rows {
    const char *path, *column; /* borrowed */
    const char *const *names;  /* of the columns of CSV without a header, ended by NULL; or NULL */
    struct file_map map;
    const char *at, *end; /* what is left of the text */
    int64_t line;         /* of `at`, from 1 */
    struct str text;      /* of the row at hand, where it is not in the file as it is */
    struct str bad;       /* what is wrong with it */
    int (*next)(struct rows *rows, struct row *row, struct err *err);
    int64_t n_rows; /* of a file whose rows are numbered, or -1: places are bytes */
    int64_t (*skip)(struct rows *rows, int64_t place); /* NULL: cannot */
    void (*close)(struct rows *rows);                  /* NULL: nothing to do */
    void *state;                                       /* the format's own */
};

/* Go on to `to`, counting lines. */
void rows_advance(struct rows *rows, const char *to);

/* The row is bad: kind, number and text are set. Returns 1. */
int rows_bad(struct rows *rows, struct row *row, int64_t number, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Make the rows read this format: each sets next and what it needs. 0, or -1 and ERR_DATA. */
int rows_open_json(struct rows *rows, struct err *err);  /* rows_json.c */
int rows_open_lines(struct rows *rows, struct err *err); /* rows_json.c */
int rows_open_csv(struct rows *rows, struct err *err);   /* rows_csv.c */
int rows_open_parquet(struct rows *rows, struct err *err);

#endif
