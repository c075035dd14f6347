/*
 * bpe_impl.h - what the tables and the merging of a BPE vocabulary share
 */
#ifndef TOKENIZER_BPE_BPE_IMPL_H
#define TOKENIZER_BPE_BPE_IMPL_H

#include "tokenizer/bpe/bpe.h"

#define PAIR_FREE UINT64_MAX

/* Slots of a hash table for n. */
static inline size_t table_size(int n)
{
    size_t size = 16;

    while (size < (size_t)n * 2)
        size *= 2;
    return size;
}

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline uint64_t hash_pair(uint64_t pair)
{
    uint64_t hash = pair * 0x9E3779B97F4A7C15u;

    return hash ^ hash >> 32;
}

static inline struct bpe_merge *merge_slot(const struct bpe *bpe, uint64_t pair, uint64_t hash)
{
    size_t slot = hash & bpe->merge_mask;

    while (bpe->merges[slot].pair != pair && bpe->merges[slot].pair != PAIR_FREE)
        slot = (slot + 1) & bpe->merge_mask;
    return &bpe->merges[slot];
}

/* The merge of two symbols, or NULL. */
static inline const struct bpe_merge *find_merge(const struct bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = pair_of(left, right), hash = hash_pair(pair);
    size_t bit = hash >> 20 & bpe->filter_mask;

    if (!(bpe->merge_filter[bit / 64] >> (bit % 64) & 1))
        return NULL;
    const struct bpe_merge *merge = merge_slot(bpe, pair, hash);
    return merge->pair == PAIR_FREE ? NULL : merge;
}

#endif
