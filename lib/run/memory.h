/*
 * memory.h - one block of host memory a segment, of exactly the planned size
 *
 * Blocks are anonymous mappings, zero at the start, with an inaccessible page on either side, so
 * that whoever leaves a segment is stopped there. Large ones ask for huge pages.
 */
#ifndef RUN_MEMORY_H
#define RUN_MEMORY_H

#include "base/err.h"
#include "program/program.h"

struct run_memory {
    unsigned char *segment[N_SEGMENTS]; /* NULL where the program has none */
    void *mapped[N_SEGMENTS];
    size_t mapped_bytes[N_SEGMENTS];
};

/* Returns 0, or -1 and ERR_DEVICE with the segment and its size; nothing is left then. */
int run_memory_create(struct run_memory *memory, const struct program *program, struct err *err);
void run_memory_release(struct run_memory *memory);

#endif
