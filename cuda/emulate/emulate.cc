/*
 * emulate.cc - see cuda_runtime.h
 */
#include "emulate_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
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
    uint64_t shuffle; /* state of the threads' order, where it is random */
};

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;
static thread_local machine *here;

static std::atomic<uint64_t> drawn_seed; /* of the order of blocks; 0: none was drawn */

static void print_seed(void)
{
    if (drawn_seed)
        fprintf(stderr, "emulated GPU: the order of blocks was LMTRAIN_EMULATE_BLOCKS=%llu\n",
                (unsigned long long)drawn_seed);
}

void emulate_print_place(void)
{
    fprintf(stderr, "emulated GPU: %s: block %u,%u,%u thread %u,%u,%u: ", here->launch->name,
            blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
}

void emulate_fail(const char *format, ...)
{
    va_list arguments;

    emulate_print_place();
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    print_seed();
    abort();
}

bool emulate_is_in_kernel(void)
{
    return here;
}

int emulate_thread(void)
{
    return here->running;
}

int emulate_choice(const char *variable, const char *const *names)
{
    const char *text = getenv(variable);

    if (!text || !*text)
        return 0;
    for (int i = 0; names[i]; i++)
        if (!strcmp(text, names[i]))
            return i;
    fprintf(stderr, "emulated GPU: %s is '%s', not", variable, text);
    for (int i = 0; names[i]; i++)
        fprintf(stderr, " %s", names[i]);
    fputc('\n', stderr);
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
                        emulate_fail("lanes of a warp meet under different masks");
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
        emulate_fail("threads wait at __syncthreads that others have ended without");
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

/* ---- the order of threads and of blocks --------------------------------------------------------- */

enum order { FORWARD, BACKWARD, RANDOM };

static order order_of(const char *variable, const char *backward, order by_default, uint64_t *seed)
{
    const char *text = getenv(variable);

    if (!text || !*text)
        return by_default;
    if (!strcmp(text, "forward"))
        return FORWARD;
    if (!strcmp(text, backward))
        return BACKWARD;
    *seed = strtoull(text, NULL, 10); /* 0 for `random`: it is drawn */
    return RANDOM;
}

/* 0..n-1, each once. */
struct walk {
    uint64_t n, size, begin, step;
    bool is_backward;
};

/* Odd steps through a power of two visit all: a cheap permutation. */
static walk walk_of(uint64_t n, order order, uint64_t *random)
{
    walk w = { n, 1, 0, 1, order == BACKWARD };

    while (w.size < n)
        w.size *= 2;
    if (order == RANDOM) {
        w.begin = next_random(random) % n;
        w.step = next_random(random) % w.size | 1;
    }
    return w;
}

/* The one at turn i of size; n or more: none. */
static uint64_t walk_at(const walk &w, uint64_t i)
{
    return w.is_backward ? w.n - 1 - i : (w.begin + i * w.step) & (w.size - 1);
}

static void print_seed_of_failure(int status, void *)
{
    if (status)
        print_seed();
}

/* One a process, so that a failure can be had again. */
static uint64_t draw_seed(void)
{
    static std::once_flag *once = new std::once_flag();

    std::call_once(*once, [] {
        timespec t;

        clock_gettime(CLOCK_REALTIME, &t);
        drawn_seed = (uint64_t)t.tv_nsec / 1000 + 1;
        on_exit(print_seed_of_failure, NULL);
    });
    return drawn_seed;
}

static walk blocks_of(uint64_t n)
{
    uint64_t seed = 0;
    order order = order_of("LMTRAIN_EMULATE_BLOCKS", "reverse", RANDOM, &seed);

    if (order == RANDOM && !seed)
        seed = draw_seed();
    return walk_of(n, order, &seed);
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
    uint64_t n = (uint64_t)here->n_threads;

    for (size_t i = 0; i < here->fibers.size(); i++)
        fiber_start(&here->fibers[i], i);
    for (;;) {
        walk walk = walk_of(n, order, &here->shuffle);
        int left = 0;

        for (uint64_t i = 0; i < walk.size; i++) {
            uint64_t t = walk_at(walk, i);

            if (t < n)
                run_thread((int)t);
        }
        for (const fiber &f : here->fibers)
            left += f.state != ENDED;
        if (!left)
            return;
        if (!release_warps() && !release_block())
            emulate_fail(
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

    if (!idle->empty()) {
        machine *m = idle->back();

        idle->pop_back();
        return m;
    }
    return new machine();
}

static thread_local machine_of_thread mine;

static machine *open_machine(int n_threads)
{
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
/* Ranks may be threads of one process: the map is theirs together. */
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

static bool loading_is_strict(void)
{
    const char *mode = getenv("LMTRAIN_EMULATE_LOADING");

    return mode && !strcmp(mode, "strict");
}

bool emulate_may_load(void)
{
    return !loading_is_strict() || !emulate_waits_for_peers();
}

static int is_loaded(const emulate_launch *l)
{
    std::lock_guard<std::mutex> held(*map_lock);

    return !loading_is_strict() || loaded->count(l->kernel);
}

static int is_allowed(const emulate_launch *l)
{
    size_t threads = (size_t)l->block.x * l->block.y * l->block.z;

    return threads >= 1 && threads <= MAX_THREADS && l->block.z <= 64 && l->grid.x >= 1 &&
           l->grid.y >= 1 && l->grid.z >= 1 && l->grid.x <= 0x7fffffffu && l->grid.y <= 65535 &&
           l->grid.z <= 65535 && l->shared_bytes <= shared_limit(l->kernel);
}

static void run_blocks(const emulate_launch &l, order order)
{
    uint64_t n_x = l.grid.x, n_y = l.grid.y, n = n_x * n_y * l.grid.z;
    walk walk = blocks_of(n);

    for (uint64_t i = 0; i < walk.size; i++) {
        uint64_t b = walk_at(walk, i);

        if (b >= n)
            continue;
        blockIdx = { (unsigned)(b % n_x), (unsigned)(b / n_x % n_y), (unsigned)(b / n_x / n_y) };
        emulate_block_begins();
        run_block(order);
        emulate_block_ends();
    }
}

static void run_grid(const emulate_launch &l, const std::function<void()> &body)
{
    uint64_t seed = 0;
    order order = order_of("LMTRAIN_EMULATE_ORDER", "backward", FORWARD, &seed);
    int n_threads = (int)(l.block.x * l.block.y * l.block.z);

    emulate_name_faults();
    emulate_shared_open(l.shared_bytes, n_threads);
    here = open_machine(n_threads);
    here->launch = &l;
    here->body = &body;
    here->shuffle = seed;
    blockDim = l.block;
    gridDim = l.grid;
    run_blocks(l, order);
    here = NULL;
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
        emulate_fail("a lane calls with a mask that it is not in");
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

#define NAMED(error) \
    { \
        error, #error \
    }

const char *cudaGetErrorName(cudaError_t error)
{
    static const struct {
        cudaError_t error;
        const char *name;
    } names[] = {
        NAMED(cudaSuccess),
        NAMED(cudaErrorInvalidValue),
        NAMED(cudaErrorMemoryAllocation),
        NAMED(cudaErrorInvalidConfiguration),
        NAMED(cudaErrorInsufficientDriver),
        NAMED(cudaErrorNoDevice),
        NAMED(cudaErrorIllegalState),
        NAMED(cudaErrorIllegalAddress),
        NAMED(cudaErrorNotReady),
        NAMED(cudaErrorStreamCaptureUnsupported),
        NAMED(cudaErrorStreamCaptureInvalidated),
        NAMED(cudaErrorStreamCaptureMerge),
        NAMED(cudaErrorStreamCaptureUnmatched),
        NAMED(cudaErrorStreamCaptureIsolation),
        NAMED(cudaErrorCapturedEvent),
        NAMED(cudaErrorStreamCaptureWrongThread),
    };

    for (const auto &named : names)
        if (named.error == error)
            return named.name;
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

static thread_local int current_device;

int emulate_device(void)
{
    return current_device;
}

cudaError_t cudaSetDevice(int device)
{
    int n;

    cudaGetDeviceCount(&n);
    if (device >= n)
        return emulate_error(cudaErrorInvalidValue);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    (void)device;
    memset(prop, 0, sizeof *prop);
    strcpy(prop->name, "emulated GPU");
    prop->totalGlobalMem = emulate_memory_bytes();
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
