/*
 * rounding.h - random numbers of stochastic rounding (ops.h includes this)
 */
#ifndef OPS_ROUNDING_H
#define OPS_ROUNDING_H

#include <stdint.h>

/*
 * Rounding to bf16 by chance: up with the probability of what would be cut off, by adding 16 random
 * bits below the bf16's and cutting off. Mean is the number itself; NaN and infinity stay, 0 stays.
 *
 * The bits are those of rng_at(seed, RNG_ROUNDING, update | part << 32, place << 11 | e / 2) for
 * elements e and e + 1, e even, of a block of OPS_NORM_BLOCK whose place is this: word 0 is the
 * master's, 1 m's, 2 v's; its low half element e's, its high half e + 1's. A parameter's blocks
 * have places from ops_rng_site on, in their order: 31 bits of its name's hash above 22 of the
 * number.
 */
#define OPS_RNG_SITE_BLOCKS (INT64_C(1) << 22) /* that a parameter may have; places fit in fp64 */

static inline uint64_t ops_rng_site(uint64_t name_hash)
{
    return (name_hash ^ name_hash >> 31) % (UINT64_C(1) << 31) * (uint64_t)OPS_RNG_SITE_BLOCKS;
}

static inline uint64_t ops_rounding_low(uint64_t place, int64_t element)
{
    return place << 11 | (uint64_t)element / 2;
}

static inline uint64_t ops_rounding_high(uint64_t update, uint64_t part)
{
    return update | part << 32;
}

#endif
