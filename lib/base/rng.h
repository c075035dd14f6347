/*
 * rng.h - random numbers as a pure function of a key and a place
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011). No state: a number is named by its seed, its purpose and its place, so that it is the same
 * on every rank, thread and device, in every order of asking. Every purpose has its own entry
 * below; two users of one purpose must differ in place.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <math.h>
#include <stdint.h>

enum rng_purpose {
    RNG_INIT = 1,  /* initial parameters: place = hash of the name, element */
    RNG_DROPOUT,   /* place = sample, layer and op, position and column */
    RNG_SHUFFLE,   /* data order */
    RNG_SAMPLE,    /* generation: place = prompt, position */
    RNG_TEST = 6,  /* golden files hold what it gives */
    RNG_BENCH,     /* tokens to time steps on: place = micro-batch, token */
    RNG_ROUNDING,  /* optimizer states to bf16: place = update, element (ops/ops.h) */
    RNG_PREFLIGHT, /* operands of known products: place = operand and row, column */
    RNG_BASIS,     /* columns of a factor's basis (low_rank_basis): place = column, row */
    RNG_SWEEP,     /* values of a sweep's parameters: place = hash of the key, trial */
};

struct rng_block {
    uint32_t word[4];
};

/*
 * Ten rounds of Philox4x32 on the counter (low, high) under a key. Words are 64 bits wide, their
 * upper halves empty: so a loop over many blocks becomes vector code.
 */
static inline __attribute__((always_inline)) void rng_philox_lane(uint64_t word[4], uint64_t key,
                                                                  uint64_t low, uint64_t high)
{
    uint64_t c0 = low & UINT32_MAX, c1 = low >> 32, c2 = high & UINT32_MAX, c3 = high >> 32;
    uint64_t k0 = key & UINT32_MAX, k1 = key >> 32;

#ifndef __NVCC__ /* to which this pragma is unknown */
#pragma GCC unroll 10
#endif
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
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

static inline struct rng_block rng_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    uint64_t word[4];

    rng_philox_lane(word, key, counter_low, counter_high);
    return (struct rng_block){ { (uint32_t)word[0], (uint32_t)word[1], (uint32_t)word[2],
                                 (uint32_t)word[3] } };
}

/* What a run's numbers of one purpose are keyed by. */
static inline uint64_t rng_key(uint64_t seed, enum rng_purpose purpose)
{
    return seed ^ (uint64_t)purpose << 56;
}

/* Four words for (seed, purpose, place): place_high names the thing, place_low counts within it. */
static inline struct rng_block rng_at(uint64_t seed, enum rng_purpose purpose, uint64_t place_high,
                                      uint64_t place_low)
{
    return rng_philox(rng_key(seed, purpose), place_low, place_high);
}

/* 24 bits to [0, 1). */
static inline float rng_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

/* Two words to a standard normal (Box and Muller), in double so that all libms agree after
 * rounding. */
static inline float rng_normal(uint32_t a, uint32_t b)
{
    double radius = sqrt(-2.0 * log(((double)a + 0.5) * 0x1p-32));

    return (float)(radius * cos(6.283185307179586 * (double)b * 0x1p-32));
}

/* Normals in a row: element i is that of words 2 (i % 2) and 2 (i % 2) + 1 at place_low i / 2. */
struct rng_series {
    uint64_t seed;
    enum rng_purpose purpose;
    uint64_t place_high;
};

/* rng.c: elements [first, first + n), to the bit as rng_normal gives them, many times as fast. */
void rng_normals(float *out, int64_t n, const struct rng_series *series, int64_t first);

/* FNV-1a, for naming things by text. */
static inline uint64_t rng_hash_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

#endif
