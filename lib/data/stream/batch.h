/*
 * batch.h - documents tokenized by several threads, and given back in their order
 *
 * A ring of batches: the caller fills one with documents and submits it, threads tokenize, and the
 * caller takes them back oldest first. What comes out does not depend on the number of threads, the
 * first error neither.
 */
#ifndef DATA_STREAM_BATCH_H
#define DATA_STREAM_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "tokenizer/tokenizer.h"

#define BATCH_BYTES ((size_t)1 << 20) /* a batch with more is full */
#define BATCH_DOCUMENTS 4096

struct batch_document {
    const char *path; /* for errors; borrowed */
    int64_t line;     /* or of parquet its row; 0: a whole file */
    int is_json;      /* an object with the text under the column; else the text itself */
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
    int failed;
    struct err err;
};

struct batches;

/* n_threads 0: one a core that this process may use. 1: tokenizes in the caller's own thread.
 * column: of JSONL. Both are borrowed. ERR_DEVICE. */
int batches_create(struct batches **batches, const struct tokenizer *tokenizer, const char *column,
                   int end_of_text, int n_threads, struct err *err);
void batches_destroy(struct batches *batches);

/* An empty batch to fill, or NULL while all are under way: then take one back. */
struct batch *batches_next(struct batches *batches);
/* The batch that batches_next gave is full. */
void batches_submit(struct batches *batches);
/* The oldest batch that was submitted, done; NULL if there is none. It is free again with the next
 * call. */
struct batch *batches_take(struct batches *batches);

#endif
