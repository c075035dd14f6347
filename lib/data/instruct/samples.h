/*
 * samples.h - tokenized samples, each token with whether it is learned
 *
 * The file that instruct.h makes and the loader reads: PREFIX.bin/.idx as in indexed.h, a document
 * a sample, whose tokens are id * 2 + learned. A learned token is a target where it stands: the row
 * before it learns it. All samples are in memory's reach at once (mapped), in the file's order.
 */
#ifndef DATA_INSTRUCT_SAMPLES_H
#define DATA_INSTRUCT_SAMPLES_H

#include <stdint.h>

#include "base/err.h"
#include "data/stream/indexed.h"
#include "data/stream/indexed_writer.h"

struct samples {
    struct indexed tokens;
    int64_t n;
    int vocab_size;
};

/* Returns 0, or -1 and ERR_DATA. Token values are checked when they are read. */
int samples_open(struct samples *samples, const char *prefix, int vocab_size, struct err *err);
void samples_close(struct samples *samples);

/* Tokens of sample i. */
int64_t samples_length(const struct samples *samples, int64_t i);

/* Ids and learned (0 or 1) of sample i, into arrays of its length. 0, or -1 and ERR_DATA. */
int samples_read(const struct samples *samples, int64_t i, int32_t *ids, uint8_t *learned,
                 struct err *err);

/* Writing: an indexed_writer with vocab_size * 2 values. */
int samples_writer_open(struct indexed_writer *writer, const char *prefix, int vocab_size,
                        struct err *err);
int samples_writer_add(struct indexed_writer *writer, const int32_t *ids, const uint8_t *learned,
                       int64_t n, struct err *err);

#endif
