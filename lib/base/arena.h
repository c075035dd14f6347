/*
 * arena.h - memory that is freed all at once
 *
 * An arena hands out zeroed host memory and takes it back in one go. It serves a lifetime (the
 * process, one compile, one file) and so there is no single free. It is for descriptions: names,
 * lists, tables. Tensors live in device segments sized by the plan. Not safe to share between
 * threads.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

struct arena_block;

/* All zero is an empty one. */
struct arena {
    struct arena_block *blocks; /* newest first */
    size_t used_bytes;          /* handed out in all */
};

/* Free everything; the arena is empty again and may be used on. */
void arena_release(struct arena *arena);

/*
 * Zeroed bytes aligned for any type; n_bytes 0 gives a valid pointer. Never NULL: a host without
 * memory for descriptions ends the process.
 */
void *arena_alloc(struct arena *arena, size_t n_bytes);

#define arena_array(arena, type, n) ((type *)arena_alloc_array(arena, sizeof(type), (size_t)(n)))
#define arena_new(arena, type) ((type *)arena_alloc(arena, sizeof(type)))

/* arena_alloc of item_bytes * n, checked against overflow. */
void *arena_alloc_array(struct arena *arena, size_t item_bytes, size_t n);

/*
 * Grow an array that lives in the arena: if *capacity < needed, a copy of at least needed items is
 * made (doubling) and returned, else items itself. The old copy stays until the arena goes.
 */
void *arena_grow(struct arena *arena, void *items, size_t item_bytes, int *capacity, int needed);

char *arena_strdup(struct arena *arena, const char *text);
char *arena_strndup(struct arena *arena, const char *text, size_t length);
char *arena_printf(struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
