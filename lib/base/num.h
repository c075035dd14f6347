/*
 * num.h - small arithmetic on integers
 */
#ifndef BASE_NUM_H
#define BASE_NUM_H

#include <stddef.h>
#include <stdint.h>

static inline int min_int(int a, int b)
{
    return a < b ? a : b;
}

static inline int max_int(int a, int b)
{
    return a > b ? a : b;
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* n / d rounded up, for n >= 0 and d > 0. */
static inline int64_t ceil_div(int64_t n, int64_t d)
{
    return (n + d - 1) / d;
}

/* n rounded up to a multiple of d. */
static inline int64_t round_up(int64_t n, int64_t d)
{
    return ceil_div(n, d) * d;
}

static inline size_t align_up(size_t n, size_t alignment)
{
    return (n + alignment - 1) / alignment * alignment;
}

/* Of positive ones. */
static inline int64_t least_common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;

    while (y) {
        int64_t rest = x % y;

        x = y;
        y = rest;
    }
    return a / x * b;
}

#endif
