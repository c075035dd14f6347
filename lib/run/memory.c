/*
 * memory.c - segments as blocks of the device, of pinned host memory, or of the file
 */
#include "run/memory.h"

#include <stdbool.h>
#include <string.h>

#include "base/num.h"

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

/* Regions of the file, one behind the other. */
static int place_in_file(struct run_memory *memory, const struct program *program,
                         const char *folder, bool is_summed, struct err *err)
{
    size_t at = 0;

    for (int s = SEGMENT_FILE_CELLS; s <= SEGMENT_FILE_SCRATCH; s++) {
        if (program->segment_bytes[s])
            memory->segment[s] = file_tier_address(at);
        at += align_up(program->segment_bytes[s], FILE_TIER_ALIGNMENT);
    }
    if (at && !folder)
        return err_set(err, ERR_CONFIG, "the program has values in a file, and no folder for it");
    return at ? file_tier_open(&memory->file, folder, at, is_summed, err) : 0;
}

int run_memory_create(struct run_memory *memory, struct device *device,
                      const struct program *program, const char *folder, bool is_summed,
                      struct err *err)
{
    *memory = (struct run_memory){ .device = device, .file = { .fd = -1, .direct_fd = -1 } };
    for (int s = 0; s < SEGMENT_FILE_CELLS; s++) {
        void *block = NULL;

        if (!program->segment_bytes[s])
            continue;
        if (allocate(device, s, program->segment_bytes[s], &block, err) < 0) {
            run_memory_release(memory);
            return err_add(err, "segment %s", segment_name((enum segment)s));
        }
        memory->segment[s] = block;
    }
    if (place_in_file(memory, program, folder, is_summed, err) < 0) {
        run_memory_release(memory);
        return -1;
    }
    return 0;
}

void run_memory_release(struct run_memory *memory)
{
    if (!memory->device)
        return;
    for (int s = 0; s < SEGMENT_FILE_CELLS; s++)
        if (memory->segment[s])
            release(memory->device, s, memory->segment[s]);
    file_tier_close(&memory->file);
    memset(memory->segment, 0, sizeof memory->segment);
    memory->device = NULL;
}
