/*
 * data_preview.h - lmtrain data preview and rows: data.c parses, data_preview.c shows
 */
#ifndef DATA_PREVIEW_H
#define DATA_PREVIEW_H

#include <stdbool.h>

#include "base/options.h"

struct preview_request {
    const char *tokenizer, *chat, *format, *mask, *too_long, *system, *column;
    struct option_list columns; /* FIELD=COLUMN */
    struct option_list sets;    /* of a job */
    bool json;
    int packing;
    bool colour;
    int seq_len, n_shown, n_threads;
    int64_t max_rows;
};

#define PREVIEW_DEFAULTS \
    { \
        .n_shown = 3 \
    }
#define PREVIEW_OPTIONS 14

/* Tables of options for the two subcommands, which set fields of q. */
struct options preview_options(struct preview_request *q, struct option *table);
struct options rows_options(struct preview_request *q, struct option *table);

/* Add what they print to out. 0, or -1. */
int preview(const struct preview_request *q, const struct option_arguments *inputs, struct str *out,
            struct err *err);
int show_rows(const struct preview_request *q, const struct option_arguments *inputs,
              struct str *out, struct err *err);

#endif
