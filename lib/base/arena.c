/*
 * arena.c - a list of blocks, each filled from the front
 */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define ARENA_BLOCK_BYTES ((size_t)64 << 10)
#define ARENA_ALIGN 16

struct arena_block {
    struct arena_block *next;
    size_t size_bytes;
    size_t used_bytes;
    size_t unused; /* keeps data aligned */
    unsigned char data[];
};

void arena_release(struct arena *arena)
{
    struct arena_block *block = arena->blocks;

    while (block) {
        struct arena_block *next = block->next;
        free(block);
        block = next;
    }
    *arena = (struct arena){ 0 };
}

static struct arena_block *arena_add_block(struct arena *arena, size_t n_bytes)
{
    size_t size = n_bytes > ARENA_BLOCK_BYTES ? n_bytes : ARENA_BLOCK_BYTES;
    struct arena_block *block = calloc(1, sizeof *block + size);

    if (!block) {
        fprintf(stderr, "lmtrain: out of host memory (%zu bytes)\n", size);
        exit(ERR_DEVICE);
    }
    block->size_bytes = size;
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
