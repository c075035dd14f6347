/*
 * host.c - this machine's processor and memory as a device: all is done on return
 *
 * Blocks are anonymous mappings, zero at the start, with an inaccessible page on either side:
 * an access beyond a block's end (rounded up to 64 bytes) faults at the first byte, one below its
 * begin within a page. Large ones ask for huge pages.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/num.h"
#include "base/str.h"
#include "device/device.h"

#define PAGE_BYTES ((size_t)4096)
#define HUGE_BYTES ((size_t)2 << 20)
#define ALIGNMENT ((size_t)64)

/* What lies two pages below a block's first page: the page between is a guard. */
struct block_header {
    void *mapped;
    size_t mapped_bytes;
};

static struct block_header *header_of(void *memory)
{
    uintptr_t page = (uintptr_t)memory / PAGE_BYTES * PAGE_BYTES;

    return (struct block_header *)(page - 2 * PAGE_BYTES);
}

static int host_allocate(struct device *device, size_t n_bytes, void **memory, struct err *err)
{
    size_t alignment = n_bytes >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES;
    size_t body = align_up(n_bytes, PAGE_BYTES);
    size_t whole = body + alignment + 3 * PAGE_BYTES;
    char text[32];
    unsigned char *mapped =
        mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    (void)device;
    CHECK(n_bytes);
    if (mapped == MAP_FAILED)
        return err_set_errno(err, ERR_DEVICE, "cannot reserve %s",
                             str_bytes(text, sizeof text, n_bytes));
    uintptr_t at = align_up((uintptr_t)mapped + 2 * PAGE_BYTES, alignment);
    struct block_header *header = (struct block_header *)(at - 2 * PAGE_BYTES);
    if (mprotect((void *)at, body, PROT_READ | PROT_WRITE) < 0 ||
        mprotect(header, PAGE_BYTES, PROT_READ | PROT_WRITE) < 0) {
        err_set_errno(err, ERR_DEVICE, "cannot allocate %s", str_bytes(text, sizeof text, n_bytes));
        munmap(mapped, whole);
        return -1;
    }
    *header = (struct block_header){ mapped, whole };
    if (n_bytes >= HUGE_BYTES)
        madvise((void *)at, body / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
    /* The end, not the begin, lies at a guard: running over is the commoner mistake. */
    *memory = (unsigned char *)at + body - align_up(n_bytes, ALIGNMENT);
    return 0;
}

static void host_release(struct device *device, void *memory)
{
    (void)device;
    if (!memory)
        return;
    struct block_header header = *header_of(memory);
    munmap(header.mapped, header.mapped_bytes);
}

static void host_copy(struct device *device, int queue, void *to, const void *from, size_t n_bytes)
{
    (void)device;
    (void)queue;
    memmove(to, from, n_bytes);
}

static void host_fill(struct device *device, int queue, void *to, int byte, size_t n_bytes)
{
    (void)device;
    (void)queue;
    memset(to, byte, n_bytes);
}

static int host_wait(struct device *device, int queue, struct err *err)
{
    (void)device;
    (void)queue;
    (void)err;
    return 0;
}

static struct device_memory host_memory(struct device *device)
{
    (void)device;
    return (struct device_memory){ 0, 0 };
}

static const struct device_ops host_ops = {
    .name = "cpu",
    .allocate = host_allocate,
    .release = host_release,
    .allocate_pinned = host_allocate,
    .release_pinned = host_release,
    .copy = host_copy,
    .fill = host_fill,
    .wait = host_wait,
    .memory = host_memory,
};

static struct device host = { &host_ops, "this machine's CPU", 0 };

struct device *device_host(void)
{
    return &host;
}
