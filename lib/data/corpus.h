/*
 * corpus.h - files of text to one .bin/.idx
 *
 * A text file is one document; a JSONL file has one a line, under a column. Documents come in the
 * order of the inputs, each followed by the end-of-text token unless that is turned off; empty ones
 * are left out and counted. Bad input is named by file and line, and nothing then remains of the
 * output.
 */
#ifndef DATA_CORPUS_H
#define DATA_CORPUS_H

#include <stdint.h>

#include "base/err.h"
#include "tokenizer/tokenizer.h"

enum corpus_format {
    CORPUS_AUTO, /* JSONL if the name ends in .jsonl or .json, else text */
    CORPUS_TEXT,
    CORPUS_JSONL,
};

struct corpus_counts {
    int64_t n_documents, n_empty, n_tokens;
    int64_t n_bytes; /* of text, as UTF-8 */
    int n_inputs;    /* done so far */
};

typedef void (*corpus_progress_fn)(void *context, const struct corpus_counts *counts);

struct corpus_options {
    const char *const *inputs; /* paths; "-" is standard input */
    int n_inputs;
    enum corpus_format format;
    const char *column;          /* of JSONL */
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
