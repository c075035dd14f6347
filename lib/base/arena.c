/*
 * arena.c - a list of blocks, each filled from the front
 *
 * The programs of a large job are tens of MB: where an arena grows beyond what the heap gives
 * cheaply its blocks are huge pages, which come zeroed several times faster than as many small
 * ones (a third of the time of `plan` was page faults).
 */
#include "base/arena.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"

#define ARENA_BLOCK_BYTES ((size_t)64 << 10)
#define ARENA_ALIGN 16
#define HUGE_BYTES ((size_t)2 << 20)
#define HUGE_FROM_BYTES ((size_t)192 << 10) /* in use already */

/* Who watches the heap is to see arenas' blocks. */
#if defined(__SANITIZE_ADDRESS__)
#define HAS_HUGE_BLOCKS 0
#elif defined(__has_feature)
#define HAS_HUGE_BLOCKS (!__has_feature(address_sanitizer))
#else
#define HAS_HUGE_BLOCKS 1
#endif

struct arena_block {
    struct arena_block *next;
    size_t size_bytes;
    size_t used_bytes;
    size_t mapped_bytes; /* from here on; 0: it is of the heap */
    unsigned char data[];
};
_Static_assert(sizeof(struct arena_block) % ARENA_ALIGN == 0, "data is aligned");

void arena_release(struct arena *arena)
{
    struct arena_block *block = arena->blocks;

    while (block) {
        struct arena_block *next = block->next;
        if (block->mapped_bytes)
            munmap(block, block->mapped_bytes);
        else
            free(block);
        block = next;
    }
    *arena = (struct arena){ 0 };
}

/* Zeroed; NULL if there is no room. Huge pages begin at multiples of their size. */
static struct arena_block *map_block(size_t n_bytes)
{
    size_t size = (sizeof(struct arena_block) + n_bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    unsigned char *all = mmap(NULL, size + HUGE_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (all == MAP_FAILED)
        return NULL;
    size_t before = (HUGE_BYTES - (uintptr_t)all % HUGE_BYTES) % HUGE_BYTES;
    struct arena_block *block = (struct arena_block *)(void *)(all + before);
    if (before)
        munmap(all, before);
    munmap(all + before + size, HUGE_BYTES - before);
    madvise(block, size, MADV_HUGEPAGE);
    block->mapped_bytes = size;
    block->size_bytes = size - sizeof *block;
    return block;
}

static struct arena_block *allocate_block(size_t n_bytes)
{
    size_t size = n_bytes > ARENA_BLOCK_BYTES ? n_bytes : ARENA_BLOCK_BYTES;
    struct arena_block *block = calloc(1, sizeof *block + size);

    if (block)
        block->size_bytes = size;
    return block;
}

static struct arena_block *arena_add_block(struct arena *arena, size_t n_bytes)
{
    bool is_huge = HAS_HUGE_BLOCKS && arena->used_bytes + n_bytes >= HUGE_FROM_BYTES &&
                   n_bytes <= SIZE_MAX / 2;
    struct arena_block *block = is_huge ? map_block(n_bytes) : allocate_block(n_bytes);

    if (!block) {
        fprintf(stderr, "lmtrain: out of host memory (%zu bytes)\n", n_bytes);
        exit(ERR_DEVICE);
    }
    block->next = arena->blocks;
    arena->blocks = block;
    return block;
}

void *arena_alloc(struct arena *arena, size_t n_bytes)
{
    CHECK(n_bytes < SIZE_MAX - ARENA_ALIGN - sizeof(struct arena_block));
    size_t rounded = (n_bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    struct arena_block *block = arena->blocks;

    if (!block || block->size_bytes - block->used_bytes < rounded)
        block = arena_add_block(arena, rounded);
    void *result = block->data + block->used_bytes;
    block->used_bytes += rounded;
    arena->used_bytes += rounded;
    return result;
}

void *arena_alloc_array(struct arena *arena, size_t item_bytes, size_t n)
{
    CHECK(item_bytes == 0 || n <= SIZE_MAX / 2 / item_bytes);
    return arena_alloc(arena, item_bytes * n);
}

void *arena_grow(struct arena *arena, void *items, size_t item_bytes, int *capacity, int needed)
{
    if (needed <= *capacity)
        return items;
    int grown = *capacity ? *capacity : 8;
    while (grown < needed) {
        CHECK(grown < (1 << 29));
        grown *= 2;
    }
    void *copy = arena_alloc_array(arena, item_bytes, (size_t)grown);
    if (*capacity)
        memcpy(copy, items, item_bytes * (size_t)*capacity);
    *capacity = grown;
    return copy;
}

char *arena_strndup(struct arena *arena, const char *text, size_t length)
{
    char *copy = arena_alloc(arena, length + 1);

    memcpy(copy, text, length);
    return copy;
}

char *arena_strdup(struct arena *arena, const char *text)
{
    return arena_strndup(arena, text, strlen(text));
}

char *arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args, again;

    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(length >= 0);
    char *text = arena_alloc(arena, (size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}
