/*
 * indexed_writer.h - write Megatron's .bin/.idx, byte for byte as megatron-core's builder does
 *
 * One sequence a document, u16 tokens if the vocabulary is smaller than 65500 and i32 otherwise.
 * Tokens go to PREFIX.bin.partial as they come; finishing renames it and then writes PREFIX.idx, so
 * that an interrupted run leaves no pair that could be taken for a whole one.
 */
#ifndef DATA_STREAM_INDEXED_WRITER_H
#define DATA_STREAM_INDEXED_WRITER_H

#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "data/stream/indexed.h"

struct indexed_writer {
    char *prefix, *partial; /* heap */
    FILE *file;
    enum indexed_type type;
    int vocab_size;
    int32_t *lengths; /* heap, one a document */
    int64_t n_documents, capacity;
    int64_t n_tokens;
};

/* Makes the prefix's folder if it is missing. Returns 0, or -1 and ERR_FAILED. */
int indexed_writer_open(struct indexed_writer *writer, const char *prefix, int vocab_size,
                        struct err *err);

/*
 * Add a document of n tokens; ids outside the vocabulary are a bug. Returns 0, or -1: ERR_DATA if
 * it has more than 2^31 - 1 tokens, ERR_FAILED if it cannot be written.
 */
int indexed_writer_add(struct indexed_writer *writer, const int32_t *ids, int64_t n,
                       struct err *err);

/* Put both files in place, replacing older ones, and release. On failure too nothing is left open.
 */
int indexed_writer_finish(struct indexed_writer *writer, struct err *err);

/* Give up: remove what was written and release. Safe on all zero and after finish. */
void indexed_writer_abandon(struct indexed_writer *writer);

#endif
