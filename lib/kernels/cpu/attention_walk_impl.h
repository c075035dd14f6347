/*
 * attention_walk_impl.h - blocks of queries that walk blocks of keys (Dao et al. 2022, algorithm 1;
 * Milakov & Gimelshein 2018 for the running maximum)
 *
 * Up to WALK_QUERIES blocks of queries that read one kv head go together: keys and values are
 * brought to fp32 (keys transposed) once for all of them, and scores exist for one pair of blocks
 * at a time. A row's sums go by blocks of keys alone: its bits do not depend on its neighbours.
 */
#ifndef KERNELS_CPU_ATTENTION_WALK_IMPL_H
#define KERNELS_CPU_ATTENTION_WALK_IMPL_H

#include "kernels/cpu/attention_impl.h"

#define WALK_QUERIES 4

/* Up to BLOCK queries, their running maxima and sums, and outputs not yet divided by these. */
struct query_block {
    float *q, *out;   /* [BLOCK x width] */
    float *max, *sum; /* [BLOCK] */
    float slope[BLOCK];
    bool has_slopes;
    int64_t n_rows;
    struct sight *sight;
};

struct key_walk {
    const struct tile_code *code;
    int64_t width;
    float *keys, *values; /* [width x BLOCK], [BLOCK x width] */
    float *tile;          /* keys before they are transposed */
    float *scores;        /* [BLOCK x BLOCK] */
    struct query_block blocks[WALK_QUERIES];
};

static inline size_t walk_floats(int64_t width)
{
    return (size_t)((3 + 2 * WALK_QUERIES) * BLOCK * width + BLOCK * BLOCK +
                    2 * WALK_QUERIES * BLOCK);
}

/* scratch: walk_floats(width) of them, this thread's. */
static inline void walk_init(struct key_walk *w, const struct tile_code *code, int64_t width,
                             float *scratch)
{
    int64_t tile = BLOCK * width;

    w->code = code;
    w->width = width;
    w->keys = scratch;
    w->values = scratch + tile;
    w->tile = scratch + 2 * tile;
    w->scores = scratch + 3 * tile;
    scratch += 3 * tile + BLOCK * BLOCK;
    for (int i = 0; i < WALK_QUERIES; i++) {
        struct query_block *b = &w->blocks[i];

        b->q = scratch;
        b->out = scratch + tile;
        b->max = scratch + 2 * tile;
        b->sum = b->max + BLOCK;
        scratch = b->sum + BLOCK;
    }
}

/* Queries that have seen nothing; q, slope and sight are the caller's to fill. */
CPU_INLINE void query_block_begin(struct query_block *b, const struct key_walk *w, int64_t n_rows,
                                  bool has_slopes)
{
    memset(b->out, 0, (size_t)(BLOCK * w->width) * sizeof *b->out);
    for (int r = 0; r < BLOCK; r++) {
        b->max[r] = -INFINITY;
        b->sum[r] = 0;
    }
    b->n_rows = n_rows;
    b->has_slopes = has_slopes;
}

/* Whether row r's own key is the block's r-th, if it has one. */
CPU_INLINE bool is_diagonal(const struct query_block *b, int64_t key)
{
    for (int64_t r = 0; r < b->n_rows; r++)
        if (b->sight->own[r] >= 0 && b->sight->own[r] != key + r)
            return false;
    return true;
}

/* The walk's keys and values are those of positions key .. . mask: NULL, or what is dropped. */
CPU_INLINE void query_block_attend(struct query_block *b, const struct key_walk *w, int64_t key,
                                   const struct mask *mask)
{
    int64_t width = w->width;
    const struct sight *sight = b->sight;
    bool is_plain = key >= sight->most && key <= sight->fewest && !b->has_slopes;
    struct tile_product scores = { .c = w->scores,
                                   .c_stride = BLOCK,
                                   .a = b->q,
                                   .a_row = width,
                                   .a_col = 1,
                                   .b = w->keys,
                                   .b_stride = BLOCK,
                                   .n = BLOCK,
                                   .k = width,
                                   .n_rows = b->n_rows };
    struct tile_product out = { .c = b->out,
                                .c_stride = width,
                                .a = w->scores,
                                .a_row = BLOCK,
                                .a_col = 1,
                                .b = w->values,
                                .b_stride = width,
                                .n = width,
                                .k = BLOCK,
                                .n_rows = b->n_rows,
                                .add = 1 };

    if (is_diagonal(b, key)) {
        scores.part = PART_C_LOWER;
        out.part = PART_A_LOWER;
    }
    tile_product(w->code, &scores);
    for (int64_t r = 0; r < b->n_rows; r++) {
        float *row = w->scores + r * BLOCK;

        if (!is_plain && !sees_block(sight, r, key)) {
            memset(row, 0, BLOCK * sizeof *row);
            continue;
        }
        if (!is_plain)
            score_row(row, b->slope[r], sight, r, key);
        softmax_row(row, sight->own[r] - key + 1, &b->max[r], &b->sum[r], b->out + r * width,
                    width);
        if (mask && mask->series.p > 0) {
            float kept[BLOCK];

            mask_row(kept, mask, sight->own[r], key);
            for (int j = 0; j < BLOCK; j++)
                row[j] *= kept[j];
        }
    }
    tile_product(w->code, &out);
}

/* Outputs by their sums; 0 of rows that have seen no key. */
CPU_INLINE void query_block_divide(const struct query_block *b, int64_t width)
{
    for (int64_t r = 0; r < b->n_rows; r++) {
        float inverse = b->sum[r] > 0 ? 1.0f / b->sum[r] : 0.0f;

        for (int64_t i = 0; i < width; i++)
            b->out[r * width + i] *= inverse;
    }
}

#endif
