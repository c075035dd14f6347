/*
 * preflight_memory.c - patterns written to free memory and read again
 *
 * A word's pattern is a function of its address and of the pass: its own offset (which finds
 * address lines), the offset's complement, checkerboards, then walking ones and zeros. All of the
 * memory is written before any of it is read, so that caches hold little of it. The kernel gives
 * the pages of the host; a GPU's memory is filled from the host, and copied back.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/num.h"
#include "train/available_memory.h"
#include "train/preflight_impl.h"

#define TILE_BYTES ((size_t)1 << 20)
#define TILE_WORDS (TILE_BYTES / sizeof(uint64_t))
#define CHUNK_BYTES ((size_t)32 << 20) /* of a GPU's memory that passes through the host at once */
#define LEAST_BYTES ((size_t)64 << 20)
#define QUICK_BYTES ((size_t)1 << 30)
#define GPU_MARGIN_BYTES ((size_t)512 << 20) /* for the driver */
#define FULL_SECONDS 60.0                    /* of a test, after which there are no more passes */
static const double quick_share = 0.05, full_share = 0.5;
enum { N_LEAST_PASSES = 2, N_PASSES = 4 + 2 * 64 };

/* Memory under test, or the part of it that is in the host's buffer. */
struct memory_pass {
    struct preflight_check *check;
    double end; /* of writing at first: what is not written by then is not tested */
    uint64_t *words;
    size_t base_bytes; /* offset of words in what is tested */
    int pass;
    struct preflight_errors *errors;
    pthread_mutex_t lock;
};

static inline uint64_t pattern(int pass, uint64_t offset)
{
    uint64_t word = offset / sizeof(uint64_t);

    switch (pass) {
    case 0:
        return offset;
    case 1:
        return ~offset;
    case 2:
        return word & 1 ? 0xaaaaaaaaaaaaaaaau : 0x5555555555555555u;
    case 3:
        return word & 1 ? 0x5555555555555555u : 0xaaaaaaaaaaaaaaaau;
    }
    uint64_t one = (uint64_t)1 << ((word + (uint64_t)(pass - 4) / 2) & 63);
    return pass & 1 ? ~one : one;
}

static void write_tile(void *context, int64_t tile, int thread)
{
    const struct memory_pass *m = context;
    size_t at = (size_t)tile * TILE_BYTES;
    uint64_t *words = m->words + (size_t)tile * TILE_WORDS;

    (void)thread;
    preflight_beat(m->check);
    for (size_t i = 0; i < TILE_WORDS && !preflight_is_stopped(); i += 512)
        for (size_t k = i; k < i + 512; k++)
            words[k] = pattern(m->pass, m->base_bytes + at + k * sizeof *words);
}

static void note_word(struct memory_pass *m, size_t at, uint64_t bits)
{
    pthread_mutex_lock(&m->lock);
    if (!m->errors->n_memory++ || at < m->errors->memory_at) {
        m->errors->memory_at = at;
        m->errors->memory_bits = bits;
    }
    pthread_mutex_unlock(&m->lock);
}

static void read_tile(void *context, int64_t tile, int thread)
{
    struct memory_pass *m = context;
    size_t first = m->base_bytes + (size_t)tile * TILE_BYTES;
    const uint64_t *words = m->words + (size_t)tile * TILE_WORDS;

    (void)thread;
    preflight_beat(m->check);
    for (size_t i = 0; i < TILE_WORDS && !preflight_is_stopped(); i += 512) {
        uint64_t any = 0;

        for (size_t k = i; k < i + 512; k++)
            any |= words[k] ^ pattern(m->pass, first + k * sizeof *words);
        for (size_t k = i; k < i + 512 && any; k++) {
            uint64_t bits = words[k] ^ pattern(m->pass, first + k * sizeof *words);

            if (bits)
                note_word(m, first + k * sizeof *words, bits);
        }
    }
}

/* ---- the host ---- */

static int64_t n_tiles(size_t n_bytes)
{
    return (int64_t)(n_bytes / TILE_BYTES);
}

