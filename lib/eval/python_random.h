/*
 * python_random.h - the numbers of CPython's random.Random, to the bit
 *
 * Published evaluations choose their few-shot examples by random.Random(seed).sample; comparable
 * scores need the same examples. Mersenne Twister MT19937 (Matsumoto & Nishimura 1998), seeded, cut
 * down and sampled as CPython 3's Lib/random.py and _randommodule.c do.
 */
#ifndef EVAL_PYTHON_RANDOM_H
#define EVAL_PYTHON_RANDOM_H

#include <stdint.h>

#define PYTHON_RANDOM_WORDS 624

struct python_random {
    uint32_t state[PYTHON_RANDOM_WORDS];
    int at; /* words of the state that were used */
};

/* random.Random(seed) */
void python_random_seed(struct python_random *r, uint64_t seed);

/* getrandbits(n_bits), 1 .. 32 */
uint32_t python_random_bits(struct python_random *r, int n_bits);

/* randrange(n), n >= 1 */
uint32_t python_random_below(struct python_random *r, uint32_t n);

/*
 * sample(range(n), k): chosen[k], 0 <= k <= n. pool: room for n numbers, which it scratches in.
 */
void python_random_sample(struct python_random *r, uint32_t n, uint32_t k, uint32_t *chosen,
                          uint32_t *pool);

#endif
