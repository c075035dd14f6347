/*
 * optimizers.c - what bounds an update: memory, or the arithmetic of its states
 *
 * build/bench/optimizers [THREADS]: each update over operands that lie in memory, in turns with a
 * walk over the same operands that does nothing but read, change in place or write them as the
 * update does: a walk's time is what memory sets, at that moment (on a virtual machine what two
 * threads are given of it may double within seconds). Of one thread also the update over operands
 * that stay in the second-level cache: what its instructions set. Times of one thread are its CPU
 * time, those of several what passes; the fastest tenth ends at what is printed: other processes
 * take cores, but hardly this. Prints rows for bench/results/optimizers.md.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/clock.h"
#include "base/num.h"
#include "kernels/kernels.h"
#include "ops/optimizers.h"

#define HUGE_BYTES ((size_t)2 << 20)
enum {
    N_ELEMENTS = 24 << 20,
    WINDOW = 3 << 20, /* elements of a call, from memory */
    CACHED = 1 << 14, /* and from the cache */
    CACHED_CALLS = 8, /* timed together */
    ROUNDS = 12,
    N_TIMES = ROUNDS * N_ELEMENTS / WINDOW,
    WALK_BLOCKS = 64, /* of OPS_STATE_BLOCK elements: of a tile, as the updates have */
    VECTOR = 16,
    APART = 4096 + 256, /* so that operands do not begin at the same place of a page */
};

static const struct {
    const char *name, *states;
    enum op_kind kind;
    enum dtype master, state;
    bool has_v, is_split;
} updates[] = {
    { "gradient norm", "", OP_SUMSQ, DTYPE_F32, DTYPE_F32, false, false },
    { "adamw", "fp32", OP_ADAMW, DTYPE_F32, DTYPE_F32, true, false },
    { "adamw", "fp32, split masters", OP_ADAMW, DTYPE_BF16, DTYPE_F32, true, true },
    { "adamw", "bf16", OP_ADAMW, DTYPE_BF16, DTYPE_BF16, true, false },
    { "adamw", "int8", OP_ADAMW, DTYPE_F32, DTYPE_U8, true, false },
    { "cadam", "fp16", OP_CADAM, DTYPE_F32, DTYPE_F16, false, false },
    { "lion", "fp32", OP_LION, DTYPE_F32, DTYPE_F32, false, false },
    { "lion", "int8", OP_LION, DTYPE_F32, DTYPE_U8, false, false },
    { "sgd", "fp32", OP_SGD, DTYPE_F32, DTYPE_F32, false, false },
};

/* Memory of the operands, by their place: as wide as the widest. */
static char *operands[OPS_MAX_INPUTS + 1];

static void *allocate(size_t n_bytes)
{
    void *memory = aligned_alloc(HUGE_BYTES, align_up(n_bytes, HUGE_BYTES));

    if (!memory) {
        fprintf(stderr, "optimizers: no memory\n");
        exit(1);
    }
    madvise(memory, n_bytes, MADV_HUGEPAGE);
    memset(memory, 0, n_bytes);
    return memory;
}

/* Of one thread its own. */
static double seconds_now(const struct pool *pool)
{
    struct timespec time;

    if (pool_n_threads(pool) > 1)
        return clock_seconds();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double fast_tenth(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, ascending);
    return times[n / 10];
}

/* Numbers as a run has them, between -1 and 1, small ones more often. */
static void fill(int place, enum dtype dtype, float scale)
{
    uint32_t state = 1;

    for (int64_t i = 0; i < N_ELEMENTS; i++) {
        state = state * 1664525u + 1013904223u;
        float x = (float)(state >> 9) * 0x1p-22f - 1, value = x * x * x * scale;

        value = place == OPTIMIZER_V ? value * value : value;
        if (dtype == DTYPE_F32)
            ((float *)(void *)operands[place])[i] = value;
        else if (dtype == DTYPE_U8)
            ((uint8_t *)operands[place])[i] = (uint8_t)(state >> 24);
        else
            ((uint16_t *)(void *)operands[place])[i] =
                dtype == DTYPE_BF16 ? bf16_from_float(value) : fp16_from_float(value / scale);
    }
}

static struct tensor part(int place, int64_t first, int64_t n, enum dtype dtype)
{
    return (struct tensor){ .data = operands[place] + (size_t)first * dtype_bytes(dtype),
                            .rows = 1,
                            .cols = n,
                            .stride = n,
                            .dtype = dtype };
}

