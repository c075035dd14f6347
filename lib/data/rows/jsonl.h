/*
 * jsonl.h - one text out of one line of JSON
 *
 * A line of any size is safe: it is read once, front to back, without recursion, and nothing but
 * the text is kept. JSON is strict (base/json_reader.h), since leniency would lose text.
 */
#ifndef DATA_ROWS_JSONL_H
#define DATA_ROWS_JSONL_H

#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

/*
 * Append to out the string that the object in line (n_bytes, no newline needed) has under column.
 * Returns 0, or -1 and ERR_DATA with what is wrong at which byte; out may then have grown. The text
 * may hold any byte that the line's strings spell; bytes that are not UTF-8 are passed on as they
 * are.
 */
int jsonl_text(const char *line, size_t n_bytes, const char *column, struct str *out,
               struct err *err);

#endif
