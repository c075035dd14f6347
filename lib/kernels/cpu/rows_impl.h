/*
 * rows_impl.h - rows of activations, and how element-by-element work is cut
 *
 * Inner loops are written for a constant `act`, the dtype of activations, and called once for each
 * of them (WITH_ACT), so that the compiler sees plain loops.
 */
#ifndef KERNELS_CPU_ROWS_IMPL_H
#define KERNELS_CPU_ROWS_IMPL_H

#include "base/num.h"
#include "kernels/cpu/cpu_impl.h"
#include "kernels/cpu/vec_math.h"

/* name[isa], a pool_tile_fn, out of CPU_INLINE void name_body(void *context, int64_t tile). */
#define CPU_TILES(name) \
    CPU_VARIANTS(name, (void *context, int64_t tile, int thread __attribute__((unused))), \
                 (context, tile))

/* In front of a loop whose turns do not touch each other's memory, where the compiler can't see it.
 */
#ifdef __clang__
#define INDEPENDENT_TURNS
#else
#define INDEPENDENT_TURNS _Pragma("GCC ivdep")
#endif

/* The statement with `act` a constant equal to type. */
#define WITH_ACT(type, ...) \
    do { \
        if ((type) == DTYPE_BF16) { \
            const enum dtype act = DTYPE_BF16; \
            __VA_ARGS__; \
        } else if ((type) == DTYPE_F16) { \
            const enum dtype act = DTYPE_F16; \
            __VA_ARGS__; \
        } else { \
            const enum dtype act = DTYPE_F32; \
            __VA_ARGS__; \
        } \
    } while (0)

/* The same of ops on the residual stream, whose dtype is `res`: fp32 beside any act, or bf16 beside
 * bf16. */
#define WITH_ACT_AND_RES(act_type, res_type, ...) \
    do { \
        if ((res_type) == DTYPE_BF16) { \
            const enum dtype act = DTYPE_BF16, res = DTYPE_BF16; \
            __VA_ARGS__; \
        } else { \
            const enum dtype res = DTYPE_F32; \
            WITH_ACT(act_type, __VA_ARGS__); \
        } \
    } while (0)

CPU_INLINE float act_get(const void *row, int64_t i, enum dtype act)
{
    if (act == DTYPE_BF16)
        return vec_from_bf16(((const uint16_t *)row)[i]);
    if (act == DTYPE_F16)
        return vec_from_fp16(((const uint16_t *)row)[i]);
    return ((const float *)row)[i];
}

CPU_INLINE void act_put(void *row, int64_t i, float x, enum dtype act)
{
    if (act == DTYPE_BF16)
        ((uint16_t *)row)[i] = vec_to_bf16(x);
    else if (act == DTYPE_F16)
        ((uint16_t *)row)[i] = vec_to_fp16(x);
    else
        ((float *)row)[i] = x;
}

static inline const float *float_row(const struct tensor *t, int64_t row)
{
    return (const float *)t->data + row * t->stride;
}

static inline float *float_row_mut(const struct tensor *t, int64_t row)
{
    return (float *)t->data + row * t->stride;
}

/*
 * A sum along a row is kept in SUM_LANES partial sums, element i in lane i % SUM_LANES, that are
 * added as a tree at the end: the same order for every instruction set.
 */
#define SUM_LANES 32

CPU_INLINE float sum_lanes(float *lanes)
{
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

/* Rectangles of about ELEMENTS_A_TILE elements that cover rows x cols. */
#define ELEMENTS_A_TILE 16384

struct tiling {
    int64_t rows, cols;
    int64_t rows_a_tile, cols_a_tile;
    int64_t n_col_tiles, n_tiles;
};

struct tile_bounds {
    int64_t row, row_end, col, col_end;
};

static inline struct tiling tiling_of(int64_t rows, int64_t cols)
{
    struct tiling t = { .rows = rows, .cols = cols };

    t.cols_a_tile = min_i64(cols, ELEMENTS_A_TILE);
    t.rows_a_tile = max_i64(1, ELEMENTS_A_TILE / t.cols_a_tile);
    t.n_col_tiles = ceil_div(cols, t.cols_a_tile);
    t.n_tiles = t.n_col_tiles * ceil_div(rows, t.rows_a_tile);
    return t;
}

static inline struct tile_bounds tiling_at(const struct tiling *t, int64_t tile)
{
    int64_t row = tile / t->n_col_tiles * t->rows_a_tile;
    int64_t col = tile % t->n_col_tiles * t->cols_a_tile;

    return (struct tile_bounds){ row, min_i64(row + t->rows_a_tile, t->rows), col,
                                 min_i64(col + t->cols_a_tile, t->cols) };
}

#endif