static void add_update(struct op_shape *op, int number, int64_t first, int64_t n)
{
    static float scalars[OPS_N_SCALARS] = { 1e-4f, 0.5f, 0.1f, 100 }, factor = 0.7f;
    static int32_t skip;
    enum dtype state = updates[number].state;

    op->attributes = (struct op_attributes){
        .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .seed = 1
    };
    op->in[OPTIMIZER_SCALARS] =
        (struct tensor){ scalars, 1, OPS_N_SCALARS, OPS_N_SCALARS, DTYPE_F32 };
    op->in[OPTIMIZER_CLIP_FACTOR] = (struct tensor){ &factor, 1, 1, 1, DTYPE_F32 };
    op->in[OPTIMIZER_SKIP_UPDATE] = (struct tensor){ &skip, 1, 1, 1, DTYPE_I32 };
    op->in[OPTIMIZER_MASTER] = part(OPTIMIZER_MASTER, first, n, updates[number].master);
    op->in[OPTIMIZER_M] = part(OPTIMIZER_M, first, n, state);
    if (updates[number].has_v)
        op->in[OPTIMIZER_V] = part(OPTIMIZER_V, first, n, state);
    if (updates[number].is_split)
        op->in[OPTIMIZER_LOW] = part(OPTIMIZER_LOW, first, n, DTYPE_I16);
    else if (updates[number].master == DTYPE_F32)
        op->out[OPTIMIZER_WEIGHT] = part(OPS_MAX_INPUTS, first, n, DTYPE_BF16);
    if (!optimizer_is_scaled(state))
        return;
    int64_t block = first / OPS_STATE_BLOCK, n_blocks = n / OPS_STATE_BLOCK;
    op->in[OPTIMIZER_M_SCALE] = part(OPTIMIZER_M_SCALE, block, n_blocks, DTYPE_F32);
    if (updates[number].has_v)
        op->in[OPTIMIZER_V_SCALE] = part(OPTIMIZER_V_SCALE, block, n_blocks, DTYPE_F32);
}

static struct kernel_call call_of(int number, int64_t first, int64_t n)
{
    static double sums[N_ELEMENTS / OPS_NORM_BLOCK];
    struct kernel_call call = { .op = { .kind = updates[number].kind } };

    call.op.in[OPTIMIZER_GRADIENT] = part(OPTIMIZER_GRADIENT, first, n, DTYPE_F32);
    if (updates[number].kind == OP_SUMSQ)
        call.op.out[SUMSQ_SUMS] =
            (struct tensor){ sums, 1, n / OPS_NORM_BLOCK, n / OPS_NORM_BLOCK, DTYPE_F64 };
    else
        add_update(&call.op, number, first, n);
    return call;
}

/* ---- walks ---- */

enum walk_way { WALK_READ, WALK_CHANGE, WALK_WRITE };

/* An operand: where, and its bytes of OPS_STATE_BLOCK elements. */
struct walked {
    int place;
    enum walk_way way;
    size_t n_bytes;
};

struct walk {
    struct walked operands[OPS_MAX_INPUTS + 1];
    int n;
    int64_t first_block;
};

static void add_walked(struct walk *walk, int place, enum walk_way way, size_t n_bytes)
{
    walk->operands[walk->n++] = (struct walked){ place, way, n_bytes };
}

/* What the update does with its operands (add_update). */
static struct walk walk_of(int number)
{
    enum dtype state = updates[number].state;
    size_t of_state = OPS_STATE_BLOCK * dtype_bytes(state);
    struct walk walk = { .n = 0 };

    add_walked(&walk, OPTIMIZER_GRADIENT, WALK_READ, OPS_STATE_BLOCK * sizeof(float));
    if (updates[number].kind == OP_SUMSQ)
        return walk;
    add_walked(&walk, OPTIMIZER_MASTER, WALK_CHANGE,
               OPS_STATE_BLOCK * dtype_bytes(updates[number].master));
    add_walked(&walk, OPTIMIZER_M, WALK_CHANGE, of_state);
    if (updates[number].has_v)
        add_walked(&walk, OPTIMIZER_V, WALK_CHANGE, of_state);
    if (updates[number].is_split)
        add_walked(&walk, OPTIMIZER_LOW, WALK_CHANGE, OPS_STATE_BLOCK * sizeof(int16_t));
    else if (updates[number].master == DTYPE_F32)
        add_walked(&walk, OPS_MAX_INPUTS, WALK_WRITE, OPS_STATE_BLOCK * sizeof(uint16_t));
    if (optimizer_is_scaled(state))
        add_walked(&walk, OPTIMIZER_M_SCALE, WALK_CHANGE, sizeof(float));
    if (optimizer_is_scaled(state) && updates[number].has_v)
        add_walked(&walk, OPTIMIZER_V_SCALE, WALK_CHANGE, sizeof(float));
    return walk;
}

