/*
 * data_tokenize.h - lmtrain data tokenize and merge: data.c parses, data_tokenize.c and
 * data_merge.c do
 */
#ifndef DATA_TOKENIZE_H
#define DATA_TOKENIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/options.h"

struct tokenize_request {
    const char *tokenizer, *prefix, *column, *format, *part, *hf_dataset;
    bool no_eod, json;
    int n_threads;
};

#define TOKENIZE_DEFAULTS \
    { \
        .column = "text", .format = "auto" \
    }

struct token_merge_request {
    int n_parts; /* 0: as many as there are */
    bool json;
};

/* Tables of options for the two subcommands, which set fields of q. */
struct options tokenize_options(struct tokenize_request *q, struct option *table);
struct options merge_options(struct token_merge_request *q, struct option *table);

/* Add what they print to out. 0, or -1. */
int tokenize(const struct tokenize_request *q, const struct option_arguments *inputs,
             struct str *out, struct err *err);
int merge_tokens(const struct token_merge_request *q, const struct option_arguments *inputs,
                 struct str *out, struct err *err);

/*
 * The prefix that --out means: with .bin or .idx it is that file's; in a folder, which ends in a
 * slash or is there, it is called `name`. In arena.
 */
const char *data_find_prefix(const char *given, const char *name, struct arena *arena);

/* Text as a JSON string: nothing in it can harm a terminal or a reader. */
void data_add_quoted(struct str *out, const char *text, size_t n_bytes);

/* Part I of N that --part says: "I/N", or "auto" for this task of a Slurm array. 0, or -1 and
 * ERR_CONFIG. */
int data_parse_part(const char *text, int *part, int *n_parts, struct err *err);

#endif
