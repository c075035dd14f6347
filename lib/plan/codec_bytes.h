/*
 * codec_bytes.h - what a codec of gradients saves of a rank's traffic, and what memory it takes
 *
 * Of the buckets that have errors (program/compress.c): what is summed besides, over other axes or
 * of experts that one rank alone has, is not counted. Pure.
 */
#ifndef PLAN_CODEC_BYTES_H
#define PLAN_CODEC_BYTES_H

#include "program/program.h"

struct codec_bytes {
    int64_t
        sent; /* a step's, by a rank to the others of the sum, under zero 0 with what comes back */
    int64_t whole;  /* without a codec */
    int64_t errors; /* of memory: what is lost; factors, too */
    int64_t sums;   /* of memory: whole sums, which zero 2 and 3 do not shard beside a codec */
};

/* All 0 where there is no codec. */
struct codec_bytes codec_bytes_of(const struct program *program);

#endif
