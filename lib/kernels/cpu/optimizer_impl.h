/*
 * optimizer_impl.h - what the optimizers' kernels share: constants of a call, rounding by chance
 *
 * AdamW on fp32 and bf16 states is in optimizer.c; it and the others on states with scales are in
 * optimizer_blocks.c.
 */
#ifndef KERNELS_CPU_OPTIMIZER_IMPL_H
#define KERNELS_CPU_OPTIMIZER_IMPL_H

#include "base/halves.h"
#include "base/rng.h"
#include "kernels/cpu/rows_impl.h"
#include "ops/optimizers.h"

static inline bool is_bf16(const struct tensor *t)
{
    return t->dtype == DTYPE_BF16;
}

/* What is the same for all elements of a call. */
struct update_call {
    const struct op_shape *op;
    struct tiling tiling;
    double lr;
    float factor, decay, one_minus_beta1, one_minus_beta2, beta1, beta2, step, sqrt_bias2, eps;
    uint64_t key, high; /* of the rounding's numbers */
};

/* Elements of one row. */
struct row_range {
    int64_t row, col, n;
};

struct update_call update_call_of(const struct op_shape *op);

/* optimizer_blocks.c: the update of any optimizer, whatever its states. It is not skipped. */
void update_by_blocks(struct kernels *kernels, const struct op_shape *op);

/* ---- rounding by chance ---- */

#define NOISE_PAIRS 64
#define NOISE_ELEMENTS (2 * NOISE_PAIRS)

/* The rounding's bits, element by element. */
struct noise {
    uint32_t master[NOISE_ELEMENTS], m[NOISE_ELEMENTS], v[NOISE_ELEMENTS];
};

/* rng_philox at counters low, low + 1, ... */
CPU_INLINE void make_noise(struct noise *noise, uint64_t key, uint64_t high, uint64_t low)
{
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

/* Rounded by what 16 random bits say; NaN and infinity as they are (their low bits are cut off, so
 * NaN needs one above). */
CPU_INLINE uint16_t round_by(float x, uint32_t bits16)
{
    uint32_t bits, more;

    memcpy(&bits, &x, sizeof bits);
    more = (bits & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0;
    bits16 = (bits & 0x7f800000u) == 0x7f800000u ? 0 : bits16;
    return (uint16_t)(((bits | more) + bits16) >> 16);
}

#endif
