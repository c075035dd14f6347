/*
 * rng.c - many normal numbers at a time
 *
 * A normal costs a logarithm, a root and a cosine in double, and is rounded to a float. Here they
 * are made by polynomials, many at once, together with a bound of how far off they and libm's may
 * be: 2^-46 of the radius, several times what they are. Where both ends of that round to the same
 * float it is rng_normal's; one in a few hundred thousand is left in doubt, and asked of rng_normal
 * itself. So the bits are rng_normal's, whatever the machine (test/base/rng_test.c), at a tenth
 * of the time.
 */
#include "base/rng.h"

#include <string.h>

enum { N_BLOCKS = 64, N_NORMALS = 2 * N_BLOCKS };

/* Of the radius. Angles: 2^-50 by rounding 2 pi b, half that here; logarithms and roots: 2^-51. */
#define DOUBT 0x1p-46

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
        uint64_t c0 = (low + (uint64_t)i) & UINT32_MAX, c1 = (low + (uint64_t)i) >> 32;
        uint64_t c2 = high & UINT32_MAX, c3 = high >> 32;
        uint64_t k0 = key & UINT32_MAX, k1 = key >> 32;

#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * (uint32_t)c0;
            uint64_t p1 = (uint64_t)0xCD9E8D57u * (uint32_t)c2;
            uint64_t n0 = (p1 >> 32) ^ c1 ^ k0, n2 = (p0 >> 32) ^ c3 ^ k1;

            c1 = p1 & UINT32_MAX;
            c3 = p0 & UINT32_MAX;
            c0 = n0;
            c2 = n2;
            k0 = (k0 + 0x9E3779B9u) & UINT32_MAX;
            k1 = (k1 + 0xBB67AE85u) & UINT32_MAX;
        }
        d->a[2 * i] = (uint32_t)c0;
        d->b[2 * i] = (uint32_t)c1;
        d->a[2 * i + 1] = (uint32_t)c2;
        d->b[2 * i + 1] = (uint32_t)c3;
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

/* log u = e log 2 + 2 artanh((m - 1) / (m + 1)) where u = 2^e m, m in [sqrt(1/2), sqrt(2)). */
static inline __attribute__((always_inline)) double log_of(double u)
{
    const uint64_t root = 0x3fe6a09e667f3bcdu; /* sqrt(1/2) */
    uint64_t above = bits_of(u) - root + ((uint64_t)64 << 52);
    double e = whole(above >> 52) - 64;
    double m = double_of((above & 0x000fffffffffffffu) + root);
    double s = (m - 1) / (m + 1), z = s * s;
    double sum = 1.0 / 21;

    sum = sum * z + 1.0 / 19;
    sum = sum * z + 1.0 / 17;
    sum = sum * z + 1.0 / 15;
    sum = sum * z + 1.0 / 13;
    sum = sum * z + 1.0 / 11;
    sum = sum * z + 1.0 / 9;
    sum = sum * z + 1.0 / 7;
    sum = sum * z + 1.0 / 5;
    sum = sum * z + 1.0 / 3;
    return e * 0.693147180559945309417 + (2 * s + 2 * s * (z * sum));
}

/* cos(2 pi b / 2^32): the quadrant whose middle is nearest, and within it Taylor's sums. */
static inline __attribute__((always_inline)) double cos_of(uint32_t b)
{
    uint32_t quadrant = (b + 0x20000000u) >> 30;
    double t = whole((uint64_t)(b - (quadrant << 30) + 0x20000000u)) - 0x1p29;
    double x = t * (6.283185307179586477 * 0x1p-32), z = x * x;
    double sine = 1.0 / 355687428096000, cosine = 1.0 / 20922789888000;

    cosine = cosine * z - 1.0 / 87178291200;
    cosine = cosine * z + 1.0 / 479001600;
    cosine = cosine * z - 1.0 / 3628800;
    cosine = cosine * z + 1.0 / 40320;
    cosine = cosine * z - 1.0 / 720;
    cosine = cosine * z + 1.0 / 24;
    cosine = cosine * z - 1.0 / 2;
    cosine = cosine * z + 1;
    sine = sine * z - 1.0 / 1307674368000;
    sine = sine * z + 1.0 / 6227020800;
    sine = sine * z - 1.0 / 39916800;
    sine = sine * z + 1.0 / 362880;
    sine = sine * z - 1.0 / 5040;
    sine = sine * z + 1.0 / 120;
    sine = sine * z - 1.0 / 6;
    sine = x + x * (sine * z);
    /* cos x, -sin x, -cos x, sin x */
    uint64_t odd = -(uint64_t)(quadrant & 1), negative = (uint64_t)((quadrant + 1) & 2) << 62;
    return double_of(((bits_of(sine) & odd) | (bits_of(cosine) & ~odd)) ^ negative);
}

static inline __attribute__((always_inline)) void draw_normals(struct draw *d)
{
    for (int i = 0; i < N_NORMALS; i++) {
        double radius = sqrt(-2.0 * log_of((whole(d->a[i]) + 0.5) * 0x1p-32));
        double x = radius * cos_of(d->b[i]), doubt = radius * DOUBT;
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
                                                       uint64_t high)
{
    draw_words(d, key, low, high);
    draw_normals(d);
}

static void draw_plain(struct draw *d, uint64_t key, uint64_t low, uint64_t high)
{
    draw(d, key, low, high);
}

#if defined(__x86_64__)
#if defined(__clang__)
#define AVX512 "avx512f,avx512dq,avx512bw,avx512vl"
#else
#define AVX512 "avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512"
#endif

__attribute__((target("avx2"))) static void draw_avx2(struct draw *d, uint64_t key, uint64_t low,
                                                      uint64_t high)
{
    draw(d, key, low, high);
}

__attribute__((target(AVX512))) static void draw_avx512(struct draw *d, uint64_t key, uint64_t low,
                                                        uint64_t high)
{
    draw(d, key, low, high);
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
    if (__builtin_cpu_supports("avx2")) {
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
