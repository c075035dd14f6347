/*
 * memory.h - one block a segment, of exactly the planned size: of the device's memory, the host's,
 * or the rank's file
 */
#ifndef RUN_MEMORY_H
#define RUN_MEMORY_H

#include "base/err.h"
#include "device/device.h"
#include "program/program.h"
#include "run/file_tier.h"

#define RUN_MEMORY_ALIGNMENT ((size_t)64)

struct run_memory {
    struct device *device;
    unsigned char *segment[N_SEGMENTS]; /* NULL where the program has none */
    struct file_tier file;              /* segments of the file have its addresses */
};

/*
 * folder: where the file is to be, may be NULL if the program has no segment there; is_summed:
 * file_tier.h. Returns 0, or -1 and ERR_DEVICE with the segment and its size, or what
 * file_tier_open returns; nothing is left then.
 */
int run_memory_create(struct run_memory *memory, struct device *device,
                      const struct program *program, const char *folder, bool is_summed,
                      struct err *err);
/* Nothing is done if it is zeroed. */
void run_memory_release(struct run_memory *memory);

#endif
