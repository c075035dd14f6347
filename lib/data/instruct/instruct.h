/*
 * instruct.h - rows of instruction data to tokenized samples with a loss mask
 *
 * Rows of files (rows.h: JSON, JSONL, CSV, parquet, text) in one of the formats below are converted
 * to conversations, rendered by the chat template, and tokenized. Only answers have loss, each with
 * the end token of its turn, unless `mask` says otherwise. The output depends on the inputs and the
 * options, never on the number of threads.
 *
 * The result is a file of samples (samples.h) and PREFIX.json, which records its inputs and
 * options: instruct_prepare reuses an existing result. One process of a job prepares; all ranks
 * then open it (loader_options.samples).
 */
#ifndef DATA_INSTRUCT_INSTRUCT_H
#define DATA_INSTRUCT_INSTRUCT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "data/instruct/instruct_choices.h"
#include "tokenizer/tokenizer.h"

/* The column name of a field in the files: "instruction", "output", "messages", "role", .... */
struct instruct_column {
    const char *field, *column;
};

struct instruct_options {
    const char *const *inputs; /* files, folders, globs */
    int n_inputs;
    enum instruct_format format;
    const struct instruct_column *columns;
    int n_columns;
    const char *tokenizer; /* folder or file */
    const char *chat;      /* a template's name or file; NULL: the tokenizer's folder has one */
    const char *system;    /* system message of rows that have none; NULL: none */
    enum instruct_mask mask;
    enum instruct_too_long too_long;
    enum instruct_bad_rows bad_rows;
    int max_tokens;   /* of a sample: data.seq_len */
    int64_t max_rows; /* maximum number of rows to read; 0: all */
    int n_threads;    /* 0: one per core */
    void (*progress)(void *context, int64_t n_rows, int64_t n_tokens); /* now and then; or NULL */
    void (*warn)(void *context, const char *text); /* a bad row that was skipped; or NULL */
    void *context;
};

struct instruct_report {
    int64_t n_files, n_rows;     /* read */
    int64_t n_ignored;           /* files in folders with an unknown extension */
    int64_t n_samples;           /* made */
    int64_t n_tokens, n_learned; /* of them */
    int64_t n_cut, n_dropped;    /* too long */
    int64_t n_split;             /* additional samples from splitting long texts */
    int64_t n_bad;               /* skipped: they do not fit the format */
    int64_t n_blank;             /* skipped: no token with loss */
    int64_t n_rewritten;         /* answers without loss: rendered differently when turns follow */
    bool is_old;                 /* an existing result was reused */
};

/*
 * Create PREFIX.bin, .idx, .json from the inputs, or reuse them if they are up to date (same
 * options, tokenizer and template, same sizes and times of the inputs). Returns 0, or -1: ERR_DATA
 * names file and line of a bad row, ERR_CONFIG an option that cannot be satisfied, ERR_FAILED if
 * the output cannot be written.
 */
int instruct_prepare(const struct instruct_options *options, const char *prefix,
                     struct instruct_report *report, struct err *err);

/* Append the report as text lines to *out; losses (dropped, truncated, skipped) are always
 * included. */
void instruct_describe(const struct instruct_report *report, struct str *out);

#endif
