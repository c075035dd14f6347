/*
 * token_part.h - one of N token files that together are one
 *
 * PREFIX.part-I-of-N.bin, .idx and .json (I from 1 to N, padded with zeros to the width of N) are a
 * token file as any other; the .json also says what it is a part of. Parts that agree in all of
 * this are merged (token_merge.h).
 */
#ifndef DATA_STREAM_TOKEN_PART_H
#define DATA_STREAM_TOKEN_PART_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"
#include "data/rows/rows.h"
#include "data/stream/token_meta.h"

#define TOKEN_PARTS_MAX 100000

struct token_part {
    struct token_meta meta;        /* of this part */
    int part, n_parts;             /* 1..n_parts */
    char column[256], format[16];  /* options that it was made with */
    char inputs[24];               /* hash of all parts' files: paths, sizes, times, rows */
    int64_t n_files, n_file_bytes; /* of all parts */
    int64_t n_inputs;              /* files that this part read */
    int64_t n_empty, n_bytes;      /* documents left out, and bytes of text, of this part */
};

/* "PREFIX.part-03-of-12", in arena. */
const char *token_part_prefix(struct arena *arena, const char *prefix, int part, int n_parts);

/* Fill inputs, n_files and n_file_bytes. 0, or -1 and ERR_DATA: an input is no file (a pipe), which
 * cannot be divided. */
int token_part_take_inputs(struct token_part *part, const struct row_files *files, struct err *err);

/* ---- how inputs are divided ---- */

/*
 * All files stand one behind the other, each with one byte more than it has (so that empty ones
 * have a place), and a part has the n-th of n_parts equal ranges of these.
 */
struct token_share {
    int64_t begin, end;
    int64_t at; /* where the next file begins */
};

struct token_share token_share_of(const struct token_part *part);

/* Go on to the next file, of this size: whether the part has documents of it, those that begin at
 * bytes *begin to *end - 1. */
bool token_share_of_file(struct token_share *share, int64_t size, int64_t *begin, int64_t *end);

/* ---- on disk ---- */

/* Write PREFIX.json, whole or not at all; prefix is the part's own. ERR_FAILED. */
int token_part_write(const char *prefix, const struct token_part *part, struct err *err);

/* 1, 0 if prefix has none or is no part, -1 and ERR_DATA if it is damaged. */
int token_part_read(const char *prefix, struct token_part *part, struct err *err);

/* Whether prefix holds all that `wanted` (but for its counts) asks for; then it is *found. */
bool token_part_is_done(const char *prefix, const struct token_part *wanted,
                        struct token_part *found);

/* What of two parts differs that may not, as "column 'text', not 'body'", in arena; NULL:
 * nothing. */
const char *token_part_difference(const struct token_part *a, const struct token_part *b,
                                  struct arena *arena);

#endif
