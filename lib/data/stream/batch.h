/*
 * batch.h - documents, some at a time, as jobs of an ordered pool that tokenizes them
 *
 * The caller fills a batch with documents; what comes out, the first error too, does not depend on
 * the number of threads.
 */
#ifndef DATA_STREAM_BATCH_H
#define DATA_STREAM_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "data/stream/ordered_pool.h"
#include "tokenizer/tokenizer.h"

#define BATCH_BYTES ((size_t)1 << 20) /* a batch with more is full */
#define BATCH_DOCUMENTS 4096

struct batch_document {
    const char *path; /* for errors; borrowed */
    int64_t line;     /* or of parquet its row; 0: a whole file */
    bool is_json;     /* an object with the text under the column; else the text itself */
    size_t start, n_bytes;
};

struct batch {
    struct str text; /* of all documents; JSON as it is in the file */
    struct batch_document documents[BATCH_DOCUMENTS];
    int n_documents;
    int64_t n_file_bytes; /* of all inputs, up to the end of the last document: the filler's */
    /* What tokenizing fills: */
    struct token_list ids;
    int64_t ends[BATCH_DOCUMENTS]; /* in ids, of those that are not empty */
    int n_done, n_empty;
    int64_t n_text_bytes;
    bool failed;
    int failed_document; /* err does not name it yet */
    struct err err;
};

struct batch_options {
    const struct tokenizer *tokenizer; /* borrowed */
    const char *column;                /* of JSON objects; borrowed */
    int end_of_text;                   /* behind each document; -1: nothing */
};

/* A pool whose jobs are batches. n_threads 0: one a core that this process may use; 1: the caller's
 * own. Returns 0, or -1 and ERR_DEVICE. */
int batch_pool_create(struct ordered_pool **pool, const struct batch_options *options,
                      int n_threads, struct err *err);

/* No documents, memory kept: what its pool returned to be filled may be one that was used. */
void batch_clear(struct batch *batch);

#endif