/* A register of the least vector unit, and how many of them are a line of memory. */
typedef uint64_t lanes __attribute__((vector_size(16), may_alias));
enum { PARTS = 4 };

static volatile uint64_t nothing = 0; /* what is changed is what it was */

/* So that reading is not left out: by thread, each on a line of its own. */
static struct seen {
    _Alignas(64) uint64_t lines;
} seen[64];

static void read_lines(const lanes *x, size_t n, int thread)
{
    lanes a = { 0 }, b = a, c = a, d = a;

    for (size_t i = 0; i < n; i++, x += PARTS) {
        a ^= x[0];
        b ^= x[1];
        c ^= x[2];
        d ^= x[3];
    }
    a ^= b ^ c ^ d;
    seen[thread % 64].lines ^= a[0] ^ a[1];
}

static void change_lines(lanes *x, size_t n)
{
    lanes mask = { nothing, nothing };

    for (size_t i = 0; i < n; i++, x += PARTS) {
        x[0] ^= mask;
        x[1] ^= mask;
        x[2] ^= mask;
        x[3] ^= mask;
    }
}

static void write_past_caches(void *x, size_t n_bytes)
{
#if defined(__SSE2__)
    for (size_t i = 0; i < n_bytes / sizeof(__m128i); i++)
        _mm_stream_si128((__m128i *)x + i, _mm_setzero_si128());
#else
    memset(x, 0, n_bytes);
#endif
}

static void walk_block(const struct walked *w, int64_t block, int thread)
{
    char *x = operands[w->place] + (size_t)block * w->n_bytes;
    size_t n = w->n_bytes / sizeof(lanes) / PARTS;

    if (w->way == WALK_READ)
        read_lines((lanes *)(void *)x, n, thread);
    else if (w->way == WALK_WRITE)
        write_past_caches(x, w->n_bytes);
    else if (n)
        change_lines((lanes *)(void *)x, n);
    else
        *(uint32_t *)(void *)x ^= (uint32_t)nothing; /* a scale */
}

static void walk_tile(void *context, int64_t tile, int thread)
{
    const struct walk *walk = context;

    for (int64_t i = 0; i < WALK_BLOCKS; i++)
        for (int k = 0; k < walk->n; k++)
            walk_block(&walk->operands[k], walk->first_block + tile * WALK_BLOCKS + i, thread);
}

static double seconds_of_walk(struct pool *pool, struct walk *walk, int64_t first, int64_t n)
{
    double begin = seconds_now(pool);

    walk->first_block = first / OPS_STATE_BLOCK;
    pool_run(pool, n / OPS_STATE_BLOCK / WALK_BLOCKS, walk_tile, walk);
    return seconds_now(pool) - begin;
}
_Static_assert(WINDOW % (OPS_STATE_BLOCK * WALK_BLOCKS) == 0, "whole tiles");

/* ---- updates ---- */

/* Seconds of a call over the elements from `first` on, n_calls times. */
static double seconds_of(struct kernels *kernels, int number, int64_t first, int64_t n, int n_calls)
{
    struct kernel_call call = call_of(number, first, n);
    double begin = seconds_now(kernels->pool);

    for (int i = 0; i < n_calls; i++)
        kernels_run(kernels, &call, KERNELS_FIRST);
    return (seconds_now(kernels->pool) - begin) / n_calls;
}

struct measured {
    double bytes;                         /* of VECTOR elements */
    double walk, from_memory, from_cache; /* nanoseconds of these */
    double share, least, most; /* a walk's time of the update's beside it: median, fifths */
};

