/*
 * reduce_test.c - the tree against its recursive definition, and flat against hierarchical
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "comm/reduce.h"

enum { N_TERMS_MAX = 64 };

/* Numbers of many magnitudes, so that every order of adding rounds differently. */
static double number_at(int term, int64_t i)
{
    struct rng_block block = rng_at(11, RNG_TEST, (uint64_t)term, (uint64_t)i);

    return ldexp((double)rng_normal(block.word[0], block.word[1]), (int)(block.word[2] % 20));
}

static void put(enum dtype dtype, void *values, int64_t i, double x)
{
    if (dtype == DTYPE_F64)
        ((double *)values)[i] = x;
    else if (dtype == DTYPE_F32)
        ((float *)values)[i] = (float)x;
    else if (dtype == DTYPE_F16)
        ((uint16_t *)values)[i] = fp16_from_float((float)x);
    else
        ((uint16_t *)values)[i] = bf16_from_float((float)x);
}

static int split_at(int n)
{
    int left = 1;

    while (2 * left < n)
        left *= 2;
    return left;
}

static double sum_f64(const double *terms, int64_t stride, int n)
{
    int left = split_at(n);

    return n == 1 ? terms[0]
                  : sum_f64(terms, stride, left) + sum_f64(terms + left * stride, stride, n - left);
}

static float sum_f32(const float *terms, int64_t stride, int n)
{
    int left = split_at(n);

    return n == 1 ? terms[0]
                  : sum_f32(terms, stride, left) + sum_f32(terms + left * stride, stride, n - left);
}

typedef float (*widen_fn)(uint16_t x);

static float sum_16(const uint16_t *terms, int64_t stride, int n, widen_fn widen)
{
    int left = split_at(n);

    return n == 1 ? widen(terms[0])
                  : sum_16(terms, stride, left, widen) +
                        sum_16(terms + left * stride, stride, n - left, widen);
}

static void expect(enum dtype dtype, const void *terms, void *expected, int n_terms, int64_t stride,
                   int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (dtype == DTYPE_F64)
            ((double *)expected)[i] = sum_f64((const double *)terms + i, stride, n_terms);
        else if (dtype == DTYPE_F32)
            ((float *)expected)[i] = sum_f32((const float *)terms + i, stride, n_terms);
        else if (dtype == DTYPE_F16)
            ((uint16_t *)expected)[i] = fp16_from_float(
                sum_16((const uint16_t *)terms + i, stride, n_terms, fp16_to_float));
        else
            ((uint16_t *)expected)[i] = bf16_from_float(
                sum_16((const uint16_t *)terms + i, stride, n_terms, bf16_to_float));
    }
}

/* One call with out apart and one with out = terms. */
static void check_one(enum dtype dtype, int n_terms, int64_t stride, int64_t n)
{
    size_t bytes = dtype_bytes(dtype), total = bytes * (size_t)(stride * n_terms);
    unsigned char *terms = malloc(total), *copy = malloc(total);
    unsigned char *expected = malloc(bytes * (size_t)n), *out = malloc(bytes * (size_t)n + 1);

    for (int term = 0; term < n_terms; term++)
        for (int64_t i = 0; i < stride; i++)
            put(dtype, terms, term * stride + i, number_at(term, i));
    memcpy(copy, terms, total);
    expect(dtype, terms, expected, n_terms, stride, n);
    out[bytes * (size_t)n] = 0x5a;
    reduce_tree(dtype, out, terms, n_terms, stride, n);
    assert_memory_equal(out, expected, bytes * (size_t)n);
    assert_int_equal(out[bytes * (size_t)n], 0x5a);
    reduce_tree(dtype, copy, copy, n_terms, stride, n);
    assert_memory_equal(copy, expected, bytes * (size_t)n);
    free(out);
    free(expected);
    free(copy);
    free(terms);
}

static void test_tree(void **state)
{
    static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16 };

    (void)state;
    for (int d = 0; d < 4; d++) {
        for (int n_terms = 1; n_terms <= N_TERMS_MAX; n_terms++)
            check_one(dtypes[d], n_terms, 29, 23);
        check_one(dtypes[d], 5, 5000, 4097);
        check_one(dtypes[d], 13, 1024, 1024);
        check_one(dtypes[d], 2, 10000, 9999);
        check_one(dtypes[d], 1000, 3, 3);
        check_one(dtypes[d], 4096, 1, 1);
    }
}

