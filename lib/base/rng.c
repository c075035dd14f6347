/*
 * rng.c - many normal numbers at a time
 *
 * A normal costs a logarithm, a root and a cosine in double, and is rounded to a float. Here they
 * are made by short polynomials, many at once, together with a bound of how far the polynomial and
 * libm may differ: 2^-40 of the radius, ten times the largest difference. Where both ends of that
 * interval round to the same float, it is the value of rng_normal; one in some thousands is
 * ambiguous and is computed by rng_normal itself. So the bits are rng_normal's, whatever the
 * machine (test/base/rng_test.c), at a tenth of the time.
 */
#include "base/rng.h"

#include <string.h>

enum { N_BLOCKS = 64, N_NORMALS = 2 * N_BLOCKS };

/* Of the radius. By the first terms left out, cosines are 2^-44.4 off at most, and roots of
 * logarithms 2^-45.8 of themselves; libm's angles, rounded, 2^-50. */
#define DOUBT 0x1p-40

/* Blocks' first pairs of words and second ones by turns. */
struct draw {
    uint32_t a[N_NORMALS], b[N_NORMALS];
    float normal[N_NORMALS];
    unsigned char is_unsure[N_NORMALS];
};

/* rng_philox on counters low, low + 1, ... */
static inline __attribute__((always_inline)) void draw_words(struct draw *d, uint64_t key,
                                                             uint64_t low, uint64_t high)
{
    for (int i = 0; i < N_BLOCKS; i++) {
        uint64_t word[4];

        rng_philox_lane(word, key, low + (uint64_t)i, high);
        d->a[2 * i] = (uint32_t)word[0];
        d->b[2 * i] = (uint32_t)word[1];
        d->a[2 * i + 1] = (uint32_t)word[2];
        d->b[2 * i + 1] = (uint32_t)word[3];
    }
}

static inline __attribute__((always_inline)) double double_of(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline __attribute__((always_inline)) uint64_t bits_of(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* A whole number below 2^52 as a double: what it adds to the bits of 2^52. */
static inline __attribute__((always_inline)) double whole(uint64_t n)
{
    return double_of(n | 0x4330000000000000u) - 0x1p52;
}

/* Fused where that is one instruction; how it rounds is within the doubt. */
static inline __attribute__((always_inline)) double plus(double a, double b, double c, int fused)
{
    return fused ? __builtin_fma(a, b, c) : a * b + c;
}

/* log u = e log 2 + 2 artanh((m - 1) / (m + 1)) where u = 2^e m, m in [sqrt(1/2), sqrt(2)). */
static inline __attribute__((always_inline)) double log_of(double u, int fused)
{
    const uint64_t root = 0x3fe6a09e667f3bcdu; /* sqrt(1/2) */
    uint64_t above = bits_of(u) - root + ((uint64_t)64 << 52);
    double e = whole(above >> 52) - 64;
    double m = double_of((above & 0x000fffffffffffffu) + root);
    double s = (m - 1) / (m + 1), z = s * s;
    double sum = 2.0 / 15;

    sum = plus(sum, z, 2.0 / 13, fused);
    sum = plus(sum, z, 2.0 / 11, fused);
    sum = plus(sum, z, 2.0 / 9, fused);
    sum = plus(sum, z, 2.0 / 7, fused);
    sum = plus(sum, z, 2.0 / 5, fused);
    sum = plus(sum, z, 2.0 / 3, fused);
    sum = plus(sum, z, 2.0, fused);
    return plus(e, 0.693147180559945309417, s * sum, fused);
}

/* cos(2 pi b / 2^32) = sin(2 pi (|b / 2^32 - 1/2| - 1/4)), by Taylor's sum within a half turn. */
static inline __attribute__((always_inline)) double cos_of(uint32_t b, int fused)
{
    double from_half = (int32_t)(b ^ 0x80000000u);
    double x = (fabs(from_half) - 0x1p30) * (6.283185307179586477 * 0x1p-32), z = x * x;
    double sum = 1.0 / 355687428096000;

    sum = plus(sum, z, -1.0 / 1307674368000, fused);
    sum = plus(sum, z, 1.0 / 6227020800, fused);
    sum = plus(sum, z, -1.0 / 39916800, fused);
    sum = plus(sum, z, 1.0 / 362880, fused);
    sum = plus(sum, z, -1.0 / 5040, fused);
    sum = plus(sum, z, 1.0 / 120, fused);
    sum = plus(sum, z, -1.0 / 6, fused);
    return plus(sum * z, x, x, fused);
}

static inline __attribute__((always_inline)) void draw_normals(struct draw *d, int fused)
{
    for (int i = 0; i < N_NORMALS; i++) {
        double radius = sqrt(-2.0 * log_of((whole(d->a[i]) + 0.5) * 0x1p-32, fused));
        double x = radius * cos_of(d->b[i], fused), doubt = radius * DOUBT;
        float least = (float)(x - doubt), most = (float)(x + doubt);

        d->normal[i] = least;
        d->is_unsure[i] = least != most;
    }
}

static void settle_doubts(struct draw *d)
{
    if (!memchr(d->is_unsure, 1, N_NORMALS))
        return;
    for (int i = 0; i < N_NORMALS; i++)
        if (d->is_unsure[i])
            d->normal[i] = rng_normal(d->a[i], d->b[i]);
}

static inline __attribute__((always_inline)) void draw(struct draw *d, uint64_t key, uint64_t low,
                                                       uint64_t high, int fused)
{
    draw_words(d, key, low, high);
    draw_normals(d, fused);
}

static void draw_plain(struct draw *d, uint64_t key, uint64_t low, uint64_t high)
{
    draw(d, key, low, high, 0);
}

#if defined(__x86_64__)
#if defined(__clang__)
#define AVX512 "avx512f,avx512dq,avx512bw,avx512vl"
#else
#define AVX512 "avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512"
#endif

__attribute__((target("avx2,fma"))) static void draw_avx2(struct draw *d, uint64_t key,
                                                          uint64_t low, uint64_t high)
{
    draw(d, key, low, high, 1);
}

__attribute__((target(AVX512))) static void draw_avx512(struct draw *d, uint64_t key, uint64_t low,
                                                        uint64_t high)
{
    draw(d, key, low, high, 1);
}
#endif

static void draw_here(struct draw *d, uint64_t key, uint64_t low, uint64_t high)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
        draw_avx512(d, key, low, high);
        return;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        draw_avx2(d, key, low, high);
        return;
    }
#endif
    draw_plain(d, key, low, high);
}

void rng_normals(float *out, int64_t n, const struct rng_series *series, int64_t first)
{
    uint64_t key = series->seed ^ (uint64_t)series->purpose << 56;
    struct draw d;

    for (int64_t at = 0; at < n;) {
        int64_t block = (first + at) / 2, skip = first + at - 2 * block;

        draw_here(&d, key, (uint64_t)block, series->place_high);
        settle_doubts(&d);
        int64_t here = n - at < N_NORMALS - skip ? n - at : N_NORMALS - skip;
        memcpy(out + at, d.normal + skip, (size_t)here * sizeof *out);
        at += here;
    }
}
