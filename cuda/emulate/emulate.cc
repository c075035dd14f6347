/*
 * emulate.cc - see cuda_runtime.h
 */
#include "cuda_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

/* ---- fibers ------------------------------------------------------------------------------------
 *
 * Only what the calling convention keeps is switched: some tens of instructions.
 */

extern "C" void emulate_switch(void **save, void *load);
asm(R"(
.text
.globl emulate_switch
.type emulate_switch, @function
emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulate_switch, .-emulate_switch
.section .note.GNU-stack,"",@progbits
.text
)");

enum {
    STACK_BYTES = 128 << 10,
    MAX_THREADS = 1024,
    WARP = 32,
    SHARED_MAX = 227 << 10,
    SHARED_DEFAULT = 48 << 10
};

enum fiber_state { READY, AT_BLOCK, AT_WARP, ENDED };

struct fiber {
    void *at; /* its stack pointer while it does not run */
    unsigned char *stack;
    fiber_state state;
    unsigned mask; /* AT_WARP: of the lanes it waits for */
};

struct warp {
    uint64_t slots[2][WARP];
    unsigned turn[WARP]; /* by lane: which slots it uses next */
};

struct machine {
    std::vector<fiber> fibers;
    std::vector<unsigned char *> stacks; /* as many as any block has had threads */
    std::vector<warp> warps;
    void *host;  /* the scheduler's stack pointer */
    int running; /* thread */
    int n_threads;
    int votes, wanted_votes;
    const emulate_launch *launch;
    const std::function<void()> *body;
    unsigned char *shared;
    uint64_t shuffle; /* state of the order, where it is random */
};

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;
static thread_local machine *here;

static void fail(const char *what)
{
    const emulate_launch *l = here->launch;

    fprintf(stderr, "emulated GPU: %s: block %u,%u,%u thread %u,%u,%u: %s\n", l->name, blockIdx.x,
            blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, what);
    abort();
}

static void place_thread(int thread)
{
    unsigned t = (unsigned)thread;

    if (t < blockDim.x) { /* most blocks are a row, and divisions take long */
        threadIdx = { t, 0, 0 };
        return;
    }
    threadIdx.x = t % blockDim.x;
    threadIdx.y = t / blockDim.x % blockDim.y;
    threadIdx.z = t / (blockDim.x * blockDim.y);
}

static void leave(fiber_state state, unsigned mask)
{
    fiber *f = &here->fibers[(size_t)here->running];

    f->state = state;
    f->mask = mask;
    emulate_switch(&f->at, here->host);
}

static void fiber_main(void)
{
    (*here->body)();
    leave(ENDED, 0);
    abort(); /* nobody comes back here */
}

/* Stacks begin at different lines of their pages, or a cache would have few places for all. */
static void fiber_start(fiber *f, size_t thread)
{
    void **top = (void **)(f->stack + STACK_BYTES - 64 * (1 + thread * 5 % 64));

    top = (void **)((uintptr_t)top & ~(uintptr_t)15);
    *--top = NULL; /* fiber_main's return address: it has none */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->at = top;
    f->state = READY;
}

static unsigned lanes_of(int warp)
{
    int n = here->n_threads - warp * WARP;

    return n >= WARP ? 0xffffffffu : (1u << n) - 1;
}

/* Warps all of whose awaited lanes have come go on. */
static int release_warps(void)
{
    int released = 0;

    for (int w = 0; w * WARP < here->n_threads; w++) {
        unsigned waiting = 0, exist = lanes_of(w);

        for (int lane = 0; lane < WARP; lane++)
            if ((exist >> lane & 1) && here->fibers[(size_t)(w * WARP + lane)].state == AT_WARP)
                waiting |= 1u << lane;
        for (int lane = 0; lane < WARP; lane++) {
            fiber *f = waiting >> lane & 1 ? &here->fibers[(size_t)(w * WARP + lane)] : NULL;
            unsigned mask = f ? f->mask & exist : 0;

            if (!f || (mask & waiting) != mask)
                continue;
            for (int other = 0; other < WARP; other++)
                if (mask >> other & 1) {
                    fiber *o = &here->fibers[(size_t)(w * WARP + other)];

                    if ((o->mask & exist) != mask)
                        fail("lanes of a warp meet under different masks");
                    o->state = READY;
                }
            waiting &= ~mask;
            released = 1;
        }
    }
    return released;
}

