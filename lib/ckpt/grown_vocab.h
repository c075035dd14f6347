/*
 * grown_vocab.h - weights that are read as if the vocabulary had grown already
 *
 * The new rows of embedding and head are the mean of the rows that are there, in the order of their
 * columns, summed in doubles from the first row to the last.
 */
#ifndef CKPT_GROWN_VOCAB_H
#define CKPT_GROWN_VOCAB_H

#include "base/arena.h"
#include "ckpt/weights.h"

struct vocab_source {
    const struct weights *weights;
    int64_t rows_there, rows; /* of embedding and head; the same unless they grow */
    float *means[2];          /* [hidden_size], where they grow; NULL for a head that is tied */
};

/* Grow from rows_there to rows: reads both tables. ERR_DATA. */
int grown_vocab_grow(struct vocab_source *source, const struct model_spec *spec, int64_t rows,
                     struct arena *arena, struct err *err);

/* Whether it is one of both, and grows. */
int grown_vocab_grows(const struct vocab_source *source, const char *name);

/* The mean of that one's rows, from column col on. */
const float *grown_vocab_mean(const struct vocab_source *source, const char *name, int64_t col);

/* As weights_read. */
int grown_vocab_read(const struct vocab_source *source, const struct store_slice *slice,
                     struct err *err);

#endif
