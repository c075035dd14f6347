/*
 * indexed.h - Megatron's .bin/.idx token files, mapped for reading
 *
 * PREFIX.bin is all tokens back to back; PREFIX.idx says their type and how they fall into
 * sequences and documents (reference: megatron-core, core/datasets/indexed_dataset.py). Here a file
 * is one long stream of tokens, with the documents' edges beside it: a position counts tokens from
 * the start of .bin.
 *
 * indexed_open checks every length, offset and index before anything uses it, so that no later call
 * can read outside the mapping. Sequences that do not lie back to back, float tokens and files of
 * another length than the index says are refused. Token values are checked when they are read.
 *
 * Who reads tokens by position alone (training on token files) has no use for the index: 10^12
 * tokens in documents of 1000 have one of 20 GB. indexed_open_tokens looks at its ends and at
 * places in between only, if it is large.
 */
#ifndef DATA_STREAM_INDEXED_H
#define DATA_STREAM_INDEXED_H

#define INDEXED_VERSION 1 /* of .idx files: Megatron's MMIDIDX */

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/file.h"

/* The codes that stand in the .idx; the two float types exist there but hold no tokens. */
enum indexed_type {
    INDEXED_U8 = 1,
    INDEXED_I8 = 2,
    INDEXED_I16 = 3,
    INDEXED_I32 = 4,
    INDEXED_I64 = 5,
    INDEXED_F64 = 6,
    INDEXED_F32 = 7,
    INDEXED_U16 = 8,
};

struct indexed {
    char *prefix; /* heap: named in errors */
    struct file_map bin, idx;
    enum indexed_type type;
    size_t token_bytes;
    int64_t n_tokens, n_sequences, n_documents;
    const unsigned char *offsets; /* in idx, unaligned: i64 a sequence, in bytes of .bin */
    const unsigned char
        *documents; /* in idx, unaligned: i64[n_documents + 1], first sequences; NULL
                                     of a large file of indexed_open_tokens */
};

/*
 * What may be meant by a prefix without PREFIX.idx, as a hint: without .bin, a folder's, rows or
 * text that have no tokens yet.
 */
void indexed_hint(const char *prefix, char *buffer, size_t size);

/* Map prefix.idx and prefix.bin and check them. Returns 0, or -1 and ERR_DATA. */
int indexed_open(struct indexed *indexed, const char *prefix, struct err *err);

/*
 * The same for who needs no documents: of an index of more than 2^21 sequences only the sizes, both
 * ends and 16 places between are checked, in constant time and memory, and indexed_document_start
 * may not be called. Returns 0, or -1 and ERR_DATA.
 */
int indexed_open_tokens(struct indexed *indexed, const char *prefix, struct err *err);

/* Safe on all zero. */
void indexed_close(struct indexed *indexed);

/*
 * Copy n tokens from position `first` on into out. Returns 0, or -1 and ERR_DATA that names file
 * and position if one is outside 0..vocab_size-1. first and n must be within the file.
 */
int indexed_read(const struct indexed *indexed, int64_t first, int64_t n, int vocab_size,
                 int32_t *out, struct err *err);

/* Position where a document starts; document n_documents "starts" at n_tokens. */
int64_t indexed_document_start(const struct indexed *indexed, int64_t document);

/* A hash of the sizes, the type and up to a MiB each of the tokens' start and end. */
uint64_t indexed_fingerprint(const struct indexed *indexed);

/* "u16" ...; NULL if the code is none of the format's. */
const char *indexed_type_name(enum indexed_type type);

#endif