/* Sums of aligned groups of 2^k terms, then the sum of those: the same bits as all at once. */
static void test_hierarchical(void **state)
{
    enum { N = 50 };
    float terms[N_TERMS_MAX * N], copy[N_TERMS_MAX * N], flat[N], partial[N_TERMS_MAX * N], sum[N];

    (void)state;
    for (int i = 0; i < N_TERMS_MAX * N; i++)
        terms[i] = (float)number_at(i / N, i % N);
    for (int n_terms = 1; n_terms <= N_TERMS_MAX; n_terms++) {
        memcpy(copy, terms, sizeof terms);
        reduce_tree(DTYPE_F32, flat, copy, n_terms, N, N);
        for (int group = 2; group <= 16; group *= 2) {
            int n_groups = 0;

            memcpy(copy, terms, sizeof terms);
            for (int first = 0; first < n_terms; first += group, n_groups++) {
                int size = n_terms - first < group ? n_terms - first : group;

                reduce_tree(DTYPE_F32, partial + n_groups * N, copy + first * N, size, N, N);
            }
            reduce_tree(DTYPE_F32, sum, partial, n_groups, N, N);
            assert_memory_equal(sum, flat, sizeof sum);
        }
    }
}

/* Of two NaN the compiler may keep either's payload: they count as equal. */
static void assert_equal_16(const uint16_t *a, const uint16_t *b, int n, widen_fn widen)
{
    for (int i = 0; i < n; i++)
        if (!(isnan(widen(a[i])) && isnan(widen(b[i]))))
            assert_int_equal(a[i], b[i]);
}

/* Infinities and NaN, at every place of a vector and in its tail; ties round to even. */
static void check_specials(enum dtype dtype, const uint16_t *specials, int n_specials)
{
    enum { N = 19 };
    uint16_t terms[2 * N], expected[N], out[N];

    for (int a = 0; a < n_specials; a++)
        for (int b = 0; b < n_specials; b++)
            for (int place = 0; place < N; place++) {
                for (int i = 0; i < N; i++) {
                    terms[i] = i == place ? specials[a] : 0x3f80;
                    terms[N + i] = i == place ? specials[b] : 0x3c01;
                }
                expect(dtype, terms, expected, 2, N, N);
                reduce_tree(dtype, out, terms, 2, N, N);
                assert_equal_16(out, expected, N,
                                dtype == DTYPE_F16 ? fp16_to_float : bf16_to_float);
            }
}

static void test_specials(void **state)
{
    static const uint16_t bf16[] = { 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff, 0x7f7f,
                                     0x0000, 0x8000, 0x0001, 0x3f80, 0x3f81, 0x4381 };
    /* Infinities, NaN; zeros; subnormals, the largest and smallest; numbers that tie, overflow. */
    static const uint16_t fp16[] = { 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff, 0x7bff,
                                     0x4c00, 0x0000, 0x8000, 0x0001, 0x03ff, 0x0400,
                                     0x3c00, 0x3c01, 0x1001, 0x7b00, 0xfbff, 0x8001 };

    (void)state;
    check_specials(DTYPE_BF16, bf16, (int)(sizeof bf16 / sizeof *bf16));
    check_specials(DTYPE_F16, fp16, (int)(sizeof fp16 / sizeof *fp16));
}

/* The order matters with these numbers: a test of the tests above. */
static void test_order_matters(void **state)
{
    float terms[6], copy[6], tree, line = 0;
    int differ = 0;

    (void)state;
    for (int i = 0; i < 100; i++) {
        for (int term = 0; term < 6; term++)
            copy[term] = terms[term] = (float)number_at(term, i);
        reduce_tree(DTYPE_F32, &tree, copy, 6, 1, 1);
        line = 0;
        for (int term = 0; term < 6; term++)
            line += terms[term];
        differ += line != tree;
    }
    assert_true(differ > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_hierarchical),
        cmocka_unit_test(test_specials),
        cmocka_unit_test(test_order_matters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
