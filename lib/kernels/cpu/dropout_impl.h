/*
 * dropout_impl.h - which elements are dropped: a pure function of what they are
 *
 * An element is named by the run's seed, its sample's global number, the op's place, and where it
 * is in the sample: (position, column) of a row-wise dropout, (head, query, key) of attention's. So
 * the mask is the same for every tiling, thread, rank and in the recomputed forward. One Philox
 * block gives four neighbouring columns (or keys) their words.
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

/* Words of columns 4 * quad .. 4 * quad + 3. */
CPU_INLINE struct rng_block dropout_words(uint64_t seed, uint64_t place_high, int64_t position,
                                          int64_t quad)
{
    return rng_at(seed, RNG_DROPOUT, place_high, (uint64_t)position << 32 | (uint64_t)quad);
}

/* Words of keys 4 * quad .. 4 * quad + 3; heads < 2^16, positions < 2^24. */
CPU_INLINE struct rng_block dropout_attention_words(uint64_t seed, uint64_t place_high, int head,
                                                    int64_t query, int64_t quad)
{
    uint64_t place_low = (uint64_t)head << 48 | (uint64_t)query << 24 | (uint64_t)quad;

    return rng_at(seed, RNG_DROPOUT, place_high, place_low);
}

#endif
