/*
 * preflight_product.c - products whose bits are known, by a rank's own kernels
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/num.h"
#include "base/rng.h"
#include "train/preflight_impl.h"

/* Of the exact product: a result of BLOCK x BLOCK, again and again over a large one. */
enum { BLOCK = 256, EXACT_COLUMNS = 512, EXACT_LARGE = 8192 };
/* Of the chains. On a GPU the host copies and hashes a result while nothing is computed. */
enum { SIZE = 512, SIZE_EMULATED = 128, SIZE_LARGE = 8192, LINKS = 4, LINKS_LARGE = 32 };

/* However slow the device is: one alone has nothing to be compared with. */
enum { LEAST_CHAINS = 3 };
enum { N_HASHES = 8 };

enum operand { OPERAND_EXACT_X, OPERAND_EXACT_W, OPERAND_CHAIN_X, OPERAND_CHAIN_W };

/* A product's operands and results in one block of the device. */
struct known_product {
    struct engine *engine;
    struct kernel_call call;
    enum dtype dtype;
    int64_t rows, n, k;
    unsigned char *memory, *x, *w, *y[2];
    unsigned char *staging; /* of the host, as large as the largest of them */
    bool is_prepared;
};

/* ---- operands ---- */

static void store(void *to, enum dtype dtype, int64_t i, float value)
{
    if (dtype == DTYPE_F32)
        ((float *)to)[i] = value;
    else if (dtype == DTYPE_BF16)
        ((uint16_t *)to)[i] = bf16_from_float(value);
    else
        ((uint16_t *)to)[i] = fp16_from_float(value);
}

struct filling {
    const struct known_product *product;
    enum operand operand;
    int64_t columns;
};

/* Whole numbers of 8 bits, so that 512 products of two of them add up to less than 2^24; of 5
 * where the result is fp16. */
static float exact_number(enum operand operand, enum dtype dtype, int64_t row, int64_t column)
{
    int bits = dtype == DTYPE_F16 ? 5 : 8;
    struct rng_block block =
        rng_at(0, RNG_PREFLIGHT, (uint64_t)operand << 32 | (uint64_t)row, (uint64_t)(column / 4));

    return (float)((int)(block.word[column % 4] & ((1u << bits) - 1)) - (1 << (bits - 1)));
}

static void fill_row(void *context, int64_t row, int thread)
{
    const struct filling *f = context;
    const struct known_product *p = f->product;
    unsigned char *to = p->staging + (size_t)(row * f->columns) * dtype_bytes(p->dtype);
    float numbers[512];

    (void)thread;
    if (f->operand == OPERAND_EXACT_X || f->operand == OPERAND_EXACT_W) {
        for (int64_t i = 0; i < f->columns; i++)
            store(to, p->dtype, i, exact_number(f->operand, p->dtype, row % BLOCK, i));
        return;
    }
    const struct rng_series series = { 0, RNG_PREFLIGHT,
                                       (uint64_t)f->operand << 32 | (uint64_t)row };
    /* A result's numbers are as large as x's. */
    float scale = f->operand == OPERAND_CHAIN_W ? 1 / sqrtf((float)f->columns) : 1;
    for (int64_t first = 0; first < f->columns; first += 512) {
        int64_t n = min_i64(512, f->columns - first);

        rng_normals(numbers, n, &series, first);
        for (int64_t i = 0; i < n; i++)
            store(to, p->dtype, first + i, numbers[i] * scale);
    }
}

static void fill(struct known_product *p, enum operand operand, void *to, int64_t rows)
{
    struct filling filling = { p, operand, p->k };

    pool_run(p->engine->pool, rows, fill_row, &filling);
    p->engine->device->ops->copy(p->engine->device, DEVICE_COMPUTE, to, p->staging,
                                 (size_t)(rows * p->k) * dtype_bytes(p->dtype));
}

