/*
 * transpose.c - in blocks whose rows and columns stay in the cache
 */
#include "ckpt/transpose.h"

#include "base/err.h"
#include "base/num.h"

#define BLOCK 32

#define TURN(type) \
    static void turn_##type(type *to, int64_t to_stride, const type *from, int64_t from_stride, \
                            int64_t rows, int64_t cols) \
    { \
        for (int64_t c = 0; c < cols; c++) \
            for (int64_t r = 0; r < rows; r++) \
                to[c * to_stride + r] = from[r * from_stride + c]; \
    }

TURN(uint16_t)
TURN(uint32_t)

void transpose(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows,
               int64_t cols, size_t element_bytes)
{
    CHECK(element_bytes == 2 || element_bytes == 4);
    for (int64_t r = 0; r < rows; r += BLOCK)
        for (int64_t c = 0; c < cols; c += BLOCK) {
            int64_t n_rows = min_i64(BLOCK, rows - r), n_cols = min_i64(BLOCK, cols - c);
            int64_t t = c * to_stride + r, f = r * from_stride + c;

            if (element_bytes == 2)
                turn_uint16_t((uint16_t *)to + t, to_stride, (const uint16_t *)from + f,
                              from_stride, n_rows, n_cols);
            else
                turn_uint32_t((uint32_t *)to + t, to_stride, (const uint32_t *)from + f,
                              from_stride, n_rows, n_cols);
        }
}
