/*
 * dropout_impl.h - which elements are dropped: a pure function of what they are
 *
 * An element is named by the run's seed, its sample's global number, the op's place, and where it
 * is in the sample: (position, column) of a row-wise dropout, (head, query, key) of attention's. So
 * the mask is the same for every tiling, thread, rank and in the recomputed forward. One Philox
 * block gives four neighbouring columns (or keys), a quad, their words.
 */
#ifndef KERNELS_CPU_DROPOUT_IMPL_H
#define KERNELS_CPU_DROPOUT_IMPL_H

#include "base/rng.h"
#include "kernels/cpu/cpu_impl.h"

/* An odd multiplier keeps (place, sample) pairs apart as long as places or samples are few. */
CPU_INLINE uint64_t dropout_place_high(uint64_t place, int64_t sample)
{
    return place * 0x9E3779B97F4A7C15u + (uint64_t)sample;
}

/* Of columns 4 * quad .. 4 * quad + 3; what follows goes to the next quads. */
CPU_INLINE uint64_t dropout_place_low(int64_t position, int64_t quad)
{
    return (uint64_t)position << 32 | (uint64_t)quad;
}

/* Of keys 4 * quad .. 4 * quad + 3; heads < 2^16, positions < 2^24. */
CPU_INLINE uint64_t dropout_attention_place_low(int head, int64_t query, int64_t quad)
{
    return (uint64_t)head << 48 | (uint64_t)query << 24 | (uint64_t)quad;
}

#define DROPOUT_QUADS 16
#define DROPOUT_ELEMENTS (4 * DROPOUT_QUADS)

struct dropout_series {
    uint64_t seed, place_high;
    float p, scale;
};

/* What the elements of DROPOUT_QUADS quads are multiplied by: 0 or scale. */
CPU_INLINE void dropout_factors(float *factors, const struct dropout_series *series,
                                uint64_t place_low)
{
    const struct dropout_series s = *series; /* which factors could alias */
    uint64_t key = rng_key(s.seed, RNG_DROPOUT);
    uint32_t words[DROPOUT_ELEMENTS];

    for (int i = 0; i < DROPOUT_QUADS; i++) {
        uint64_t word[4];

        rng_philox_lane(word, key, place_low + (uint64_t)i, s.place_high);
        for (int j = 0; j < 4; j++)
            words[4 * i + j] = (uint32_t)word[j];
    }
    for (int i = 0; i < DROPOUT_ELEMENTS; i++)
        factors[i] = rng_uniform(words[i]) >= s.p ? s.scale : 0.0f;
}

#endif
