/*
 * memory.c - segments as blocks of the device, or of pinned host memory
 */
#include "run/memory.h"

#include <stdbool.h>
#include <string.h>

static bool is_pinned(int segment)
{
    return segment_space((enum segment)segment) == SPACE_HOST;
}

static int allocate(struct device *device, int segment, size_t n_bytes, void **block,
                    struct err *err)
{
    return is_pinned(segment) ? device->ops->allocate_pinned(device, n_bytes, block, err)
                              : device->ops->allocate(device, n_bytes, block, err);
}

static void release(struct device *device, int segment, void *block)
{
    if (is_pinned(segment))
        device->ops->release_pinned(device, block);
    else
        device->ops->release(device, block);
}

int run_memory_create(struct run_memory *memory, struct device *device,
                      const struct program *program, struct err *err)
{
    memset(memory, 0, sizeof *memory);
    memory->device = device;
    for (int s = 0; s < N_SEGMENTS; s++) {
        void *block = NULL;

        if (!program->segment_bytes[s])
            continue;
        if (allocate(device, s, program->segment_bytes[s], &block, err) < 0) {
            run_memory_release(memory);
            return err_add(err, "segment %s", segment_name((enum segment)s));
        }
        memory->segment[s] = block;
    }
    return 0;
}

void run_memory_release(struct run_memory *memory)
{
    for (int s = 0; s < N_SEGMENTS; s++)
        if (memory->segment[s])
            release(memory->device, s, memory->segment[s]);
    memset(memory, 0, sizeof *memory);
}
