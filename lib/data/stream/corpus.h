/*
 * corpus.h - files of text to one .bin/.idx, and the .json that says which tokenizer they are of
 *
 * A text file is one document; files of rows (rows.h: JSON, JSONL, CSV, parquet) have one a row,
 * under a column. Documents come in the order of the inputs, those of a folder in that of their
 * paths, each followed by the end-of-text token unless that is turned off; empty ones
 * are left out and counted. Bad input is named by file and line, and nothing then remains of the
 * output.
 *
 * A part of several (for an array of jobs) has its share of the bytes of all files, and of each
 * file the documents that begin in it: the parts one behind the other (token_merge.h) are the
 * whole, byte for byte. Files whose places can be found without reading them (JSONL, by lines;
 * parquet, by row groups) are divided without reading the rest; of others each part reads all but
 * tokenizes its own. A text file is one document, and whole. A part that is there already, of the
 * same inputs (paths, sizes and times) and options, is not made again.
 */
#ifndef DATA_STREAM_CORPUS_H
#define DATA_STREAM_CORPUS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/rows/rows.h"
#include "tokenizer/tokenizer.h"

struct corpus_counts {
    int64_t n_documents, n_empty, n_tokens;
    int64_t n_bytes; /* of text, as UTF-8 */
    /* Of the files: what the tokens so far are of, and all; 0 where standard input is among
     * them. */
    int64_t n_file_bytes, n_all_file_bytes;
    int n_inputs;  /* files done so far */
    int n_found;   /* files there are */
    int n_ignored; /* in folders: their names don't say what they are */
    bool is_old;   /* the part was complete already: nothing was read */
};

typedef void (*corpus_progress_fn)(void *context, const struct corpus_counts *counts);

struct corpus_options {
    const char *const *inputs; /* files, folders, globs; "-" is standard input */
    int n_inputs;
    const struct row_files *files; /* what to read in place of inputs, or NULL; borrowed */
    int part, n_parts;             /* 1..n_parts, for token_part_prefix; n_parts 0: all of it */
    enum rows_format format;       /* ROWS_AUTO: by name, and text if that says nothing */
    const char *column;            /* of rows */
    const char *prefix;            /* of the output */
    int end_of_text;               /* id to add after each document, or -1 */
    int n_threads;                 /* 0: one a core; the output does not depend on it */
    corpus_progress_fn progress;   /* called now and then, by this thread; NULL is allowed */
    void *context;
};

/* Returns 0, or -1: ERR_DATA for inputs, ERR_FAILED if the output can't be written. */
int corpus_tokenize(const struct tokenizer *tokenizer, const struct corpus_options *options,
                    struct corpus_counts *counts, struct err *err);

#endif
