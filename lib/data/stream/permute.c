/*
 * permute.c - Feistel network with cycle walking
 *
 * The domain is less than four times n, so that an item is encrypted fewer than four times on
 * average. Six rounds of a strong round function are more than enough for a shuffle of training
 * data.
 */
#include "data/stream/permute.h"

#include "base/err.h"
#include "base/rng.h"

#define N_ROUNDS 6

static uint64_t encrypt(const struct permutation *p, int half_bits, uint64_t x)
{
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;

    for (int round = 0; round < N_ROUNDS; round++) {
        /* right has at most 31 bits: half, round and dataset fit in one word side by side. */
        uint64_t place = right | (uint64_t)round << 32 | (uint64_t)p->dataset << 40;
        struct rng_block block = rng_at(p->seed, RNG_SHUFFLE, (uint64_t)p->epoch, place);
        uint64_t next = left ^ (block.word[0] & mask);

        left = right;
        right = next;
    }
    return left << half_bits | right;
}

int64_t permute(const struct permutation *p, int64_t i)
{
    int half_bits = 1;
    uint64_t x = (uint64_t)i;

    CHECK(i >= 0);
    CHECK(i < p->n);
    CHECK(p->dataset >= 0);
    CHECK(p->dataset < 1 << 24);
    CHECK(p->n <= (int64_t)1 << 62);
    while (p->n > (int64_t)1 << (2 * half_bits))
        half_bits++;
    do
        x = encrypt(p, half_bits, x);
    while (x >= (uint64_t)p->n);
    return (int64_t)x;
}
