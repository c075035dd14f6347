/*
 * memory.c - segments as mappings between guard pages
 */
#include "run/memory.h"

#include <string.h>
#include <sys/mman.h>

#include "base/num.h"
#include "base/str.h"

#define PAGE_BYTES ((size_t)4096)
#define HUGE_BYTES ((size_t)2 << 20)

static int map_segment(struct run_memory *memory, int segment, size_t n_bytes, struct err *err)
{
    size_t alignment = n_bytes >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES;
    size_t body = align_up(n_bytes, PAGE_BYTES);
    size_t whole = body + alignment + 2 * PAGE_BYTES;
    char text[32];
    unsigned char *mapped =
        mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (mapped == MAP_FAILED)
        return err_set_errno(err, ERR_DEVICE, "cannot reserve %s for segment %s",
                             str_bytes(text, sizeof text, n_bytes),
                             segment_name((enum segment)segment));
    uintptr_t at = align_up((uintptr_t)mapped + PAGE_BYTES, alignment);
    memory->mapped[segment] = mapped;
    memory->mapped_bytes[segment] = whole;
    /* The end, not the begin, lies at a guard: running over is the commoner mistake. */
    memory->segment[segment] = (unsigned char *)at + body - align_up(n_bytes, RUN_MEMORY_ALIGNMENT);
    if (mprotect((void *)at, body, PROT_READ | PROT_WRITE) < 0)
        return err_set_errno(err, ERR_DEVICE, "cannot allocate %s for segment %s",
                             str_bytes(text, sizeof text, n_bytes),
                             segment_name((enum segment)segment));
    if (n_bytes >= HUGE_BYTES)
        madvise((void *)at, body / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
    return 0;
}

int run_memory_create(struct run_memory *memory, const struct program *program, struct err *err)
{
    memset(memory, 0, sizeof *memory);
    for (int s = 0; s < N_SEGMENTS; s++) {
        if (!program->segment_bytes[s])
            continue;
        if (map_segment(memory, s, program->segment_bytes[s], err) < 0) {
            run_memory_release(memory);
            return -1;
        }
    }
    return 0;
}

void run_memory_release(struct run_memory *memory)
{
    for (int s = 0; s < N_SEGMENTS; s++)
        if (memory->mapped[s])
            munmap(memory->mapped[s], memory->mapped_bytes[s]);
    memset(memory, 0, sizeof *memory);
}
