/*
 * optimizers.c - what bounds an update on one core: memory, or the arithmetic of its states
 *
 * build/bench/optimizers: each update over operands that lie in memory, and over few that stay in
 * the second-level cache, on one thread. Times are the thread's CPU time of a window, of which the
 * fastest tenth ends at what is printed: other processes take cores, but hardly this. Beside them
 * the time that the operands' bytes take at the speed of a walk that changes memory in place, in
 * the same process. Prints rows for bench/results/optimizers.md.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

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

static double cpu_seconds(void)
{
    struct timespec time;

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

/* Seconds of a call over the elements from `first` on, n_calls times. */
static double seconds_of(struct kernels *kernels, int number, int64_t first, int64_t n, int n_calls)
{
    struct kernel_call call = call_of(number, first, n);
    double begin = cpu_seconds();

    for (int i = 0; i < n_calls; i++)
        kernels_run(kernels, &call, KERNELS_FIRST);
    return (cpu_seconds() - begin) / n_calls;
}

/* Bytes a second of a walk that changes memory in place. */
static double walk_speed(void)
{
    static double times[N_TIMES];
    uint64_t *x = (uint64_t *)(void *)operands[OPTIMIZER_MASTER];
    int n = 0, n_words = WINDOW / 2;

    for (int64_t at = 0; at + n_words <= N_ELEMENTS / 2; at += n_words) {
        double begin = cpu_seconds();

        for (int i = 0; i < n_words; i++)
            x[at + i] ^= 1;
        times[n++] = cpu_seconds() - begin;
    }
    return 2.0 * n_words * sizeof *x / fast_tenth(times, n);
}

struct measured {
    double bytes, from_cache, from_memory; /* of VECTOR elements: nanoseconds */
};

static struct measured measure(struct kernels *kernels, int number)
{
    static double times[N_TIMES];
    struct kernel_call call = call_of(number, 0, WINDOW);
    struct measured m = { .bytes = op_bytes(&call.op) / WINDOW * VECTOR };
    int n = 0;

    fill(OPTIMIZER_GRADIENT, DTYPE_F32, 1e-3f);
    fill(OPTIMIZER_MASTER, updates[number].master, 0.02f);
    fill(OPTIMIZER_M, updates[number].state, 1e-4f);
    fill(OPTIMIZER_V, updates[number].state, 1e-3f);
    fill(OPTIMIZER_M_SCALE, DTYPE_F32, 1e-3f);
    fill(OPTIMIZER_V_SCALE, DTYPE_F32, 1e-3f);
    for (int round = 0; round < ROUNDS; round++)
        for (int64_t first = 0; first < N_ELEMENTS; first += WINDOW)
            times[n++] = seconds_of(kernels, number, first, WINDOW, 1);
    m.from_memory = fast_tenth(times, n) / WINDOW * VECTOR * 1e9;
    for (n = 0; n < N_TIMES; n++)
        times[n] = seconds_of(kernels, number, 0, CACHED, CACHED_CALLS);
    m.from_cache = fast_tenth(times, n) / CACHED * VECTOR * 1e9;
    return m;
}

static void measure_all(struct kernels *kernels)
{
    enum { N = sizeof updates / sizeof *updates };
    struct measured m[N];
    double speed = walk_speed();

    for (int i = 0; i < N; i++) {
        double again = walk_speed();

        speed = again > speed ? again : speed;
        m[i] = measure(kernels, i);
    }
    printf("One core, nanoseconds of %d elements; memory %.1f GB/s (%s)\n\n", VECTOR, speed * 1e-9,
           kernels_identity(kernels));
    printf(
        "| update | states | bytes an element | at memory's speed | from the cache | from memory "
        "| of memory's speed |\n|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < N; i++)
        printf("| %s | %s | %.1f | %.2f | %.2f | %.2f | %.0f %% |\n", updates[i].name,
               updates[i].states, m[i].bytes / VECTOR, m[i].bytes / speed * 1e9, m[i].from_cache,
               m[i].from_memory, 100 * m[i].bytes / speed * 1e9 / m[i].from_memory);
}

int main(void)
{
    struct kernels *kernels;
    struct pool *pool;
    struct err err;

    if (pool_create(&pool, 1, NULL, &err) || kernels_cpu_create(&kernels, pool, NULL, &err)) {
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
