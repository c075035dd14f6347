/*
 * memory.h - one block a segment, of exactly the planned size, of the device's memory or the host's
 */
#ifndef RUN_MEMORY_H
#define RUN_MEMORY_H

#include "base/err.h"
#include "device/device.h"
#include "program/program.h"

#define RUN_MEMORY_ALIGNMENT ((size_t)64)

struct run_memory {
    struct device *device;
    unsigned char *segment[N_SEGMENTS]; /* NULL where the program has none */
};

/* Returns 0, or -1 and ERR_DEVICE with the segment and its size; nothing is left then. */
int run_memory_create(struct run_memory *memory, struct device *device,
                      const struct program *program, struct err *err);
void run_memory_release(struct run_memory *memory);

#endif
