/*
 * bitset.h - a set of small numbers: values of an enum, items of a list
 *
 * A set of zeros is empty. Members are 0 .. BITSET_MAX - 1, which is more than any enum here has; a
 * user of a set of an enum asserts that at compile time.
 */
#ifndef BASE_BITSET_H
#define BASE_BITSET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define BITSET_MAX 256

struct bitset {
    uint64_t words[BITSET_MAX / 64];
};

static inline void bitset_add(struct bitset *set, int member)
{
    CHECK(0 <= member && member < BITSET_MAX);
    set->words[member / 64] |= UINT64_C(1) << member % 64;
}

static inline int bitset_has(const struct bitset *set, int member)
{
    CHECK(0 <= member && member < BITSET_MAX);
    return (int)(set->words[member / 64] >> member % 64 & 1);
}

static inline bool bitset_is_empty(const struct bitset *set)
{
    uint64_t any = 0;

    for (int i = 0; i < BITSET_MAX / 64; i++)
        any |= set->words[i];
    return !any;
}

#endif
