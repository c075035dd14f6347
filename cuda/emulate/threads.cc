/*
 * threads.cc - the threads of a kernel: fibers, the order in which they run, and where they meet
 *
 * A launch runs in one OS thread, block by block. A block's threads are fibers that are switched
 * where they wait: at __syncthreads, or at an instruction of a warp (shuffles, votes, mma). Between
 * two __syncthreads each warp runs as far as it can before the next one begins. So a barrier that
 * is missing between one warp's write of shared memory and another's read shows in one of two
 * orders:
 *
 *   forward    1. warp 0 writes s[0]          2. warp 1 reads s[0]: what was written
 *   backward   1. warp 1 reads s[0]: poison   2. warp 0 writes s[0]
 *
 * Tests run kernels in both, and in random ones, and compare the bits.
 */
#include "emulate_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <mutex>
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

enum { STACK_BYTES = 128 << 10, WARP = 32 };

enum fiber_state { READY, AT_BLOCK, AT_WARP, ENDED };

struct fiber {
    void *at; /* its stack pointer while it does not run */
    unsigned char *stack;
    fiber_state state;
    unsigned mask;      /* AT_WARP: of the lanes it waits for */
    emulate_work *work; /* AT_WARP: what is done once when all of them have come; or NULL */
    void *record;       /* its argument for this lane */
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
    abort(); /* an ended fiber is never switched to */
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
    f->work = NULL;
}

static unsigned lanes_of(int warp)
{
    int n = here->n_threads - warp * WARP;

    return n >= WARP ? 0xffffffffu : (1u << n) - 1;
}

/* The lanes of a meeting go on. */
static void release_lanes(int warp, unsigned mask)
{
    fiber *lanes = &here->fibers[(size_t)(warp * WARP)];
    emulate_work *work = lanes[__builtin_ctz(mask)].work;
    void *records[WARP] = { NULL };

    for (int lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1))
            continue;
        if ((lanes[lane].mask & lanes_of(warp)) != mask)
            emulate_fail("lanes of a warp meet under different masks");
        if (lanes[lane].work != work)
            emulate_fail("lanes of a warp meet in different instructions");
        lanes[lane].state = READY;
        records[lane] = lanes[lane].record;
    }
    if (work)
        work(records);
}

/* Lanes of a warp that have met go on; returns whether any have. */
static bool release_warp(int warp)
{
    fiber *lanes = &here->fibers[(size_t)(warp * WARP)];
    unsigned waiting = 0, exist = lanes_of(warp);
    bool released = false;

    for (int lane = 0; lane < WARP; lane++)
        if ((exist >> lane & 1) && lanes[lane].state == AT_WARP)
            waiting |= 1u << lane;
    for (int lane = 0; lane < WARP; lane++) {
        unsigned mask = waiting >> lane & 1 ? lanes[lane].mask & exist : 0;

        if (!mask || (mask & waiting) != mask)
            continue;
        release_lanes(warp, mask);
        waiting &= ~mask;
        released = true;
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

/* ---- the order of threads and of blocks
 * --------------------------------------------------------- */

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
struct permutation {
    uint64_t n, size, begin, step;
    bool is_backward;
};

/* Odd steps through a power of two visit all: a cheap permutation. */
static permutation permutation_of(uint64_t n, order order, uint64_t *random)
{
    permutation w = { n, 1, 0, 1, order == BACKWARD };

    while (w.size < n)
        w.size *= 2;
    if (order == RANDOM) {
        w.begin = next_random(random) % n;
        w.step = next_random(random) % w.size | 1;
    }
    return w;
}

/* The one at turn i of size; n or more: none. */
static uint64_t permuted_at(const permutation &w, uint64_t i)
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

static permutation blocks_of(uint64_t n)
{
    uint64_t seed = 0;
    order order = order_of("LMTRAIN_EMULATE_BLOCKS", "reverse", RANDOM, &seed);

    if (order == RANDOM && !seed)
        seed = draw_seed();
    return permutation_of(n, order, &seed);
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

/* All lanes of a warp until each of them has ended or waits for other warps. */
static void run_warp(int warp, order order)
{
    int first = warp * WARP, left = here->n_threads - first;
    uint64_t n = (uint64_t)(left < WARP ? left : WARP);

    do {
        permutation lanes = permutation_of(n, order, &here->shuffle);

        for (uint64_t i = 0; i < lanes.size; i++) {
            uint64_t lane = permuted_at(lanes, i);

            if (lane < n)
                run_thread(first + (int)lane);
        }
    } while (release_warp(warp));
}

/* Warp by warp, so that the 32 stacks of one stay in the cache. */
static void run_block(order order)
{
    uint64_t n_warps = (uint64_t)(here->n_threads + WARP - 1) / WARP;

    for (size_t i = 0; i < here->fibers.size(); i++)
        fiber_start(&here->fibers[i], i);
    for (;;) {
        permutation warps = permutation_of(n_warps, order, &here->shuffle);
        int left = 0;

        for (uint64_t i = 0; i < warps.size; i++) {
            uint64_t w = permuted_at(warps, i);

            if (w < n_warps)
                run_warp((int)w, order);
        }
        for (const fiber &f : here->fibers)
            left += f.state != ENDED;
        if (!left)
            return;
        if (!release_block())
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

static void run_blocks(const emulate_launch &l, order order)
{
    uint64_t n_x = l.grid.x, n_y = l.grid.y, n = n_x * n_y * l.grid.z;
    permutation walk = blocks_of(n);

    for (uint64_t i = 0; i < walk.size; i++) {
        uint64_t b = permuted_at(walk, i);

        if (b >= n)
            continue;
        blockIdx = { (unsigned)(b % n_x), (unsigned)(b / n_x % n_y), (unsigned)(b / n_x / n_y) };
        emulate_block_begins();
        run_block(order);
        emulate_block_ends();
    }
}

void emulate_run_grid(const emulate_launch &l, const std::function<void()> &body)
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

/* ---- meetings
 * ---------------------------------------------------------------------------------- */

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

void emulate_meet(unsigned mask, void *record, emulate_work *work)
{
    fiber *f = &here->fibers[(size_t)here->running];

    if (!(mask >> here->running % WARP & 1))
        emulate_fail("a lane calls with a mask that it is not in");
    f->work = work;
    f->record = record;
    leave(AT_WARP, mask);
    f->work = NULL;
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
