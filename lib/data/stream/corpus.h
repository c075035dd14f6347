/*
 * corpus.h - files of text to one .bin/.idx, and the .json that says which tokenizer they are of
 *
 * A text file is one document; files of rows (rows.h: JSON, JSONL, CSV, parquet) have one a row,
 * under a column. Documents come in the order of the inputs, those of a folder in that of their
 * paths, each followed by the end-of-text token unless that is turned off; empty ones
 * are left out and counted. Bad input is named by file and line, and nothing then remains of the
 * output.
 */
#ifndef DATA_STREAM_CORPUS_H
#define DATA_STREAM_CORPUS_H

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
};

typedef void (*corpus_progress_fn)(void *context, const struct corpus_counts *counts);

struct corpus_options {
    const char *const *inputs; /* files, folders, globs; "-" is standard input */
    int n_inputs;
    enum rows_format format;     /* ROWS_AUTO: by name, and text if that says nothing */
    const char *column;          /* of rows */
    const char *prefix;          /* of the output */
    int end_of_text;             /* id to add after each document, or -1 */
    int n_threads;               /* 0: one a core; the output does not depend on it */
    corpus_progress_fn progress; /* called now and then, by this thread; NULL is allowed */
    void *context;
};

/* Returns 0, or -1: ERR_DATA for inputs, ERR_FAILED if the output can't be written. */
int corpus_tokenize(const struct tokenizer *tokenizer, const struct corpus_options *options,
                    struct corpus_counts *counts, struct err *err);

#endif