static int release_block(void)
{
    int waiting = 0, left = 0;

    for (const fiber &f : here->fibers) {
        waiting += f.state == AT_BLOCK;
        left += f.state != ENDED;
    }
    if (!waiting || waiting != left)
        return 0;
    if (left != here->n_threads)
        fail("threads wait at __syncthreads that others have ended without");
    for (fiber &f : here->fibers)
        f.state = READY;
    here->wanted_votes = here->votes;
    here->votes = 0;
    return 1;
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t x = (*state += 0x9e3779b97f4a7c15u);

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

enum order { FORWARD, BACKWARD, RANDOM };

static order order_of(uint64_t *seed)
{
    const char *text = getenv("LMTRAIN_EMULATE_ORDER");

    if (!text || !*text || !strcmp(text, "forward"))
        return FORWARD;
    if (!strcmp(text, "backward"))
        return BACKWARD;
    *seed = strtoull(text, NULL, 10);
    return RANDOM;
}

static void run_thread(int thread)
{
    fiber *f = &here->fibers[(size_t)thread];

    if (f->state != READY)
        return;
    here->running = thread;
    place_thread(thread);
    emulate_switch(&here->host, f->at);
}

static void run_block(order order)
{
    int n = here->n_threads;

    for (size_t i = 0; i < here->fibers.size(); i++)
        fiber_start(&here->fibers[i], i);
    for (;;) {
        int begin = order == RANDOM ? (int)(next_random(&here->shuffle) % (uint64_t)n) : 0;
        /* Odd steps through a power of two visit all: a cheap permutation. */
        int size = 1, step = 1, left = 0;

        while (size < n)
            size *= 2;
        if (order == RANDOM)
            step = (int)(next_random(&here->shuffle) % (uint64_t)size) | 1;
        for (int i = 0; i < size; i++) {
            int t = order == BACKWARD ? n - 1 - i : (begin + i * step) & (size - 1);

            if (t >= 0 && t < n)
                run_thread(t);
        }
        for (const fiber &f : here->fibers)
            left += f.state != ENDED;
        if (!left)
            return;
        if (!release_warps() && !release_block())
            fail(
                "threads wait for each other: some are at __syncthreads, some at a warp's meeting, "
                "or a lane of the mask has ended");
    }
}

/* Machines of threads that have ended: the next ones take them up, with their stacks. */
static std::mutex *idle_lock = new std::mutex();
static std::vector<machine *> *idle = new std::vector<machine *>();

struct machine_of_thread {
    machine *own = NULL;

    ~machine_of_thread()
    {
        std::lock_guard<std::mutex> held(*idle_lock);

        if (own)
            idle->push_back(own);
    }
};

static machine *take_machine(void)
{
    std::lock_guard<std::mutex> held(*idle_lock);
    machine *m;

    if (!idle->empty()) {
        m = idle->back();
        idle->pop_back();
        return m;
    }
    m = new machine();
    m->shared = (unsigned char *)aligned_alloc(1024, SHARED_MAX + 1024);
    return m;
}

static machine *open_machine(int n_threads)
{
    static thread_local machine_of_thread mine;

    if (!mine.own)
        mine.own = take_machine();
    machine *m = mine.own;
    while ((int)m->stacks.size() < n_threads) {
        void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (stack == MAP_FAILED)
            abort();
        m->stacks.push_back((unsigned char *)stack);
    }
    m->fibers.resize((size_t)n_threads);
    for (size_t i = 0; i < m->fibers.size(); i++)
        m->fibers[i].stack = m->stacks[i];
    m->warps.assign((size_t)(n_threads + WARP - 1) / WARP, warp());
    m->n_threads = n_threads;
    m->votes = 0;
    return m;
}

static thread_local cudaError_t last_error;
/* Ranks may be threads of one process: the maps of this file are theirs together. */
static std::mutex *map_lock = new std::mutex();
static std::map<const void *, int> *shared_limits = new std::map<const void *, int>();

/* LMTRAIN_EMULATE_ARCH: 80, 86, 89 or 90, whose limits then hold. */
static int arch(void)
{
    const char *text = getenv("LMTRAIN_EMULATE_ARCH");

    return text && *text ? (int)strtol(text, NULL, 10) : 90;
}

static int arch_shared(void)
{
    return arch() == 90 ? SHARED_MAX : arch() == 80 ? 163 << 10 : 99 << 10;
}

cudaError_t emulate_set_shared(const void *kernel, int n_bytes)
{
    std::lock_guard<std::mutex> held(*map_lock);

    if (n_bytes > arch_shared())
        return last_error = cudaErrorInvalidValue;
    (*shared_limits)[kernel] = n_bytes;
    return cudaSuccess;
}

static size_t shared_limit(const void *kernel)
{
    std::lock_guard<std::mutex> held(*map_lock);

    return shared_limits->count(kernel) ? (size_t)(*shared_limits)[kernel] : (size_t)SHARED_DEFAULT;
}

/* $LMTRAIN_EMULATE_FAIL: a kernel's name, of which each launch fails, as seen by who waits for it. */
static std::atomic<int> has_failed;

cudaError_t emulate_failure(void)
{
    return has_failed ? cudaErrorIllegalAddress : cudaSuccess;
}

static int is_to_fail(const emulate_launch *l)
{
    const char *name = getenv("LMTRAIN_EMULATE_FAIL");

    return name && !strcmp(name, l->name);
}

/* $LMTRAIN_EMULATE_LOADING `strict`: a kernel must have been loaded before it is launched. */
static std::set<const void *> *loaded = new std::set<const void *>();

void emulate_load(const void *kernel)
{
    std::lock_guard<std::mutex> held(*map_lock);

    loaded->insert(kernel);
}

static int is_loaded(const emulate_launch *l)
{
    const char *mode = getenv("LMTRAIN_EMULATE_LOADING");
    std::lock_guard<std::mutex> held(*map_lock);

    return !mode || strcmp(mode, "strict") != 0 || loaded->count(l->kernel);
}

static int is_allowed(const emulate_launch *l)
{
    size_t threads = (size_t)l->block.x * l->block.y * l->block.z;

    return threads >= 1 && threads <= MAX_THREADS && l->block.z <= 64 && l->grid.x >= 1 &&
           l->grid.y >= 1 && l->grid.z >= 1 && l->grid.x <= 0x7fffffffu && l->grid.y <= 65535 &&
           l->grid.z <= 65535 && l->shared_bytes <= shared_limit(l->kernel);
}

static void run_grid(const emulate_launch &l, const std::function<void()> &body)
{
    uint64_t seed = 0;
    order order = order_of(&seed);
    machine *before = here;

    here = open_machine((int)(l.block.x * l.block.y * l.block.z));
    here->launch = &l;
    here->body = &body;
    here->shuffle = seed;
    blockDim = l.block;
    gridDim = l.grid;
    for (unsigned z = 0; z < l.grid.z; z++)
        for (unsigned y = 0; y < l.grid.y; y++)
            for (unsigned x = 0; x < l.grid.x; x++) {
                blockIdx = { x, y, z };
                memset(here->shared, 0xff, l.shared_bytes);
                run_block(order);
            }
    here = before;
}

void emulate_run(const emulate_launch *launch, std::function<void()> body)
{
    emulate_launch l = *launch;

    if (!is_loaded(&l)) {
        last_error = cudaErrorNotReady;
        return;
    }
    if (!is_allowed(&l)) {
        last_error = cudaErrorInvalidConfiguration;
        return;
    }
    emulate_enqueue(l.stream, [l, body] {
        has_failed = has_failed || is_to_fail(&l);
        run_grid(l, body);
    });
}

/* ---- meetings ---------------------------------------------------------------------------------- */

unsigned emulate_lane(void)
{
    return (unsigned)here->running % WARP;
}

void *emulate_shared(void)
{
    return here->shared;
}

void emulate_sync_block(void)
{
    leave(AT_BLOCK, 0);
}

void emulate_sync_warp(unsigned mask)
{
    emulate_exchange(mask, 0);
}

const uint64_t *emulate_exchange(unsigned mask, uint64_t value)
{
    int thread = here->running, lane = thread % WARP;
    warp *w = &here->warps[(size_t)(thread / WARP)];
    unsigned turn = w->turn[lane]++ & 1;

    if (!(mask >> lane & 1))
        fail("a lane calls with a mask that it is not in");
    w->slots[turn][lane] = value;
    leave(AT_WARP, mask);
    return w->slots[turn];
}

int __syncthreads_count(int predicate)
{
    here->votes += predicate != 0;
    __syncthreads();
    int votes = here->wanted_votes;
    return votes;
}

int __syncthreads_or(int predicate)
{
    return __syncthreads_count(predicate) > 0;
}

int __syncthreads_and(int predicate)
{
    return __syncthreads_count(predicate) == here->n_threads;
}

/* ---- the runtime -------------------------------------------------------------------------------- */

cudaError_t emulate_error(cudaError_t error)
{
    return last_error = error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorInsufficientDriver:
        return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
        return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureIsolation:
        return "cudaErrorStreamCaptureIsolation";
    }
    return "cudaError";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}