static int product_open(struct known_product *p, struct engine *engine, enum dtype dtype,
                        const int64_t shape[3], struct err *err)
{
    struct kernel_call *call = &p->call;
    void *memory;

    *p = (struct known_product){ .engine = engine,
                                 .call = { .op.kind = OP_LINEAR },
                                 .dtype = dtype,
                                 .rows = shape[0],
                                 .n = shape[1],
                                 .k = shape[2] };
    call->op.in[LINEAR_X] = (struct tensor){ NULL, p->rows, p->k, p->k, dtype };
    call->op.in[LINEAR_W] = (struct tensor){ NULL, p->n, p->k, p->k, dtype };
    call->op.out[LINEAR_Y] = (struct tensor){ NULL, p->rows, p->n, p->n, dtype };
    size_t x_bytes = align_up((size_t)(p->rows * p->k) * dtype_bytes(dtype), 256);
    size_t w_bytes = align_up((size_t)(p->n * p->k) * dtype_bytes(dtype), 256);
    size_t y_bytes = align_up((size_t)(p->rows * p->n) * dtype_bytes(dtype), 256);
    size_t scratch = align_up(kernels_scratch_bytes(engine->kernels, &call->op), 256);
    if (engine->device->ops->allocate(engine->device, x_bytes + w_bytes + 2 * y_bytes + scratch,
                                      &memory, err) < 0)
        return -1;
    p->memory = p->x = memory;
    p->w = p->x + x_bytes;
    p->y[0] = p->w + w_bytes;
    p->y[1] = p->y[0] + y_bytes;
    call->scratch = p->y[1] + y_bytes;
    call->op.in[LINEAR_X].data = p->x;
    call->op.in[LINEAR_W].data = p->w;
    call->op.out[LINEAR_Y].data = p->y[0];
    p->staging = malloc(x_bytes > w_bytes ? (x_bytes > y_bytes ? x_bytes : y_bytes)
                                          : (w_bytes > y_bytes ? w_bytes : y_bytes));
    CHECK(p->staging);
    p->is_prepared = !kernels_prepare(engine->kernels, call, err);
    return p->is_prepared ? 0 : -1;
}

static void product_close(struct known_product *p)
{
    if (p->is_prepared)
        kernels_release(p->engine->kernels, &p->call);
    if (p->memory)
        p->engine->device->ops->release(p->engine->device, p->memory);
    free(p->staging);
}

/* A bit of the device's memory, for tests. */
static void flip_bit(struct known_product *p, unsigned char *at)
{
    struct device *device = p->engine->device;
    struct err ignored;
    unsigned char byte;

    device->ops->copy(device, DEVICE_COMPUTE, &byte, at, 1);
    device->ops->wait(device, DEVICE_COMPUTE, &ignored);
    byte ^= 0x40;
    device->ops->copy(device, DEVICE_COMPUTE, at, &byte, 1);
}

/* y into the staging. */
static int fetch(struct known_product *p, const unsigned char *y, struct err *err)
{
    struct device *device = p->engine->device;

    device->ops->copy(device, DEVICE_COMPUTE, p->staging, y,
                      (size_t)(p->rows * p->n) * dtype_bytes(p->dtype));
    return device->ops->wait(device, DEVICE_COMPUTE, err);
}

/* ---- the exact product ---- */

struct exact {
    enum dtype dtype;
    int16_t x[BLOCK][EXACT_COLUMNS], w[BLOCK][EXACT_COLUMNS];
    uint32_t y[BLOCK][BLOCK]; /* the bits of the dtype */
};

static void compute_row(void *context, int64_t row, int thread)
{
    struct exact *e = context;

    (void)thread;
    for (int column = 0; column < BLOCK; column++) {
        int32_t sum = 0;

        for (int i = 0; i < EXACT_COLUMNS; i++)
            sum += e->x[row][i] * e->w[column][i];
        e->y[row][column] = 0;
        store(&e->y[row][column], e->dtype, 0, (float)sum);
    }
}

static void compute_reference(struct exact *e, struct pool *pool)
{
    for (int row = 0; row < BLOCK; row++)
        for (int i = 0; i < EXACT_COLUMNS; i++) {
            e->x[row][i] = (int16_t)exact_number(OPERAND_EXACT_X, e->dtype, row, i);
            e->w[row][i] = (int16_t)exact_number(OPERAND_EXACT_W, e->dtype, row, i);
        }
    pool_run(pool, BLOCK, compute_row, e);
}

static uint32_t load_bits(const unsigned char *y, enum dtype dtype, int64_t i)
{
    return dtype_bytes(dtype) == 4 ? ((const uint32_t *)(const void *)y)[i]
                                   : ((const uint16_t *)(const void *)y)[i];
}

static void compare_exact(const struct known_product *p, const struct exact *e,
                          struct preflight_errors *errors)
{
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t column = 0; column < p->n; column++) {
            int64_t i = row * p->n + column;
            uint32_t bits = load_bits(p->staging, p->dtype, i) ^ e->y[row % BLOCK][column % BLOCK];

            if (bits && !errors->n_exact++) {
                errors->exact_at = i;
                errors->exact_bits = bits;
            }
        }
}

static int check_exact(struct preflight_check *check, struct err *err)
{
    int64_t size = engine_is_large(check->engine) ? EXACT_LARGE : BLOCK;
    const int64_t shape[3] = { size, size, EXACT_COLUMNS };
    struct known_product p;
    struct exact *exact = calloc(1, sizeof *exact);

    CHECK(exact);
    exact->dtype = check->request->dtype;
    compute_reference(exact, check->engine->pool);
    int status = product_open(&p, check->engine, exact->dtype, shape, err);
    if (!status) {
        fill(&p, OPERAND_EXACT_X, p.x, p.rows);
        fill(&p, OPERAND_EXACT_W, p.w, p.n);
        if (check->is_flipped)
            flip_bit(&p, p.w);
        kernels_run(check->engine->kernels, &p.call, KERNELS_FIRST);
        status = fetch(&p, p.y[0], err);
    }
    if (!status)
        compare_exact(&p, exact, &check->own->errors);
    product_close(&p);
    free(exact);
    return status;
}