static void measure_pairs(struct kernels *kernels, int number, struct measured *m)
{
    static double walks[N_TIMES], times[N_TIMES], shares[N_TIMES];
    struct walk walk = walk_of(number);
    int n = 0;

    for (int round = 0; round < ROUNDS; round++)
        for (int64_t first = 0; first < N_ELEMENTS; first += WINDOW, n++) {
            int64_t beside = (first + N_ELEMENTS / 2) % N_ELEMENTS; /* which no cache has */

            walks[n] = seconds_of_walk(kernels->pool, &walk, beside, WINDOW);
            times[n] = seconds_of(kernels, number, first, WINDOW, 1);
            shares[n] = walks[n] / times[n];
        }
    m->from_memory = fast_tenth(times, n) / WINDOW * VECTOR * 1e9;
    m->walk = fast_tenth(walks, n) / WINDOW * VECTOR * 1e9;
    qsort(shares, (size_t)n, sizeof *shares, ascending);
    m->share = shares[n / 2];
    m->least = shares[n / 5];
    m->most = shares[n - 1 - n / 5];
}

static struct measured measure(struct kernels *kernels, int number)
{
    static double times[N_TIMES];
    struct kernel_call call = call_of(number, 0, WINDOW);
    struct measured m = { .bytes = op_bytes(&call.op) / WINDOW * VECTOR };

    fill(OPTIMIZER_GRADIENT, DTYPE_F32, 1e-3f);
    fill(OPTIMIZER_MASTER, updates[number].master, 0.02f);
    fill(OPTIMIZER_M, updates[number].state, 1e-4f);
    fill(OPTIMIZER_V, updates[number].state, 1e-3f);
    fill(OPTIMIZER_M_SCALE, DTYPE_F32, 1e-3f);
    fill(OPTIMIZER_V_SCALE, DTYPE_F32, 1e-3f);
    measure_pairs(kernels, number, &m);
    for (int n = 0; n < N_TIMES && pool_n_threads(kernels->pool) == 1; n++)
        times[n] = seconds_of(kernels, number, 0, CACHED, CACHED_CALLS);
    if (pool_n_threads(kernels->pool) == 1)
        m.from_cache = fast_tenth(times, N_TIMES) / CACHED * VECTOR * 1e9;
    return m;
}

static void measure_all(struct kernels *kernels)
{
    enum { N = sizeof updates / sizeof *updates };
    int n_threads = pool_n_threads(kernels->pool);

    printf("%d thread%s, nanoseconds of %d elements (%s)\n\n", n_threads, n_threads > 1 ? "s" : "",
           VECTOR, kernels_identity(kernels));
    printf(
        "| update | states | bytes an element | a walk's speed | a walk | from memory | from the "
        "cache | of a walk's speed |\n|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < N; i++) {
        struct measured m = measure(kernels, i);
        char cached[16] = "";

        if (n_threads == 1)
            snprintf(cached, sizeof cached, "%.2f", m.from_cache);
        printf("| %s | %s | %.1f | %.1f GB/s | %.2f | %.2f | %s | %.0f %% (%.0f to %.0f) |\n",
               updates[i].name, updates[i].states, m.bytes / VECTOR, m.bytes / m.walk, m.walk,
               m.from_memory, cached, 100 * m.share, 100 * m.least, 100 * m.most);
        fflush(stdout);
    }
}

/* The first cores that this process may use. */
static int find_cores(int cores[], int n)
{
    cpu_set_t allowed;
    int n_found = 0;

    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return -1;
    for (int core = 0; core < CPU_SETSIZE && n_found < n; core++)
        if (CPU_ISSET((size_t)core, &allowed))
            cores[n_found++] = core;
    return n_found == n ? 0 : -1;
}

int main(int argc, char **argv)
{
    int cores[CPU_SETSIZE];
    int n_threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1;
    struct kernels *kernels;
    struct pool *pool;
    struct err err;

    if (argc > 2 || n_threads < 1 || n_threads > CPU_SETSIZE || find_cores(cores, n_threads)) {
        fprintf(stderr, "usage: optimizers [THREADS], of which there are cores\n");
        return 2;
    }
    if (pool_create(&pool, n_threads, cores, &err) ||
        kernels_cpu_create(&kernels, pool, NULL, &err)) {
        fprintf(stderr, "optimizers: %s\n", err.text);
        return 1;
    }
    for (size_t i = 0; i <= OPS_MAX_INPUTS; i++)
        operands[i] = (char *)allocate((size_t)N_ELEMENTS * sizeof(float) + HUGE_BYTES) + i * APART;
    measure_all(kernels);
    kernels_destroy(kernels);
    pool_destroy(pool);
    return 0;
}
