/*
 * permute.h - a shuffle of 0..n-1 without a table
 *
 * A Feistel network over the least square power of four that holds n, walked until it lands inside
 * (Black, Rogaway: "Ciphers with arbitrary finite domains", CT-RSA 2002), with Philox as its round
 * function. Any element of an epoch's order is so known at once, at any size of data, and needs no
 * memory.
 */
#ifndef DATA_STREAM_PERMUTE_H
#define DATA_STREAM_PERMUTE_H

#include <stdint.h>

/* Which shuffle: two that differ in any field are independent. */
struct permutation {
    uint64_t seed;
    int64_t epoch;
    int dataset;
    int64_t n; /* 1..2^62 */
};

/* The place of item i (0..n-1) in the shuffle; for fixed p a bijection of 0..n-1. */
int64_t permute(const struct permutation *p, int64_t i);

#endif
