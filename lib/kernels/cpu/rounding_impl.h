/*
 * rounding_impl.h - numbers by which an optimizer's states of bf16 are rounded stochastically
 */
#ifndef KERNELS_CPU_ROUNDING_IMPL_H
#define KERNELS_CPU_ROUNDING_IMPL_H

#include "base/rng.h"
#include "kernels/cpu/rows_impl.h"

#define NOISE_PAIRS (OPS_STATE_BLOCK / 2)

/* The rounding's bits, element by element. */
struct noise {
    uint32_t master[OPS_STATE_BLOCK], m[OPS_STATE_BLOCK], v[OPS_STATE_BLOCK];
};

/* Of OPS_STATE_BLOCK elements: rng_philox at counters low, low + 1, ... */
CPU_INLINE void make_noise_body(struct noise *noise, uint64_t key, uint64_t high, uint64_t low)
{
    INDEPENDENT_TURNS
    for (int i = 0; i < NOISE_PAIRS; i++) {
        uint64_t word[4];

        rng_philox_lane(word, key, low + (uint64_t)i, high);
        noise->master[2 * i] = (uint32_t)word[0] & 0xffff;
        noise->master[2 * i + 1] = (uint32_t)word[0] >> 16;
        noise->m[2 * i] = (uint32_t)word[1] & 0xffff;
        noise->m[2 * i + 1] = (uint32_t)word[1] >> 16;
        noise->v[2 * i] = (uint32_t)word[2] & 0xffff;
        noise->v[2 * i + 1] = (uint32_t)word[2] >> 16;
    }
}

/* Rounded by what 16 random bits say; NaN and infinity as they are: of infinity's low bits, which
 * are 0, there is no carry; NaN's are cut off, so it needs one above. */
CPU_INLINE uint16_t round_by(float x, uint32_t bits16)
{
    uint32_t bits = vec_to_bits(x), rounded = bits + bits16;

    return (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16);
}

#endif
