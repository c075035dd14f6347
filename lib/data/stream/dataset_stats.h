/*
 * dataset_stats.h - what is in a token file, to be seen before training on it
 */
#ifndef DATA_STREAM_DATASET_STATS_H
#define DATA_STREAM_DATASET_STATS_H

#include <stdint.h>

#include "data/stream/indexed.h"

#define DATASET_STATS_BINS 64

struct dataset_stats {
    int64_t shortest, longest;               /* documents, in tokens; 0 if there is none */
    int64_t n_by_length[DATASET_STATS_BINS]; /* [0]: empty; [b]: 2^(b-1) <= length < 2^b */
    int32_t greatest_token;                  /* -1 if there is none */
    int64_t n_ended;                         /* documents whose last token is end_of_text */
};

/*
 * Read all of it once. end_of_text -1: none. Returns 0, or -1 and ERR_DATA at the first token
 * outside 0..vocab_size-1.
 */
int dataset_stats_take(struct dataset_stats *census, const struct indexed *indexed, int vocab_size,
                       int end_of_text, struct err *err);

#endif
