/*
 * price_fp8_test.c - products of e4m3 by formula: where they are faster than those of bf16, and
 * what rounding takes
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <cmocka.h>

#include "plan/price_impl.h"

struct fixture {
    struct device_spec device;
    struct cluster cluster;
    struct prices prices;
    struct arena arena;
};

static void open_fixture(struct fixture *f)
{
    struct err err;

    *f = (struct fixture){ .arena = { 0 } };
    if (device_read(&f->device, "a100-sxm-80", &f->arena, &err))
        fail_msg("%s", err.text);
    cluster_of_device(&f->cluster, &f->device, 8, &f->arena);
    f->prices.cluster = &f->cluster;
}

static struct tensor bf16(int64_t rows, int64_t cols)
{
    return (struct tensor){ .rows = rows, .cols = cols, .stride = cols, .dtype = DTYPE_BF16 };
}

static struct op_shape linear(int64_t m, int64_t n, int64_t k)
{
    struct op_shape op = { .kind = OP_LINEAR };

    op.in[LINEAR_X] = bf16(m, k);
    op.in[LINEAR_W] = bf16(n, k);
    op.out[OPS_FIRST] = bf16(m, n);
    return op;
}

/* A device with such units multiplies e4m3 faster by all but the time that rounding takes: 4 bytes
 * of each element of the operands, or 6. One without has the product in bf16, and the rounding. */
static void of_matrices(void **state)
{
    static const char *const devices[] = { "h100-sxm", "a100-sxm-80" };
    static const enum fp8_recipe recipes[] = { FP8_BLOCKWISE, FP8_TENSOR };

    (void)state;
    for (int d = 0; d < 2; d++) {
        struct fixture f;
        struct err err;

        open_fixture(&f);
        assert_int_equal(device_read(&f.device, devices[d], &f.arena, &err), 0);
        cluster_of_device(&f.cluster, &f.device, 8, &f.arena);
        struct op_shape op = linear(8192, 8192, 8192);
        double wide = (double)price_op(&f.prices, &op).ns;
        double rounding = 1e9 * 2 * 8192.0 * 8192 / (0.78 * f.device.hbm);
        op.kind = OP_LINEAR_FP8;
        for (int r = 0; r < 2; r++) {
            op.attributes.fp8 = recipes[r];
            double of_codes = (double)price_op(&f.prices, &op).ns - (r ? 6 : 4) * rounding;

            assert_true(d == 0 ? of_codes > 0.45 * wide && of_codes < 0.7 * wide
                               : of_codes > wide && of_codes < 1.05 * wide);
        }
        arena_release(&f.arena);
    }
}

/* Experts' products in e4m3 are of our kernels, whose multipliers are those of 16 bits: nothing is
 * gained, and rounding is paid. */
static void of_experts(void **state)
{
    struct op_shape op = { .kind = OP_EXPERT_LINEAR };
    struct fixture f;

    (void)state;
    open_fixture(&f);
    op.in[EXPERT_LINEAR_X] = bf16(8192, 4096);
    op.in[EXPERT_LINEAR_ENDS] = (struct tensor){ .rows = 1, .cols = 8, .dtype = DTYPE_I32 };
    op.in[EXPERT_LINEAR_W] = bf16(8 * 2048, 4096);
    op.out[EXPERT_LINEAR_Y] = bf16(8192, 2048);
    double wide = (double)price_op(&f.prices, &op).ns;
    op.kind = OP_EXPERT_LINEAR_FP8;
    op.attributes.fp8 = FP8_BLOCKWISE;
    double rounding = 1e9 * 4 * (8192.0 + 8 * 2048) * 4096 / (0.78 * f.device.hbm);
    double of_codes = (double)price_op(&f.prices, &op).ns - rounding;
    assert_true(of_codes > 0.98 * wide && of_codes < 1.05 * wide);
    arena_release(&f.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_matrices),
        cmocka_unit_test(of_experts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
