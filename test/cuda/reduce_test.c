/*
 * reduce_test.c - the device's sums over ranks and copies of columns, to the bit of the host's
 *
 * Any number of terms that a tree has a shape for (groups of eight, their rests, counters that
 * carry), wherever terms and sum lie: at multiples of 16 bytes and beside them, ends that do not
 * fill a pack, a sum that takes the place of a term, and one that is added.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/reduce.h"
#include "support/test_device.h"

enum { QUEUE = DEVICE_TRAFFIC + 2, ROOM_BYTES = 1 << 20 };

static struct kernels *kernels;
static unsigned char *there, here[ROOM_BYTES], back[ROOM_BYTES];

static int open_device(void **state)
{
    struct err err;
    void *memory;

    (void)state;
    kernels = test_device_open(1);
    if (kernels->device->ops->open_queue(kernels->device, QUEUE, &err) < 0 ||
        kernels->device->ops->allocate(kernels->device, ROOM_BYTES, &memory, &err) < 0)
        return -1;
    there = memory;
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    kernels->device->ops->release(kernels->device, there);
    test_device_close(kernels);
    return 0;
}

static void put(enum dtype dtype, unsigned char *at, int64_t i)
{
    struct rng_block block = rng_at(29, RNG_TEST, (uint64_t)dtype, (uint64_t)i);
    double x = ldexp((double)rng_normal(block.word[0], block.word[1]), (int)(block.word[2] % 12));
    float narrow = (float)x;
    uint16_t half = dtype == DTYPE_BF16 ? bf16_from_float(narrow) : fp16_from_float(narrow);

    at += (size_t)i * dtype_bytes(dtype);
    if (dtype == DTYPE_F64)
        memcpy(at, &x, sizeof x);
    else if (dtype == DTYPE_F32)
        memcpy(at, &narrow, sizeof narrow);
    else
        memcpy(at, &half, sizeof half);
}

static void upload(void)
{
    kernels->device->ops->copy(kernels->device, QUEUE, there, here, ROOM_BYTES);
}

static void download(void)
{
    struct err err;

    kernels->device->ops->copy(kernels->device, QUEUE, back, there, ROOM_BYTES);
    assert_int_equal(kernels->device->ops->wait(kernels->device, QUEUE, &err), 0);
}

/* Terms begin at element `shift`; the sum stands at element `to` and may be a term. */
struct sum_case {
    enum dtype dtype;
    int n_terms;
    int64_t n, stride, shift, to;
    int adds;
};

static void check_sum(struct sum_case c)
{
    size_t element = dtype_bytes(c.dtype);
    unsigned char *terms = here + (size_t)c.shift * element, *out = here + (size_t)c.to * element;
    int64_t n_all = ROOM_BYTES / (int64_t)element;
    float *added = test_malloc((size_t)c.n * sizeof(double));

    for (int64_t i = 0; i < n_all && i < 20000; i++)
        put(c.dtype, here, i);
    upload();
    struct kernels_sum sum = { c.dtype,
                               there + (size_t)c.to * element,
                               there + (size_t)c.shift * element,
                               c.n_terms,
                               c.stride,
                               c.n,
                               c.adds };
    kernels->backend->traffic->sum(kernels, QUEUE, &sum);
    download();
    if (c.adds) {
        reduce_tree(c.dtype, added, terms, c.n_terms, c.stride, c.n);
        for (int64_t i = 0; i < c.n; i++)
            ((float *)out)[i] += added[i];
    } else {
        reduce_tree(c.dtype, out, terms, c.n_terms, c.stride, c.n);
    }
    if (memcmp(here, back,
               (size_t)20000 * element < ROOM_BYTES ? (size_t)20000 * element : ROOM_BYTES) != 0)
        fail_msg("a sum of %d terms of %lld %s at %lld, stride %lld, differs", c.n_terms,
                 (long long)c.n, dtype_name(c.dtype), (long long)c.shift, (long long)c.stride);
    test_free(added);
}

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64 };
#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

static void every_number_of_terms(void **state)
{
    static const int more[] = { 63, 64, 65, 127, 129, 255, 600, 1025 };

    (void)state;
    for (int d = 0; d < COUNT(dtypes); d++) {
        for (int n = 1; n <= 40; n++)
            check_sum((struct sum_case){ dtypes[d], n, 13, 16, 64, 0, 0 });
        for (int i = 0; i < COUNT(more); i++)
            check_sum((struct sum_case){ dtypes[d], more[i], 13, 16, 64, 0, 0 });
    }
}

static void wherever_they_lie(void **state)
{
    (void)state;
    for (int d = 0; d < COUNT(dtypes); d++)
        for (int shift = 1024; shift < 1026; shift++)
            for (int stride = 520; stride < 522; stride++)
                for (int n = 511; n < 515; n++) {
                    check_sum((struct sum_case){ dtypes[d], 6, n, stride, shift, 8, 0 });
                    check_sum((struct sum_case){ dtypes[d], 11, n, stride, shift, 3, 0 });
                    /* In the place of the first term: what both leave of others is unspecified,
                     * and the same. */
                    check_sum((struct sum_case){ dtypes[d], 5, n, stride, shift, shift, 0 });
                }
}

static void added(void **state)
{
    (void)state;
    for (int n = 1; n <= 20; n++)
        check_sum((struct sum_case){ DTYPE_F32, n, 301, 304, 1024, 4 * (n % 3), 1 });
}

static void check_columns(const struct kernels_columns *c)
{
    size_t size = c->element_bytes, to = (size_t)((const unsigned char *)c->to - there);
    size_t from = (size_t)((const unsigned char *)c->from - there);

    for (int i = 0; i < 16384; i++)
        here[i] = (unsigned char)(i * 7 + i / 251);
    upload();
    kernels->backend->traffic->copy_columns(kernels, QUEUE, c);
    download();
    for (int64_t b = 0; b < (c->n_blocks ? c->n_blocks : 1); b++)
        for (int64_t r = 0; r < c->rows; r++)
            memcpy(here + (int64_t)to + (b * c->to_step + r * c->to_stride) * (int64_t)size,
                   here + (int64_t)from + (b * c->from_step + r * c->from_stride) * (int64_t)size,
                   (size_t)c->cols * size);
    assert_memory_equal(here, back, 16384);
}

static void columns(void **state)
{
    static const size_t bytes[] = { 1, 2, 4, 8 };

    (void)state;
    for (int b = 0; b < COUNT(bytes); b++)
        for (int cols = 1; cols < 40; cols += cols < 8 ? 1 : 8)
            for (int shift = 0; shift < 3; shift++) {
                struct kernels_columns c = { .to = there + 8192 + (size_t)shift * bytes[b],
                                             .to_stride = 48 + shift,
                                             .from = there + (size_t)cols * bytes[b],
                                             .from_stride = 96,
                                             .rows = 7,
                                             .cols = cols,
                                             .element_bytes = bytes[b] };

                check_columns(&c);
                c.rows = 3;
                c.n_blocks = 2;
                c.to_step = 4 * c.to_stride + shift;
                c.from_step = 300;
                check_columns(&c);
                /* The second block before the first. */
                c.to = (unsigned char *)c.to + c.to_step * (int64_t)bytes[b];
                c.to_step = -c.to_step;
                check_columns(&c);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_terms),
        cmocka_unit_test(wherever_they_lie),
        cmocka_unit_test(added),
        cmocka_unit_test(columns),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