/* As much of n_bytes as there is; NULL: less than is worth a test. */
static void *map_memory(size_t *n_bytes)
{
    for (; *n_bytes >= LEAST_BYTES; *n_bytes /= 2) {
        *n_bytes -= *n_bytes % TILE_BYTES;
        void *memory = mmap(NULL, *n_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            continue;
        madvise(memory, *n_bytes, MADV_HUGEPAGE);
        return memory;
    }
    return NULL;
}

/* Write the first pass until it is time to read. Returns the bytes written. */
static size_t write_first(struct memory_pass *m, size_t n_bytes)
{
    struct memory_pass part = *m;
    size_t at = 0;

    while (at < n_bytes && (!at || clock_seconds() < m->end)) {
        size_t n = n_bytes - at < CHUNK_BYTES ? n_bytes - at : CHUNK_BYTES;

        part.words = m->words + at / sizeof *m->words;
        part.base_bytes = at;
        pool_run(m->check->engine->pool, n_tiles(n), write_tile, &part);
        at += n;
    }
    return at;
}

static void pass_host(struct memory_pass *m, size_t *n_bytes)
{
    struct pool *pool = m->check->engine->pool;

    if (m->pass == 0)
        *n_bytes = write_first(m, *n_bytes);
    else
        pool_run(pool, n_tiles(*n_bytes), write_tile, m);
    if (m->pass == 0 && fault_at("preflight:memory", -1) == FAULT_FLIP)
        m->words[*n_bytes / sizeof *m->words / 2] ^= 1u << 3;
    pool_run(pool, n_tiles(*n_bytes), read_tile, m);
}

/* ---- a GPU ---- */

/* A chunk's pattern to the device, or from there and compared. */
static int move_chunk(struct memory_pass *m, bool reads, unsigned char *memory, size_t n,
                      struct err *err)
{
    struct engine *engine = m->check->engine;
    struct device *device = engine->device;
    void *words = m->words;

    if (!reads)
        pool_run(engine->pool, n_tiles(n), write_tile, m);
    if (!reads && m->pass == 0 && fault_at("preflight:memory", -1) == FAULT_FLIP)
        m->words[1] ^= 1u << 3;
    device->ops->copy(device, DEVICE_COMPUTE, reads ? words : memory, reads ? memory : words, n);
    if (device->ops->wait(device, DEVICE_COMPUTE, err) < 0)
        return -1;
    if (reads)
        pool_run(engine->pool, n_tiles(n), read_tile, m);
    return 0;
}

/* Chunk by chunk, all of them written before any is read. */
static int pass_gpu(struct memory_pass *m, unsigned char *memory, size_t *n_bytes, struct err *err)
{
    for (int reads = 0; reads < 2; reads++)
        for (size_t at = 0; at < *n_bytes && !preflight_is_stopped(); at += CHUNK_BYTES) {
            size_t n = *n_bytes - at < CHUNK_BYTES ? *n_bytes - at : CHUNK_BYTES;

            m->base_bytes = at;
            if (move_chunk(m, reads, memory + at, n, err) < 0)
                return -1;
            if (m->pass == 0 && !reads && clock_seconds() > m->end)
                *n_bytes = at + n;
        }
    return 0;
}

static unsigned char *allocate_gpu(struct device *device, size_t *n_bytes)
{
    struct err ignored;
    void *memory;

    for (; *n_bytes >= TILE_BYTES; *n_bytes /= 2) {
        *n_bytes -= *n_bytes % TILE_BYTES;
        if (device->ops->allocate(device, *n_bytes, &memory, &ignored) == 0)
            return memory;
    }
    return NULL;
}

/* ---- passes ---- */

static int run_passes(struct memory_pass *m, unsigned char *gpu_memory, size_t n_bytes,
                      struct err *err)
{
    double begin = clock_seconds(), most = preflight_seconds(m->check);

    m->end = begin + most / 4; /* two passes write and read twice */
    for (m->pass = 0; m->pass < N_PASSES && !preflight_is_stopped(); m->pass++) {
        if (m->pass >= N_LEAST_PASSES && clock_seconds() >= begin + most)
            break;
        if (!gpu_memory)
            pass_host(m, &n_bytes);
        else if (pass_gpu(m, gpu_memory, &n_bytes, err) < 0)
            return -1;
    }
    m->check->own->tested_bytes += n_bytes;
    return 0;
}

/* Of what this rank may take now; most: of a quick test. */
static size_t bytes_to_test(const struct preflight_check *check, size_t available, size_t most)
{
    size_t share = available ? (size_t)(quick_share * (double)available) : LEAST_BYTES;

    if (!check->request->is_full)
        return share < most ? share : most;
    return (size_t)(full_share * (double)available);
}

static int test_host(struct preflight_check *check, struct memory_pass *m, struct err *err)
{
    int n_ranks = max_int(1, check->own->local_size);
    int64_t available = available_memory();
    size_t n_bytes = bytes_to_test(check, available > 0 ? (size_t)(available / n_ranks) : 0,
                                   QUICK_BYTES / (size_t)n_ranks);

    m->words = map_memory(&n_bytes);
    if (!m->words)
        return 0;
    int status = run_passes(m, NULL, n_bytes, err);
    munmap(m->words, n_bytes);
    return status;
}

static int test_gpu(struct preflight_check *check, struct memory_pass *m, struct err *err)
{
    struct device *device = check->engine->device;
    size_t available = engine_available_bytes(check->engine);
    size_t n_bytes =
        bytes_to_test(check, available, QUICK_BYTES / (size_t)check->engine->n_sharing);

    if (check->request->is_full && available > 2 * GPU_MARGIN_BYTES)
        n_bytes = available - GPU_MARGIN_BYTES;
    unsigned char *memory = allocate_gpu(device, &n_bytes);
    if (!memory)
        return 0;
    m->words = aligned_alloc(4096, CHUNK_BYTES);
    CHECK(m->words);
    int status = run_passes(m, memory, n_bytes, err);
    free(m->words);
    device->ops->release(device, memory);
    return status;
}

int preflight_memory(struct preflight_check *check, struct err *err)
{
    struct memory_pass m = { .check = check, .errors = &check->own->errors };

    pthread_mutex_init(&m.lock, NULL);
    int status = test_host(check, &m, err);
    /* Of both, the host's errors are reported. */
    if (!status && !device_is_host(check->engine->device) && !m.errors->n_memory) {
        m.errors->is_device_memory = true;
        status = test_gpu(check, &m, err);
    }
    pthread_mutex_destroy(&m.lock);
    return status;
}
