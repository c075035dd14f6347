/*
 * e4m3.h - numbers of 8 bits for tests, e4m3 and e5m2: by trying all of them, not as kernels have
 * them
 */
#ifndef SUPPORT_E4M3_H
#define SUPPORT_E4M3_H

#include <math.h>

/* The 127 numbers that are not negative, by their codes. */
static inline double e4m3_number(int code)
{
    return code < 8 ? ldexp(code, -9) : ldexp(8 + code % 8, code / 8 - 10);
}

/* The code of the nearest one, halves to even, at most 448; x >= 0. */
static inline int e4m3_nearest(double x)
{
    int best = 0;

    for (int code = 1; code < 0x7f; code++) {
        double d = fabs(e4m3_number(code) - x), before = fabs(e4m3_number(best) - x);

        if (d < before || (d == before && code % 2 == 0))
            best = code;
    }
    return best;
}

static inline double e4m3_rounded(float x)
{
    return copysign(e4m3_number(e4m3_nearest(fabs((double)x))), (double)x);
}

static inline double e5m2_number(int code)
{
    return code < 4 ? ldexp(code, -16) : ldexp(4 + code % 4, code / 4 - 17);
}

static inline double e5m2_rounded(float x)
{
    double size = fabs((double)x);
    int best = 0;

    for (int code = 1; code < 0x7c; code++) {
        double d = fabs(e5m2_number(code) - size), before = fabs(e5m2_number(best) - size);

        if (d < before || (d == before && code % 2 == 0))
            best = code;
    }
    return copysign(e5m2_number(best), (double)x);
}

#endif
