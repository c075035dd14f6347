/*
 * jsonl_impl.h - the small steps of reading JSON, for jsonl.c and value.c
 */
#ifndef DATA_ROWS_JSONL_IMPL_H
#define DATA_ROWS_JSONL_IMPL_H

#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

struct jsonl_reader {
    const char *text;
    size_t n, at;
    struct err *err;
};

/* ERR_DATA with what is wrong at which byte; -1. */
int jsonl_wrong(struct jsonl_reader *reader, const char *what);

/* Skip space, then take this character if it is next. */
int jsonl_take(struct jsonl_reader *reader, char c);

/* Whether only space is left. */
int jsonl_at_end(struct jsonl_reader *reader);

/* A string whose opening quote was taken, appended to out unless that is NULL. 0 or -1. */
int jsonl_read_string(struct jsonl_reader *reader, struct str *out);

/* Pass over true, false, null or what has a number's letters. 0 or -1. */
int jsonl_skip_plain(struct jsonl_reader *reader);

#endif
