/*
 * pack_bins.c - lists of bins by the room left in them, and a tree of bits over the lists
 *
 * The bits say which lists hold a bin; a word of a level says which words of the level below have a
 * bit set. The least room that is enough is so found in a step or two a level, whatever the size.
 */
#include "data/instruct/pack_bins.h"

#include <stdlib.h>
#include <string.h>

#define LEVELS_MAX 6 /* 64^6 is more than any int32 */
#define NO_BIN (-1)

struct bins {
    uint64_t *levels[LEVELS_MAX];
    int n_levels;
    int32_t *first; /* [room + 1] newest bin with so much room left, or NO_BIN */
    int32_t *next;  /* [n] the bin behind it in its list */
};

static void bits_set(struct bins *b, int32_t at)
{
    for (int level = 0; level < b->n_levels; level++, at >>= 6)
        b->levels[level][at >> 6] |= (uint64_t)1 << (at & 63);
}

static void bits_clear(struct bins *b, int32_t at)
{
    for (int level = 0; level < b->n_levels; level++, at >>= 6) {
        b->levels[level][at >> 6] &= ~((uint64_t)1 << (at & 63));
        if (b->levels[level][at >> 6])
            return;
    }
}

/* The least set bit from `from` on, or -1. limit: bits there are. */
static int32_t bits_next(const struct bins *b, int32_t from, int32_t limit)
{
    int level = 0;
    int64_t at = from, n = limit;

    /* Up, until a word has a bit at or behind `at` ... */
    for (; level < b->n_levels; level++, at = (at >> 6) + 1, n = (n + 63) >> 6) {
        if (at >= n)
            return -1;
        uint64_t word = b->levels[level][at >> 6] >> (at & 63);
        if (word) {
            at += __builtin_ctzll(word);
            break;
        }
    }
    if (level == b->n_levels)
        return -1;
    /* ... and down to the first below it. */
    for (; level > 0; level--)
        at = at << 6 | __builtin_ctzll(b->levels[level - 1][at]);
    return (int32_t)at;
}

static void release(struct bins *b)
{
    for (int level = 0; level < b->n_levels; level++)
        free(b->levels[level]);
    free(b->first);
    free(b->next);
}

static int allocate(struct bins *b, int64_t n, int32_t room)
{
    int64_t n_bits = (int64_t)room + 1;

    do {
        n_bits = (n_bits + 63) >> 6;
        b->levels[b->n_levels] = calloc((size_t)n_bits, sizeof **b->levels);
        if (!b->levels[b->n_levels++])
            return -1;
    } while (n_bits > 1);
    b->first = malloc(sizeof *b->first * ((size_t)room + 1));
    b->next = malloc(sizeof *b->next * (size_t)n);
    if (!b->first || !b->next)
        return -1;
    memset(b->first, 0xff, sizeof *b->first * ((size_t)room + 1));
    return 0;
}

/* The things from the longest on; of equals, the earlier first. */
static int32_t *by_size(const int32_t *sizes, int64_t n, int32_t room)
{
    int32_t *order = malloc(sizeof *order * (size_t)n);
    int64_t *at = calloc((size_t)room + 2, sizeof *at);

    if (order && at) {
        for (int64_t i = 0; i < n; i++)
            at[room - sizes[i] + 1]++;
        for (int32_t s = 0; s <= room; s++)
            at[s + 1] += at[s];
        for (int64_t i = 0; i < n; i++)
            order[at[room - sizes[i]]++] = (int32_t)i;
        free(at);
        return order;
    }
    free(order);
    free(at);
    return NULL;
}

static void push(struct bins *b, int32_t bin, int32_t left)
{
    b->next[bin] = b->first[left];
    b->first[left] = bin;
    bits_set(b, left);
}

static int32_t pop(struct bins *b, int32_t left)
{
    int32_t bin = b->first[left];

    b->first[left] = b->next[bin];
    if (b->first[left] == NO_BIN)
        bits_clear(b, left);
    return bin;
}

int64_t pack_bins(const int32_t *sizes, int64_t n, int32_t room, int32_t *bin_of, struct err *err)
{
    struct bins b = { 0 };
    int32_t n_bins = 0, *order = NULL;

    CHECK(room >= 1);
    CHECK(n <= INT32_MAX);
    if (n == 0)
        return 0;
    if (allocate(&b, n, room) < 0 || !(order = by_size(sizes, n, room))) {
        release(&b);
        return err_set(err, ERR_DEVICE, "out of host memory to pack %lld samples", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t thing = order[i], size = sizes[thing];

        CHECK(size >= 1);
        CHECK(size <= room);
        int32_t left = bits_next(&b, size, room + 1), bin = left < 0 ? n_bins++ : pop(&b, left);
        bin_of[thing] = bin;
        push(&b, bin, (left < 0 ? room : left) - size);
    }
    free(order);
    release(&b);
    return n_bins;
}
