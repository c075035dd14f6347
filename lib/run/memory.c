/*
 * memory.c - segments as blocks of the device
 */
#include "run/memory.h"

#include <string.h>

int run_memory_create(struct run_memory *memory, struct device *device,
                      const struct program *program, struct err *err)
{
    memset(memory, 0, sizeof *memory);
    memory->device = device;
    for (int s = 0; s < N_SEGMENTS; s++) {
        void *block = NULL;

        if (!program->segment_bytes[s])
            continue;
        if (device->ops->allocate(device, program->segment_bytes[s], &block, err) < 0) {
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
            memory->device->ops->release(memory->device, memory->segment[s]);
    memset(memory, 0, sizeof *memory);
}
