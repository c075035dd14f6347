/*
 * python_random.c - MT19937 and what random.py makes of it
 */
#include "eval/python_random.h"

#include "base/err.h"

#define SHIFT_WORDS 397

static void init(struct python_random *r, uint32_t seed)
{
    r->state[0] = seed;
    for (uint32_t i = 1; i < PYTHON_RANDOM_WORDS; i++)
        r->state[i] = 1812433253U * (r->state[i - 1] ^ r->state[i - 1] >> 30) + i;
    r->at = PYTHON_RANDOM_WORDS;
}

/* init_by_array of the seed's 32-bit words, the least first */
void python_random_seed(struct python_random *r, uint64_t seed)
{
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    uint32_t n_key = key[1] ? 2 : 1, i = 1, j = 0;
    uint32_t *s = r->state;

    init(r, 19650218U);
    for (int k = 0; k < PYTHON_RANDOM_WORDS; k++) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1664525U) + key[j] + j;
        if (++i == PYTHON_RANDOM_WORDS) {
            s[0] = s[PYTHON_RANDOM_WORDS - 1];
            i = 1;
        }
        j = (j + 1) % n_key;
    }
    for (int k = 0; k < PYTHON_RANDOM_WORDS - 1; k++) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1566083941U) - i;
        if (++i == PYTHON_RANDOM_WORDS) {
            s[0] = s[PYTHON_RANDOM_WORDS - 1];
            i = 1;
        }
    }
    s[0] = 0x80000000U;
}

static void refill(struct python_random *r)
{
    uint32_t *s = r->state;

    for (int i = 0; i < PYTHON_RANDOM_WORDS; i++) {
        uint32_t y = (s[i] & 0x80000000U) | (s[(i + 1) % PYTHON_RANDOM_WORDS] & 0x7fffffffU);

        s[i] = s[(i + SHIFT_WORDS) % PYTHON_RANDOM_WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfU : 0);
    }
    r->at = 0;
}

static uint32_t next_word(struct python_random *r)
{
    if (r->at == PYTHON_RANDOM_WORDS)
        refill(r);
    uint32_t y = r->state[r->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680U;
    y ^= y << 15 & 0xefc60000U;
    return y ^ y >> 18;
}

uint32_t python_random_bits(struct python_random *r, int n_bits)
{
    CHECK(n_bits >= 1 && n_bits <= 32);
    return next_word(r) >> (32 - n_bits);
}

uint32_t python_random_below(struct python_random *r, uint32_t n)
{
    CHECK(n > 0);
    int n_bits = 32 - __builtin_clz(n);
    uint32_t drawn;

    do
        drawn = python_random_bits(r, n_bits);
    while (drawn >= n);
    return drawn;
}

/* Up to this many are sampled from a list that shrinks, more with a set of those taken already. */
static uint64_t list_limit(uint32_t k)
{
    uint64_t limit = 21, power = 1;

    if (k <= 5)
        return limit;
    while (power < 3 * (uint64_t)k) /* 4 ** ceil(log(3 k, 4)) */
        power *= 4;
    return limit + power;
}

void python_random_sample(struct python_random *r, uint32_t n, uint32_t k, uint32_t *chosen,
                          uint32_t *pool)
{
    CHECK(k <= n);
    for (uint32_t i = 0; i < n; i++)
        pool[i] = n <= list_limit(k) ? i : 0;
    for (uint32_t i = 0; i < k && n <= list_limit(k); i++) {
        uint32_t j = python_random_below(r, n - i);

        chosen[i] = pool[j];
        pool[j] = pool[n - i - 1];
    }
    for (uint32_t i = 0; i < k && n > list_limit(k); i++) {
        uint32_t j;

        do
            j = python_random_below(r, n);
        while (pool[j]);
        pool[j] = 1;
        chosen[i] = j;
    }
}