cudaError_t cudaGetDeviceCount(int *n)
{
    const char *text = getenv("LMTRAIN_EMULATE_DEVICES");

    int driver, runtime;

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    *n = driver < runtime ? 0 : text ? atoi(text) : 1;
    if (driver < runtime)
        return cudaErrorInsufficientDriver;
    return *n > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device)
{
    int n;

    cudaGetDeviceCount(&n);
    return device < n ? cudaSuccess : cudaErrorInvalidValue;
}

/* $LMTRAIN_EMULATE_MEMORY_GIB: the device's (8). */
static size_t memory_bytes(void)
{
    const char *text = getenv("LMTRAIN_EMULATE_MEMORY_GIB");

    return (size_t)(text ? atoi(text) : 8) << 30;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    (void)device;
    memset(prop, 0, sizeof *prop);
    strcpy(prop->name, "emulated GPU");
    prop->totalGlobalMem = memory_bytes();
    prop->sharedMemPerBlockOptin = (size_t)arch_shared();
    prop->major = arch() / 10;
    prop->minor = arch() % 10;
    prop->multiProcessorCount = 4;
    prop->l2CacheSize = 50 << 20;
    return cudaSuccess;
}

/* $LMTRAIN_EMULATE_DRIVER: the driver's version, 12040 for CUDA 12.4. */
cudaError_t cudaDriverGetVersion(int *version)
{
    const char *text = getenv("LMTRAIN_EMULATE_DRIVER");

    *version = text ? atoi(text) : 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

/* Device memory ends where a page ends that nobody may touch: the last element's neighbour is a
 * fault. Sizes are kept to give it back, and to tell pinned host memory from other. */
struct block {
    void *map;
    size_t whole, n_bytes;
};
static std::map<uintptr_t, block> *blocks = new std::map<uintptr_t, block>();
static std::map<uintptr_t, size_t> *pinned = new std::map<uintptr_t, size_t>();
static size_t allocated;

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    std::lock_guard<std::mutex> held(*map_lock);

    *total_bytes = memory_bytes();
    *free_bytes = *total_bytes - allocated;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t n_bytes)
{
    std::lock_guard<std::mutex> held(*map_lock);
    size_t body = (n_bytes + 4095) / 4096 * 4096, rounded = (n_bytes + 255) / 256 * 256;
    size_t whole = body + 2 * 4096;

    if (whole + allocated > memory_bytes())
        return last_error = cudaErrorMemoryAllocation;
    unsigned char *map = (unsigned char *)mmap(NULL, whole, PROT_NONE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || mprotect(map + 4096, body, PROT_READ | PROT_WRITE))
        return last_error = cudaErrorMemoryAllocation;
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
    emulate_settle();
    std::lock_guard<std::mutex> held(*map_lock);
    auto found = blocks->find((uintptr_t)memory);
    if (found == blocks->end())
        return last_error = cudaErrorInvalidValue;
    munmap(found->second.map, found->second.whole);
    allocated -= found->second.whole;
    blocks->erase(found);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t n_bytes)
{
    std::lock_guard<std::mutex> held(*map_lock);

    *memory = aligned_alloc(4096, (n_bytes + 4095) / 4096 * 4096);
    if (!*memory)
        return last_error = cudaErrorMemoryAllocation;
    (*pinned)[(uintptr_t)*memory] = n_bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
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

    if (!width || !height)
        return cudaSuccess;
    if (is_pageable(from) && !captured) {
        size_t n_bytes = (height - 1) * from_pitch + width;
        std::shared_ptr<std::vector<char>> taken(
            new std::vector<char>((const char *)from, (const char *)from + n_bytes));

        emulate_enqueue(stream,
                        [=] { copy_rows(to, to_pitch, taken->data(), from_pitch, width, height); });
    } else {
        emulate_enqueue(stream, [=] { copy_rows(to, to_pitch, from, from_pitch, width, height); });
    }
    return is_pageable(to) && !captured ? cudaStreamSynchronize(stream) : cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy2DAsync(to, n_bytes, from, n_bytes, n_bytes, 1, kind, stream);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t n_bytes, cudaStream_t stream)
{
    emulate_enqueue(stream, [=] { memset(to, byte, n_bytes); });
    return cudaSuccess;
}
