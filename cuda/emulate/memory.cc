/*
 * memory.cc - the emulated GPU's memory: device and pinned allocations, copies between them
 */
#include "emulate_impl.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <map>
#include <memory>
#include <mutex>

/* Ranks may be threads of one process: the maps are theirs together. */
static std::mutex *map_lock = new std::mutex();

/* Device memory ends where a page ends that nobody may touch: the last element's neighbour is a
 * fault. Sizes are kept to give it back, and to tell pinned host memory from other. */
struct block {
    void *map;
    size_t whole, n_bytes;
};
static std::map<uintptr_t, block> *blocks = new std::map<uintptr_t, block>();
static std::map<uintptr_t, size_t> *pinned = new std::map<uintptr_t, size_t>();
static size_t allocated;

/* For a handler of signals: where the lock is held nothing is known. */
bool emulate_is_behind_block(const void *at, size_t *beyond, size_t *n_bytes)
{
    std::unique_lock<std::mutex> held(*map_lock, std::try_to_lock);
    uintptr_t byte = (uintptr_t)at;

    if (!held)
        return false;
    auto after = blocks->upper_bound(byte);
    if (after == blocks->begin())
        return false;
    const std::pair<const uintptr_t, block> &before = *std::prev(after);
    if (byte >= (uintptr_t)before.second.map + before.second.whole)
        return false;
    *beyond = byte - before.first;
    *n_bytes = before.second.n_bytes;
    return true;
}

/* $LMTRAIN_EMULATE_MEMORY_GIB: the device's memory (8). */
size_t emulate_memory_bytes(void)
{
    const char *text = getenv("LMTRAIN_EMULATE_MEMORY_GIB");

    return (size_t)(text ? atoi(text) : 8) << 30;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    if (emulate_refuse_in_capture() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    std::lock_guard<std::mutex> held(*map_lock);

    *total_bytes = emulate_memory_bytes();
    *free_bytes = *total_bytes - allocated;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t n_bytes)
{
    if (emulate_refuse_in_capture() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    std::lock_guard<std::mutex> held(*map_lock);
    size_t body = (n_bytes + 4095) / 4096 * 4096, rounded = (n_bytes + 255) / 256 * 256;
    size_t whole = body + 2 * 4096;

    if (whole + allocated > emulate_memory_bytes())
        return emulate_error(cudaErrorMemoryAllocation);
    unsigned char *map = (unsigned char *)mmap(NULL, whole, PROT_NONE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || mprotect(map + 4096, body, PROT_READ | PROT_WRITE))
        return emulate_error(cudaErrorMemoryAllocation);
    memset(map + 4096, 0xcd, body);
    *memory = map + 4096 + body - rounded;
    (*blocks)[(uintptr_t)*memory] = { map, whole, rounded };
    allocated += whole;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    if (!memory)
        return cudaSuccess;
    if (emulate_refuse_in_capture() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    emulate_settle();
    std::lock_guard<std::mutex> held(*map_lock);
    auto found = blocks->find((uintptr_t)memory);
    if (found == blocks->end())
        return emulate_error(cudaErrorInvalidValue);
    munmap(found->second.map, found->second.whole);
    allocated -= found->second.whole;
    blocks->erase(found);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t n_bytes)
{
    if (emulate_refuse_in_capture() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    std::lock_guard<std::mutex> held(*map_lock);

    *memory = aligned_alloc(4096, (n_bytes + 4095) / 4096 * 4096);
    if (!*memory)
        return emulate_error(cudaErrorMemoryAllocation);
    (*pinned)[(uintptr_t)*memory] = n_bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    if (emulate_refuse_in_capture() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    emulate_settle();
    std::lock_guard<std::mutex> held(*map_lock);
    pinned->erase((uintptr_t)memory);
    free(memory);
    return cudaSuccess;
}

/* Host memory that is not pinned: copies take or fill it before they return. */
static bool is_pageable(const void *memory)
{
    std::lock_guard<std::mutex> held(*map_lock);
    uintptr_t at = (uintptr_t)memory;
    auto block = blocks->upper_bound(at);
    auto page = pinned->upper_bound(at);

    if (block != blocks->begin() && at < std::prev(block)->first + std::prev(block)->second.n_bytes)
        return false;
    return page == pinned->begin() || at >= std::prev(page)->first + std::prev(page)->second;
}

static void copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height)
{
    for (size_t row = 0; row < height; row++)
        memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream)
{
    bool captured = emulate_is_capturing(stream);
    std::shared_ptr<std::vector<char>> taken;
    cudaError_t error;

    if (!width || !height)
        return cudaSuccess;
    if (is_pageable(from) && !captured)
        taken = std::make_shared<std::vector<char>>(
            (const char *)from, (const char *)from + (height - 1) * from_pitch + width);
    error = emulate_enqueue(stream, [=] {
        copy_rows(to, to_pitch, taken ? taken->data() : from, from_pitch, width, height);
    });
    return error == cudaSuccess && is_pageable(to) && !captured ? cudaStreamSynchronize(stream)
                                                                : error;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy2DAsync(to, n_bytes, from, n_bytes, n_bytes, 1, kind, stream);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t n_bytes, cudaStream_t stream)
{
    return emulate_enqueue(stream, [=] { memset(to, byte, n_bytes); });
}
