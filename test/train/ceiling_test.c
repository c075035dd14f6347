/*
 * ceiling_test.c - the longer of two times, and figures that a machine can have
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>

#include "train/bench.h"

static struct op_shape linear(int64_t rows, enum dtype dtype)
{
    struct op_shape op = { .kind = OP_LINEAR };

    op.in[0] = (struct tensor){ NULL, rows, 100, 100, dtype };
    op.in[1] = (struct tensor){ NULL, 200, 100, 100, dtype };
    op.out[0] = (struct tensor){ NULL, rows, 200, 200, dtype };
    return op;
}

static void assert_near(double a, double b)
{
    assert_true(fabs(a - b) < 1e-12);
}

static void the_longer_time(void **state)
{
    const struct ceiling c = { .flops = 4e9, .f32_flops = 1e9, .bytes_per_second = 1e9 };
    struct op_shape large = linear(1000, DTYPE_F32), large16 = linear(1000, DTYPE_BF16);
    struct op_shape small = linear(1, DTYPE_F32);
    struct op_shape gather = { .kind = OP_ALL_GATHER };

    (void)state;
    assert_near(ceiling_seconds(&c, &large), 2.0 * 1000 * 100 * 200 / 1e9);
    assert_near(ceiling_seconds(&c, &large16), 2.0 * 1000 * 100 * 200 / 4e9);
    assert_near(ceiling_seconds(&c, &small), 4.0 * (100 + 200 * 100 + 200) / 1e9);
    gather.in[0] = (struct tensor){ NULL, 1, 1000, 1000, DTYPE_F32 };
    gather.out[0] = (struct tensor){ NULL, 1, 4000, 4000, DTYPE_F32 };
    assert_near(ceiling_seconds(&c, &gather), op_bytes(&gather) / 1e9);
}

static void of_this_machine(void **state)
{
    const struct launch_rank alone = { 0, 1, 0, 1, 0 };
    struct ceiling c = { 0 };
    struct engine engine;
    struct err err;

    (void)state;
    if (engine_open(&engine, &alone, 2, &err) < 0 ||
        ceiling_measure(&c, &engine, DTYPE_BF16, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(c.flops > 1e8);
    assert_true(c.flops < 1e14);
    assert_true(c.f32_flops > 1e8);
    assert_true(c.f32_flops < 1e14);
    assert_true(c.bytes_per_second > 1e7);
    assert_true(c.bytes_per_second < 1e13);
    engine_close(&engine);
}

static void medians(void **state)
{
    double odd[] = { 3, 1, 2 }, even[] = { 4, 1, 3, 2 }, one[] = { 7 };

    (void)state;
    assert_true(bench_median(odd, 3) == 2);
    assert_true(odd[0] == 1);
    assert_true(bench_median(even, 4) == 2.5);
    assert_true(bench_median(one, 1) == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longer_time),
        cmocka_unit_test(of_this_machine),
        cmocka_unit_test(medians),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
