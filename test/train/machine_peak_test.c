/*
 * machine_peak_test.c - the longer of two times, and figures that a machine can have
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

#include "train/bench_impl.h"

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
    const struct machine_peak c = { .flops = 4e9, .f32_flops = 1e9, .bytes_per_second = 1e9 };
    struct op_shape large = linear(1000, DTYPE_F32), large16 = linear(1000, DTYPE_BF16);
    struct op_shape small = linear(1, DTYPE_F32);
    struct op_shape gather = { .kind = OP_ALL_GATHER };

    (void)state;
    assert_near(machine_peak_seconds(&c, &large), 2.0 * 1000 * 100 * 200 / 1e9);
    assert_near(machine_peak_seconds(&c, &large16), 2.0 * 1000 * 100 * 200 / 4e9);
    assert_near(machine_peak_seconds(&c, &small), 4.0 * (100 + 200 * 100 + 200) / 1e9);
    gather.in[0] = (struct tensor){ NULL, 1, 1000, 1000, DTYPE_F32 };
    gather.out[0] = (struct tensor){ NULL, 1, 4000, 4000, DTYPE_F32 };
    assert_near(machine_peak_seconds(&c, &gather), op_bytes(&gather) / 1e9);
}

static void of_this_machine(void **state)
{
    const struct launch_rank alone = { 0, 1, 0, 1, 0 };
    struct machine_peak c = { 0 };
    struct engine engine;
    struct err err;

    (void)state;
    if (engine_open(&engine, &alone, &(struct engine_request){ 2, JOB_DEVICE_CPU }, &err) < 0 ||
        machine_peak_measure(&c, &engine, DTYPE_BF16, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(c.flops > 1e8);
    assert_true(c.flops < 1e14);
    assert_true(c.f32_flops > 1e8);
    assert_true(c.f32_flops < 1e14);
    assert_true(c.bytes_per_second > 1e7);
    assert_true(c.bytes_per_second < 1e13);
    engine_close(&engine);
}

/* More than caches hold, shared by ranks, whole windows of any number of threads. */
static void buffers(void **state)
{
    const size_t mib = (size_t)1 << 20;

    (void)state;
    assert_int_equal(machine_peak_tiles(0, 1, 1, 0), 128);
    assert_int_equal(machine_peak_tiles(32 * mib, 1, 2, 0), 128);
    assert_int_equal(machine_peak_tiles(200 * mib, 1, 2, 0), 400);
    assert_int_equal(machine_peak_tiles(200 * mib, 2, 2, 0), 200);
    assert_int_equal(machine_peak_tiles(768 * mib, 1, 4, 0), 512);
    assert_int_equal(machine_peak_tiles(768 * mib, 1, 4, 200 * mib), 64);
    for (int n = 1; n <= 300; n++) {
        int64_t tiles = machine_peak_tiles(100 * mib, 1, n, 1);

        assert_int_equal(tiles % n, 0);
        assert_true(tiles / n >= 4);
        assert_int_equal(machine_peak_tiles(100 * mib, 1, n, 0) % n, 0);
        assert_true(machine_peak_tiles(100 * mib, 1, n, 0) >= 200);
    }
}

/* With more ranks than a list of some size has room for, scratch is what their gather fills. */
static void memory_of_collectives(void **state)
{
    static const int sizes[] = { 2, 3, 6, 64, 1500, 4096 };
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct bench_collective *list;
        size_t operand, scratch, most = 0, n_scalars = 0;
        struct bench_nodes nodes = { 1, sizes[i] };
        int n = bench_list_collectives(&nodes, (size_t)1 << 20, &list, &arena);

        bench_collective_memory(list, n, &operand, &scratch);
        assert_int_equal(list[0].n_ranks, 2);
        assert_int_equal(list[n - 1].n_ranks, sizes[i]);
        for (int k = 0; k < n; k++) {
            size_t ranks = (size_t)list[k].n_ranks, bytes = list[k].n_bytes;

            most = bytes > most ? bytes : most;
            n_scalars += list[k].kind == OP_ALL_REDUCE_SCALAR;
            assert_true(bytes <= operand);
            if (list[k].kind == OP_ALL_REDUCE_SCALAR)
                assert_true(ranks * bytes <= scratch);
            else
                assert_int_equal(bytes % (ranks * sizeof(float)), 0);
            if (list[k].kind == OP_REDUCE_SCATTER)
                assert_true(bytes + bytes / ranks <= scratch);
        }
        assert_true(most >= (size_t)1 << 20);
        assert_true(n_scalars > 0);
        assert_true(operand < 2 * most);
    }
    arena_release(&arena);
}

/* Over 1, 2, 4, ... and all ranks of 1, 2, 4, ... and all nodes, each once, but for the lone rank.
 * */
static void groups_of_nodes(void **state)
{
    static const int wanted[][2] = { { 2, 1 }, { 4, 1 }, { 6, 1 }, { 1, 2 }, { 2, 2 }, { 4, 2 },
                                     { 6, 2 }, { 1, 3 }, { 2, 3 }, { 4, 3 }, { 6, 3 } };
    const struct bench_nodes nodes = { 3, 6 };
    struct bench_collective *list;
    struct arena arena = { 0 };
    int n = bench_list_collectives(&nodes, 4096, &list, &arena), at = -1;

    (void)state;
    for (int i = 0; i < n; i++) {
        at += i == 0 || list[i].per_node != list[i - 1].per_node ||
              list[i].n_nodes != list[i - 1].n_nodes;
        assert_int_equal(list[i].per_node, wanted[at][0]);
        assert_int_equal(list[i].n_nodes, wanted[at][1]);
        assert_int_equal(list[i].n_ranks, wanted[at][0] * wanted[at][1]);
    }
    assert_int_equal(at + 1, sizeof wanted / sizeof *wanted);
    arena_release(&arena);
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
        cmocka_unit_test(the_longer_time), cmocka_unit_test(of_this_machine),
        cmocka_unit_test(buffers),         cmocka_unit_test(memory_of_collectives),
        cmocka_unit_test(groups_of_nodes), cmocka_unit_test(medians),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
