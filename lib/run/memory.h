/*
 * memory.h - one block of host memory a segment, of exactly the planned size
 *
 * Blocks are anonymous mappings, zero at the start, with an inaccessible page on either side:
 * whoever runs over a segment's end (rounded up to 64 bytes) is stopped at the first byte, whoever
 * runs below its begin within a page. Large ones ask for huge pages.
 */
#ifndef RUN_MEMORY_H
#define RUN_MEMORY_H

#include "base/err.h"
#include "program/program.h"

#define RUN_MEMORY_ALIGNMENT ((size_t)64)

struct run_memory {
    unsigned char *segment[N_SEGMENTS]; /* NULL where the program has none */
    void *mapped[N_SEGMENTS];
    size_t mapped_bytes[N_SEGMENTS];
};

/* Returns 0, or -1 and ERR_DEVICE with the segment and its size; nothing is left then. */
int run_memory_create(struct run_memory *memory, const struct program *program, struct err *err);
void run_memory_release(struct run_memory *memory);

#endif