/* ---- chains ---- */

/* Hashes of repetitions so far; those beyond the last have none of their own. */
struct hash_counts {
    uint64_t hash[N_HASHES];
    int n[N_HASHES], n_kinds, n_all;
};

static void count_hash(struct hash_counts *counts, uint64_t hash)
{
    int i = 0;

    while (i < counts->n_kinds && counts->hash[i] != hash)
        i++;
    counts->n_all++;
    if (i == N_HASHES)
        return;
    counts->hash[i] = hash;
    counts->n[i]++;
    counts->n_kinds = max_int(counts->n_kinds, i + 1);
}

static void take_hashes(const struct hash_counts *counts, struct preflight_rank *own)
{
    int most = 0;

    for (int i = 1; i < counts->n_kinds; i++)
        if (counts->n[i] > counts->n[most])
            most = i;
    own->hash = counts->hash[most];
    own->n_repetitions += counts->n_all;
    own->errors.n_differing += counts->n_all - counts->n[most];
}

/* The product with x of the chain's i-th link, into the other result. */
static void run_link(struct known_product *p, int i)
{
    p->call.op.in[LINEAR_X].data = i ? p->y[(i - 1) & 1] : p->x;
    p->call.op.out[LINEAR_Y].data = p->y[i & 1];
    kernels_run(p->engine->kernels, &p->call, KERNELS_FIRST);
}

/* A chain, of which n_timed products are timed together; *best: seconds of one. */
static int run_chain(struct preflight_check *check, struct known_product *p, int n_links,
                     int n_timed, double *best, struct err *err)
{
    struct device *device = p->engine->device;
    bool flips = fault_at("preflight:repeat", check->own->n_repetitions) == FAULT_FLIP;

    for (int i = 0; i < n_links; i += n_timed) {
        double begin = clock_seconds();

        for (int k = i; k < i + n_timed; k++)
            run_link(p, k);
        if (device->ops->wait(device, DEVICE_COMPUTE, err) < 0)
            return -1;
        if (check->is_throttled)
            usleep((useconds_t)(9e6 * (clock_seconds() - begin)));
        *best = fmin(*best, (clock_seconds() - begin) / n_timed);
        if (flips && !i)
            flip_bit(p, p->y[(n_timed - 1) & 1]);
    }
    return 0;
}

static int repeat_chains(struct preflight_check *check, struct known_product *p, double seconds,
                         double *best, struct err *err)
{
    bool is_large = engine_is_large(check->engine);
    int n_links = is_large ? LINKS_LARGE : LINKS, n_timed = is_large ? LINKS_LARGE : 1;
    struct hash_counts counts = { .n_all = 0 };
    double begin = clock_seconds();

    do {
        if (run_chain(check, p, n_links, n_timed, best, err) < 0 ||
            fetch(p, p->y[(n_links - 1) & 1], err) < 0)
            return -1;
        count_hash(&counts,
                   XXH3_64bits(p->staging, (size_t)(p->rows * p->n) * dtype_bytes(p->dtype)));
        check->own->n_repetitions++;
        preflight_beat(check);
    } while ((clock_seconds() < begin + seconds || counts.n_all < LEAST_CHAINS) &&
             !preflight_is_stopped());
    check->own->n_repetitions -= counts.n_all;
    take_hashes(&counts, check->own);
    return 0;
}

static int check_chains(struct preflight_check *check, double seconds, struct err *err)
{
    const struct engine *engine = check->engine;
    int64_t size = engine_is_large(engine)          ? SIZE_LARGE
                   : device_is_host(engine->device) ? SIZE
                                                    : SIZE_EMULATED;
    const int64_t shape[3] = { size, size, size };
    struct known_product p;
    double best = 1e30;
    int status = product_open(&p, check->engine, check->request->dtype, shape, err);

    if (!status) {
        fill(&p, OPERAND_CHAIN_X, p.x, p.rows);
        fill(&p, OPERAND_CHAIN_W, p.w, p.n);
        if (check->is_flipped)
            flip_bit(&p, p.w);
        status = repeat_chains(check, &p, seconds, &best, err);
    }
    if (!status) {
        double flops = op_flops(&p.call.op) / best / max_int(1, check->own->n_threads);

        check->own->speed[PREFLIGHT_PRODUCT] = fmax(check->own->speed[PREFLIGHT_PRODUCT], flops);
    }
    product_close(&p);
    return status;
}

int preflight_product(struct preflight_check *check, struct err *err)
{
    if (!check->own->n_repetitions && check_exact(check, err) < 0)
        return -1;
    return check_chains(check, preflight_product_seconds(check), err);
}
