/*
 * state_noise_impl.h - numbers that round states of bf16, in vectors of counters
 *
 * Philox with a counter in each lane of 64 bits, of which a multiplication takes the lower 32: what
 * is left in the upper ones does not matter. Included behind what instruction sets do differently:
 *
 *   lanes64, LANES64      a vector, and its lanes
 *   times_lanes(a, b)     products of lanes' lower 32 bits
 *   upper_lanes(a)        lanes' upper 32 bits
 *   mixed(a, b, c)        exclusive or of a's upper 32 bits, and b and c
 *   exclusive_or(a, b)
 *   all_lanes(x)          x in all; lanes_from(x): x, x + 1, ...
 *   store_halves(to, a)   the two halves of lanes' lower 32 bits, element by element
 */
#ifndef KERNELS_CPU_STATE_NOISE_IMPL_H
#define KERNELS_CPU_STATE_NOISE_IMPL_H

#define ROUNDS 10
#define NOISE_GROUP 4 /* vectors that take turns, as a round waits for the one before */
_Static_assert(NOISE_PAIRS % (NOISE_GROUP * LANES64) == 0, "whole groups");

/* What is the same for all counters of a call, which differ in their lowest word alone (low is a
 * multiple of NOISE_PAIRS): half of the first two rounds. */
struct noise_start {
    lanes64 c2, c0, next_c2, next_c3;
};

CPU_INLINE struct noise_start start_noise(const uint64_t *k0, const uint64_t *k1, uint64_t high,
                                          uint64_t low)
{
    uint64_t p1 = (uint64_t)0xCD9E8D57u * (uint32_t)high;
    uint64_t p0 = (uint64_t)0xD2511F53u * (uint32_t)((p1 >> 32) ^ (low >> 32) ^ k0[0]);

    return (struct noise_start){ .c2 = all_lanes((high >> 32) ^ k1[0]),
                                 .c0 = all_lanes(p1 ^ k0[1]),
                                 .next_c2 = all_lanes((p0 >> 32) ^ k1[1]),
                                 .next_c3 = all_lanes(p0) };
}

CPU_INLINE void make_lanes_of_noise(struct noise *noise, uint64_t key, uint64_t high, uint64_t low)
{
    const lanes64 first = all_lanes(0xD2511F53u), second = all_lanes(0xCD9E8D57u);
    uint64_t k0[ROUNDS], k1[ROUNDS];

    for (int round = 0; round < ROUNDS; round++) {
        k0[round] = (uint32_t)((uint32_t)key + (uint32_t)round * 0x9E3779B9u);
        k1[round] = (uint32_t)((uint32_t)(key >> 32) + (uint32_t)round * 0xBB67AE85u);
    }
    const struct noise_start s = start_noise(k0, k1, high, low);

    for (int i = 0; i < NOISE_PAIRS; i += NOISE_GROUP * LANES64) {
        lanes64 c0[NOISE_GROUP], c1[NOISE_GROUP], c2[NOISE_GROUP], c3[NOISE_GROUP];

        for (int v = 0; v < NOISE_GROUP; v++) {
            c3[v] = times_lanes(lanes_from(low + (uint64_t)(i + LANES64 * v)), first);
            c1[v] = times_lanes(exclusive_or(upper_lanes(c3[v]), s.c2), second);
            c0[v] = exclusive_or(upper_lanes(c1[v]), s.c0);
            c2[v] = exclusive_or(c3[v], s.next_c2);
            c3[v] = s.next_c3;
        }
        for (int round = 2; round < ROUNDS; round++)
            for (int v = 0; v < NOISE_GROUP; v++) {
                lanes64 a = times_lanes(c0[v], first), b = times_lanes(c2[v], second);

                c0[v] = mixed(b, c1[v], all_lanes(k0[round]));
                c2[v] = mixed(a, c3[v], all_lanes(k1[round]));
                c1[v] = b;
                c3[v] = a;
            }
        for (int v = 0; v < NOISE_GROUP; v++) {
            int at = 2 * (i + LANES64 * v);

            store_halves(noise->master + at, c0[v]);
            store_halves(noise->m + at, c1[v]);
            store_halves(noise->v + at, c2[v]);
        }
    }
}

#endif
