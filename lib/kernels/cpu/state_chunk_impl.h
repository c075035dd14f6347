/*
 * state_chunk_impl.h - OPS_STATE_BLOCK elements of an optimizer's operands as floats
 *
 * What an operand has as fp32 side by side is read and written where it lies. All else is staged:
 * read into floats of the chunk, which stay in the first cache, and written back as the operand has
 * it. An operand is r x c, its elements counted in storage order.
 */
#ifndef KERNELS_CPU_STATE_CHUNK_IMPL_H
#define KERNELS_CPU_STATE_CHUNK_IMPL_H

#include "base/halves.h"
#include "kernels/cpu/rounding_impl.h"
#include "kernels/cpu/rows_impl.h"

struct state_chunk {
    int64_t first;
    int n;                /* elements, at most OPS_STATE_BLOCK */
    float *g, *p, *m, *v; /* gradient (to read only), master, states: staged or in place */
    _Alignas(64) float staged[4][OPS_STATE_BLOCK];
};

static inline bool is_bf16(const struct tensor *t)
{
    return t->dtype == DTYPE_BF16;
}

static inline bool is_dense(const struct tensor *t)
{
    return t->stride == t->cols || t->rows == 1;
}

/* How many of n elements from one on lie side by side, and where (in elements) they do. */
static inline int64_t side_by_side(const struct tensor *t, int64_t first, int64_t n, int64_t *at)
{
    if (is_dense(t)) {
        *at = first;
        return n;
    }
    *at = first / t->cols * t->stride + first % t->cols;
    return min_i64(n, t->cols - first % t->cols);
}

/* ---- floats ---- */

CPU_INLINE void read_floats(const struct tensor *t, int64_t at, int64_t n, float *to)
{
    const uint16_t *words = (const uint16_t *)t->data + at;

    if (t->dtype == DTYPE_F32) {
        memcpy(to, (const float *)t->data + at, (size_t)n * sizeof *to);
        return;
    }
    INDEPENDENT_TURNS
    for (int64_t i = 0; i < n; i++)
        to[i] = vec_from_bf16(words[i]);
}

/* Of fp32 or bf16. Returns where the chunk's elements are as floats: in place, or staged. */
CPU_INLINE float *read_chunk(const struct tensor *t, const struct state_chunk *c, float *staged)
{
    int64_t at, n;

    if (t->dtype == DTYPE_F32 && is_dense(t))
        return (float *)t->data + c->first;
    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(t, c->first + i, c->n - i, &at);
        read_floats(t, at, n, staged + i);
    }
    return staged;
}

/* bits: for each element those by which it is rounded to bf16; NULL: to nearest. */
CPU_INLINE void write_floats(const struct tensor *t, int64_t at, int64_t n, const float *from,
                             const uint32_t *bits)
{
    uint16_t *words = (uint16_t *)t->data + at;

    if (t->dtype == DTYPE_F32) {
        memcpy((float *)t->data + at, from, (size_t)n * sizeof *from);
    } else if (t->dtype == DTYPE_F16) {
        INDEPENDENT_TURNS
        for (int64_t i = 0; i < n; i++)
            words[i] = vec_to_fp16(from[i]);
    } else if (bits) {
        INDEPENDENT_TURNS
        for (int64_t i = 0; i < n; i++)
            words[i] = round_by(from[i], bits[i]);
    } else {
        INDEPENDENT_TURNS
        for (int64_t i = 0; i < n; i++)
            words[i] = vec_to_bf16(from[i]);
    }
}

CPU_INLINE void write_chunk(const struct tensor *t, const struct state_chunk *c, const float *from,
                            const uint32_t *bits)
{
    int64_t at, n;

    if (t->dtype == DTYPE_F32 && is_dense(t) && from == (const float *)t->data + c->first)
        return;
    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(t, c->first + i, c->n - i, &at);
        write_floats(t, at, n, from + i, bits ? bits + i : NULL);
    }
}

/* ---- masters in two words, and weights rounded as their upper ones ---- */

CPU_INLINE float *read_halves(const struct tensor *upper, const struct tensor *lower,
                              const struct state_chunk *c, float *staged)
{
    int64_t at, below, n;

    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(upper, c->first + i, c->n - i, &at);
        n = side_by_side(lower, c->first + i, n, &below);
        const uint16_t *high = (const uint16_t *)upper->data + at;
        const uint16_t *low = (const uint16_t *)lower->data + below;

        INDEPENDENT_TURNS
        for (int64_t e = 0; e < n; e++)
            staged[i + e] = halves_join(high[e], low[e]);
    }
    return staged;
}

CPU_INLINE void write_upper(const struct tensor *t, const struct state_chunk *c, const float *from)
{
    int64_t at, n;

    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(t, c->first + i, c->n - i, &at);
        uint16_t *words = (uint16_t *)t->data + at;

        INDEPENDENT_TURNS
        for (int64_t e = 0; e < n; e++)
            words[e] = halves_upper(from[i + e]);
    }
}

CPU_INLINE void write_lower(const struct tensor *t, const struct state_chunk *c, const float *from)
{
    int64_t at, n;

    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(t, c->first + i, c->n - i, &at);
        uint16_t *words = (uint16_t *)t->data + at;

        INDEPENDENT_TURNS
        for (int64_t e = 0; e < n; e++)
            words[e] = halves_lower(from[i + e]);
    }
}

/* ---- bytes of states with scales ---- */

/* Where the chunk's elements lie as the operand has them: in place, or, copied, in buffer. */
static inline void *read_bytes(const struct tensor *t, const struct state_chunk *c, void *buffer)
{
    size_t size = dtype_bytes(t->dtype);
    int64_t at, n;

    if (is_dense(t))
        return (char *)t->data + (size_t)c->first * size;
    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(t, c->first + i, c->n - i, &at);
        memcpy((char *)buffer + (size_t)i * size, (char *)t->data + (size_t)at * size,
               (size_t)n * size);
    }
    return buffer;
}

static inline void write_bytes(const struct tensor *t, const struct state_chunk *c,
                               const void *buffer)
{
    size_t size = dtype_bytes(t->dtype);
    int64_t at, n;

    if (is_dense(t))
        return;
    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(t, c->first + i, c->n - i, &at);
        memcpy((char *)t->data + (size_t)at * size, (const char *)buffer + (size_t)i * size,
               (size_t)n * size);
    }
}

#endif
