/*
 * top_k.c - the largest elements of gradients, and sums of such
 *
 * top_k: a tile is a part. The k-th largest magnitude is found by its digits, highest first: each
 * of three passes counts those that begin as it does by their next digit. A further pass takes what
 * is larger and, of what is equal, the first ones. Exact, and bound by four reads of memory.
 *
 * add_pairs: a tile is ELEMENTS neighbours, into which each rank's pairs are scattered, rank by
 * rank.
 */
#include "kernels/cpu/rows_impl.h"

enum { N_DIGITS = 2048, N_PASSES = 3 }; /* 31 bits of magnitude: 11, 11 and 9 */

static uint32_t magnitude(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

/* The k-th largest of n magnitudes; *n_larger: how many are larger. */
static uint32_t find_threshold(const float *x, int64_t n, int64_t k, int64_t *n_larger)
{
    static const int shifts[N_PASSES] = { 20, 9, 0 }, bits[N_PASSES] = { 11, 11, 9 };
    uint32_t found = 0, known = 0; /* its digits so far; which bits these are */

    *n_larger = 0;
    for (int pass = 0; pass < N_PASSES; pass++) {
        int64_t counts[N_DIGITS] = { 0 };
        uint32_t mask = (1u << bits[pass]) - 1, digit = mask;

        for (int64_t i = 0; i < n; i++) {
            uint32_t size = magnitude(x[i]);

            counts[size >> shifts[pass] & mask] += (size & known) == found;
        }
        while (*n_larger + counts[digit] < k)
            *n_larger += counts[digit--];
        found |= digit << shifts[pass];
        known |= mask << shifts[pass];
    }
    return found;
}

struct top_k_parts {
    const struct op_shape *op;
    double *sums;
};

static void choose_tile(void *context, int64_t tile, int thread)
{
    const struct top_k_parts *c = context;
    const int32_t *parts = c->op->in[TOP_K_PARTS].data;
    const struct tensor *pairs = &c->op->out[TOP_K_PAIRS];
    int64_t first = parts[2 * tile], n = parts[2 * tile + 1], at = 0, n_larger, n_equal;
    double ratio = c->op->attributes.ratio;
    float *x = (float *)c->op->in[TOP_K_X].data + first;
    int64_t k = ops_top_k(ratio, n);
    double lanes[2] = { 0 };

    (void)thread;
    for (int64_t i = 0; i < tile; i++)
        at += ops_top_k(ratio, parts[2 * i + 1]);
    CHECK(at + k <= pairs->cols / 2);
    uint32_t threshold = find_threshold(x, n, k, &n_larger);
    int32_t *numbers = (int32_t *)pairs->data + at, *bits = numbers + pairs->cols / 2;
    n_equal = k - n_larger;
    for (int64_t i = 0; i < n; i++) {
        uint32_t size = magnitude(x[i]);

        lanes[0] += (double)x[i] * (double)x[i];
        if (size > threshold || (size == threshold && n_equal-- > 0)) {
            *numbers++ = (int32_t)(first + i);
            memcpy(bits++, &x[i], sizeof *bits);
            x[i] = 0;
        } else {
            lanes[1] += (double)x[i] * (double)x[i];
        }
    }
    c->sums[2 * tile] = lanes[0];
    c->sums[2 * tile + 1] = lanes[1];
}

static size_t top_k_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return (size_t)op->in[TOP_K_PARTS].cols * sizeof(double);
}

static void top_k_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct top_k_parts c = { &call->op, call->scratch };
    int64_t n_parts = call->op.in[TOP_K_PARTS].cols / 2;
    double *sums = call->op.out[TOP_K_SUMS].data;

    (void)first;
    pool_run(kernels->pool, n_parts, choose_tile, &c);
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < n_parts; i++) {
        sums[0] += c.sums[2 * i];
        sums[1] += c.sums[2 * i + 1];
    }
}

/* ---- sums ---- */

/* Sums of 1, 2, 4, ... rows wait for as many more: the tree of comm/reduce.h, row by row. */
enum { ELEMENTS = 512, WAITING_MAX = 24 };

/* The first of n ascending numbers that is at least `least`. */
static int64_t first_from(const int32_t *numbers, int64_t n, int64_t least)
{
    int64_t low = 0;

    while (low < n) {
        int64_t middle = low + (n - low) / 2;

        if (numbers[middle] < least)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

static void scatter(const struct tensor *pairs, int64_t row, int64_t begin, int64_t n, float *to)
{
    const int32_t *numbers = cpu_row(pairs, row);
    int64_t n_pairs = pairs->cols / 2;

    memset(to, 0, (size_t)n * sizeof *to);
    for (int64_t i = first_from(numbers, n_pairs, begin); i < n_pairs && numbers[i] < begin + n;
         i++)
        memcpy(&to[numbers[i] - begin], &numbers[n_pairs + i], sizeof *to);
}

static void add_last(float waiting[WAITING_MAX][ELEMENTS], int n_waiting, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        waiting[n_waiting - 2][i] += waiting[n_waiting - 1][i];
}

static void add_tile(void *context, int64_t tile, int thread)
{
    const struct op_shape *op = context;
    const struct tensor *pairs = &op->in[ADD_PAIRS_PAIRS];
    int64_t begin = tile * ELEMENTS, n = min_i64(ELEMENTS, op->out[ADD_PAIRS_Y].cols - begin);
    float waiting[WAITING_MAX][ELEMENTS];
    int n_waiting = 0;

    (void)thread;
    for (int64_t row = 0; row < pairs->rows; row++) {
        scatter(pairs, row, begin, n, waiting[n_waiting++]);
        for (int64_t k = row + 1; k % 2 == 0; k /= 2, n_waiting--)
            add_last(waiting, n_waiting, n);
    }
    for (; n_waiting > 1; n_waiting--)
        add_last(waiting, n_waiting, n);
    memcpy((float *)op->out[ADD_PAIRS_Y].data + begin, waiting[0], (size_t)n * sizeof(float));
}

static void add_pairs_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct op_shape op = call->op;

    (void)first;
    CHECK(op.in[ADD_PAIRS_PAIRS].rows < (int64_t)1 << (WAITING_MAX - 1));
    pool_run(kernels->pool, ceil_div(op.out[ADD_PAIRS_Y].cols, ELEMENTS), add_tile, &op);
}

void cpu_register_top_k(struct kernels_backend *table)
{
    table->entries[OP_TOP_K] =
        (struct kernel_entry){ .run = top_k_run, .scratch_bytes = top_k_scratch_bytes };
    table->entries[OP_ADD_PAIRS] = (struct kernel_entry){ .run = add_pairs_run };
}
