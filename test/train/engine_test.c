/*
 * engine_test.c - a rank alone opens its machine, as often as it likes
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <string.h>
#include <unistd.h>

#include "device/pool.h"
#include "train/engine.h"

static const struct launch_rank alone = { 0, 1, 0, 1, 0 };

static void open_it(struct engine *engine, int n_threads)
{
    struct err err;

    if (engine_open(engine, &alone, &(struct engine_request){ n_threads, JOB_DEVICE_CPU }, &err) <
        0)
        fail_msg("%s", err.text);
}

static void threads(void **state)
{
    struct engine engine;
    long n_cores = sysconf(_SC_NPROCESSORS_ONLN);

    (void)state;
    for (int n = 1; n <= 4; n++) {
        open_it(&engine, n);
        assert_int_equal(pool_n_threads(engine.pool), n);
        assert_int_equal(comm_world_size(engine.comm), 1);
        engine_close(&engine);
    }
    open_it(&engine, 0);
    assert_in_range(pool_n_threads(engine.pool), 1, n_cores);
    engine_close(&engine);
    engine_close(&engine);
}

/* Some GFLOP/s at least, and less than any core of today has. */
static void peak(void **state)
{
    struct engine engine;
    struct err err;
    double bf16 = 0, fp32 = 0;

    (void)state;
    open_it(&engine, 1);
    if (engine_peak_flops(&engine, DTYPE_F32, &fp32, &err) < 0 ||
        engine_peak_flops(&engine, DTYPE_BF16, &bf16, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(fp32 > 1e8);
    assert_true(fp32 < 1e13);
    assert_true(bf16 > 1e8);
    assert_true(bf16 < 1e14);
    engine_close(&engine);
}

/* Ranks of one node share its memory. */
static void available(void **state)
{
    struct engine engine;

    (void)state;
    open_it(&engine, 1);
    double whole = (double)engine_available_bytes(&engine);
    engine.rank.local_size = 4;
    double quarter = (double)engine_available_bytes(&engine);
    assert_true(whole > 64e6);
    /* Others take and give meanwhile. */
    assert_true(quarter < 0.5 * whole);
    assert_true(quarter > 0.125 * whole);
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads),
        cmocka_unit_test(peak),
        cmocka_unit_test(available),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
