/*
 * instruct.h - rows of instruction data to tokenized samples with what is learned of them
 *
 * Files of rows (rows.h: JSON, JSONL, CSV, parquet, text) in one of the formats that people have
 * them in become conversations, these the chat template's text, that tokens. Learned are the
 * answers alone, each with the end token of its turn, unless `mask` says otherwise. What comes out
 * depends on the inputs and the options, never on the number of threads.
 *
 * The result is a file of samples (samples.h) beside PREFIX.json, which says what it was made from:
 * instruct_prepare makes nothing again that is there already. One process of a job prepares; all
 * ranks then open it (loader_options.samples).
 */
#ifndef DATA_INSTRUCT_H
#define DATA_INSTRUCT_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "tokenizer/tokenizer.h"

enum instruct_format {
    INSTRUCT_AUTO,     /* by the columns of the first row */
    INSTRUCT_ALPACA,   /* instruction, input, output, system, history */
    INSTRUCT_SHAREGPT, /* conversations: from, value; system */
    INSTRUCT_MESSAGES, /* messages: role, content (OpenAI) */
    INSTRUCT_BELLE,    /* instruction with "Human:" and "Assistant:" turns in one text, output */
    INSTRUCT_MOSS,     /* chat: turn_1 ... with Human, MOSS; meta_instruction */
    INSTRUCT_LEETCODE, /* code_with_problem, explanation_only, ... */
    INSTRUCT_TEXT,     /* text: all of it is learned */
};

enum instruct_mask {
    INSTRUCT_MASK_PROMPT,  /* learn every answer */
    INSTRUCT_MASK_HISTORY, /* learn the last answer alone */
    INSTRUCT_MASK_NONE,    /* learn everything, prompts too */
};

enum instruct_too_long { INSTRUCT_CUT, INSTRUCT_DROP, INSTRUCT_SPLIT, INSTRUCT_REFUSE };
enum instruct_bad_rows { INSTRUCT_BAD_REFUSE, INSTRUCT_BAD_SKIP };

/* What our field is called in the files: "instruction", "output", "messages", "role", .... */
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
    const char *system;    /* where a row has no system message; NULL: none */
    enum instruct_mask mask;
    enum instruct_too_long too_long;
    enum instruct_bad_rows bad_rows;
    int max_tokens;   /* of a sample: data.seq_len */
    int64_t max_rows; /* read no more than so many; 0: all */
    int n_threads;    /* 0: one a core */
    void (*progress)(void *context, int64_t n_rows, int64_t n_tokens); /* now and then; or NULL */
    void (*warn)(void *context, const char *text); /* a bad row that was skipped; or NULL */
    void *context;
};

struct instruct_report {
    int64_t n_files, n_rows;     /* read */
    int64_t n_ignored;           /* files in folders whose names don't say what they are */
    int64_t n_samples;           /* made */
    int64_t n_tokens, n_learned; /* of them */
    int64_t n_cut, n_dropped;    /* too long */
    int64_t n_split;             /* pieces that came of texts too long, beyond their first */
    int64_t n_bad;               /* skipped: not what the format wants */
    int64_t n_blank;             /* skipped: nothing in them to learn */
    int64_t
        n_rewritten; /* answers not learned: the template writes them otherwise once more follows */
    int is_old;      /* the file was there already */
};

/*
 * Make PREFIX.bin, .idx, .json of the inputs, or see that they are there and up to date (same
 * options, tokenizer and template, same sizes and times of the inputs). Returns 0, or -1: ERR_DATA
 * names file and line of a bad row, ERR_CONFIG what the options want in vain, ERR_FAILED if it
 * can't be written.
 */
int instruct_prepare(const struct instruct_options *options, const char *prefix,
                     struct instruct_report *report, struct err *err);

/* Names of the enums' values in their order, NULL behind the last. */
extern const char *const instruct_format_names[];
extern const char *const instruct_mask_names[];
extern const char *const instruct_too_long_names[];
extern const char *const instruct_bad_rows_names[];

/* The report for people: several lines, each with its newline; what was lost is never left out. */
void instruct_describe(const struct instruct_report *report, struct str *out);

#endif
