/*
 * Nothing is allocated while ops run. malloc and its kin are ours here, but where a sanitizer has
 * brought its own: nothing is counted then.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/num.h"
#include "kernels/kernels.h"
#include "support/op_case.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_OWN_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_OWN_MALLOC 1
#endif
#endif

static struct {
    int on;
    int64_t n;
} counts;

#ifndef HAS_OWN_MALLOC

static void *next(const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);

    if (!symbol)
        abort();
    return symbol;
}

static void *note(void *p)
{
    counts.n += counts.on && p;
    return p;
}

void *malloc(size_t bytes)
{
    static void *(*real)(size_t);

    if (!real)
        real = (void *(*)(size_t))next("malloc");
    return note(real(bytes));
}

void *calloc(size_t n, size_t bytes)
{
    static void *(*real)(size_t, size_t);

    if (!real)
        real = (void *(*)(size_t, size_t))next("calloc");
    return note(real(n, bytes));
}

void *realloc(void *p, size_t bytes)
{
    static void *(*real)(void *, size_t);

    if (!real)
        real = (void *(*)(void *, size_t))next("realloc");
    return note(real(p, bytes));
}

int posix_memalign(void **p, size_t alignment, size_t bytes)
{
    static int (*real)(void **, size_t, size_t);

    if (!real)
        real = (int (*)(void **, size_t, size_t))next("posix_memalign");
    int error = real(p, alignment, bytes);

    if (!error)
        note(*p);
    return error;
}

#endif

/* One thread: the counter is no atomic, and so the first run is the first of its kind. */
static int64_t count_run(const struct op_case *c)
{
    struct kernel_call call = { .op = c->op };
    struct kernels *kernels;
    struct pool *pool;
    struct err err;

    assert_int_equal(pool_create(&pool, 1, NULL, &err), 0);
    assert_int_equal(kernels_cpu_create(&kernels, pool, NULL, &err), 0);
    size_t bytes = kernels_scratch_bytes(kernels, &call.op);

    assert_int_equal(posix_memalign(&call.scratch, 64, align_up(bytes + 1, 64)), 0);
    assert_int_equal(kernels_prepare(kernels, &call, &err), 0);
    counts.n = 0;
    counts.on = 1;
    kernels_run(kernels, &call, KERNELS_FIRST);
    counts.on = 0;
    kernels_release(kernels, &call);
    kernels_destroy(kernels);
    pool_destroy(pool);
    free(call.scratch);
    return counts.n;
}

static void check_none(struct op_case *c)
{
    assert_int_equal(count_run(c), 0);
    op_case_destroy(c);
}

static struct op_case *product(enum op_kind kind, int64_t t, int64_t n, int64_t k, enum dtype act)
{
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ 0 });
    int is_dw = kind == OP_LINEAR_DW;

    op_case_input(c, 0, t, kind == OP_LINEAR ? k : n, act, 1);
    op_case_input(c, 1, is_dw ? t : n, k, act, 1);
    op_case_output(c, 0, is_dw ? n : t, kind == OP_LINEAR ? n : k, is_dw ? DTYPE_F32 : act);
    return c;
}

static void test_products(void **state)
{
    static const enum op_kind kinds[] = { OP_LINEAR, OP_LINEAR_DX, OP_LINEAR_DW };

    (void)state;
    for (int i = 0; i < 3; i++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            enum dtype act = act_at(i_act);

            check_none(product(kinds[i], 64, 32, 32, act));
            check_none(product(kinds[i], 256, 520, 1100, act));
            check_none(product(kinds[i], 512, 1024, 768, act));
        }
}

static void test_others(void **state)
{
    struct op_attributes attention = {
        .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .seq_len = 64, .scale = 0.2
    };
    struct op_case *c;

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        enum dtype act = act_at(i_act);

        c = op_case_create(OP_RMSNORM, &(struct op_attributes){ .eps = 1e-5 });
        op_case_input(c, 0, 100, 70, DTYPE_F32, 1);
        op_case_input(c, 1, 1, 70, DTYPE_F32, 1);
        op_case_output(c, 0, 100, 70, act);
        op_case_output(c, 1, 100, 1, DTYPE_F32);
        check_none(c);
        c = op_case_create(OP_SWIGLU, &(struct op_attributes){ 0 });
        op_case_input(c, 0, 100, 140, act, 1);
        op_case_output(c, 0, 100, 70, act);
        check_none(c);
        c = op_case_create(OP_ATTENTION, &attention);
        op_case_attention(c, 128, act);
        check_none(c);
    }
}

static void test_cross_entropy(void **state)
{
    struct op_attributes a = { .vocab_size = 900 };
    struct op_case *c = op_case_create(OP_LOGIT_STATS, &a);

    (void)state;
    op_case_input(c, 0, 64, 1000, DTYPE_F32, 1);
    op_case_input(c, 1, 64, 1, DTYPE_I32, 0);
    op_case_output(c, 0, 64, OPS_N_STATS, DTYPE_F32);
    check_none(c);
    c = op_case_create(OP_CROSS_ENTROPY, &a);
    op_case_input(c, 0, 64, 1000, DTYPE_F32, 1);
    op_case_input(c, 1, 64, OPS_N_STATS, DTYPE_F32, 1);
    op_case_input(c, 2, 64, 1, DTYPE_I32, 0);
    op_case_input(c, 3, 1, 1, DTYPE_F32, 1);
    op_case_output(c, 0, 64, 1000, DTYPE_BF16);
    op_case_output(c, 1, 1, 1, DTYPE_F64);
    check_none(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_cross_entropy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
