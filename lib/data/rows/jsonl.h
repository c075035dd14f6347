/*
 * jsonl.h - one text out of one line of JSON
 *
 * A pull reader for a single object: it looks at every byte once, holds nothing but the text asked
 * for, and has no recursion, so that a line of any size and depth is safe. Strict where leniency
 * would lose text: lone surrogates, raw control characters and what follows the object are errors.
 */
#ifndef DATA_ROWS_JSONL_H
#define DATA_ROWS_JSONL_H

#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

#define JSONL_DEPTH_MAX 256

/*
 * Append to out the string that the object in line (n_bytes, no newline needed) has under column.
 * Returns 0, or -1 and ERR_DATA with what is wrong at which byte; out may then have grown. The text
 * may hold any byte that the line's strings spell; bytes that are no UTF-8 are passed on as they
 * are.
 */
int jsonl_text(const char *line, size_t n_bytes, const char *column, struct str *out,
               struct err *err);

#endif
