/*
 * collective_cost_test.c - closed forms in one node and across nodes, and what never gets faster
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdlib.h>
#include <cmocka.h>

#include "base/num.h"
#include "ops/ops.h"
#include "plan/collective_cost.h"

struct fixture {
    struct device_spec device;
    struct cluster cluster;
    struct arena arena;
};

static void open_fixture(struct fixture *f, const char *device, int n_devices)
{
    struct err err;

    f->arena = (struct arena){ 0 };
    if (device_read(&f->device, device, &f->arena, &err))
        fail_msg("%s", err.text);
    cluster_of_device(&f->cluster, &f->device, n_devices, &f->arena);
}

static struct group_shape group_of(const struct fixture *f, int tp, int dp, enum mesh_axis axis)
{
    struct mesh mesh = mesh_data_parallel(dp);

    mesh.size[AXIS_TP] = tp;
    return collective_group(&f->cluster, &mesh, 0, axis);
}

/* alpha (1 + 0.12 steps) + (n - 1)/n bytes/bus. */
static void test_ring_in_a_node(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f, "a100-sxm-80", 8);
    for (int n = 2; n <= 8; n *= 2) {
        struct group_shape group = group_of(&f, n, 8 / n, AXIS_TP);
        const int64_t bytes = 1 << 30;
        double expected =
            12000 * (1 + 0.12 * (n - 1)) + 1e9 * (n - 1.0) / n * (double)bytes / f.device.fast_bus;
        int64_t found = collective_ns(&f.cluster, &group, OP_ALL_GATHER, bytes);

        assert_int_equal(group.n_domains, 1);
        assert_in_range(llabs(found - (int64_t)expected), 0, (uint64_t)(expected / 20));
        assert_int_equal(found, collective_ns(&f.cluster, &group, OP_REDUCE_SCATTER, bytes));
        assert_true(collective_ns(&f.cluster, &group, OP_ALL_REDUCE, bytes) >= found);
        assert_false(collective_uses_nic(&group));
    }
    arena_release(&f.arena);
}

/* A composite axis is priced as the flat one with its ranks; its ranks may lie in several runs. */
static void test_composite(void **state)
{
    struct fixture f;
    struct mesh mesh = mesh_data_parallel(4);

    (void)state;
    open_fixture(&f, "h100-sxm", 32);
    mesh.size[AXIS_EP] = 2;
    mesh.size[AXIS_TP] = 2;
    struct group_shape flat = group_of(&f, 2, 8, AXIS_DP);
    struct group_shape data = collective_group(&f.cluster, &mesh, 0, AXIS_DATA);
    assert_memory_equal(&data, &flat, sizeof data);
    mesh.size[AXIS_TP] = 1;
    mesh.size[AXIS_PP] = 4;
    mesh.order = ORDER_PIPELINES;
    data = collective_group(&f.cluster, &mesh, 2, AXIS_DATA); /* 2, 3, 10, 11, 18, ... */
    assert_int_equal(data.n, 8);
    assert_int_equal(data.n_nodes, 4);
    assert_int_equal(data.per_node, 2);
    assert_int_equal(data.n_domains, 4);
    mesh.size[AXIS_PP] = 2;
    data = collective_group(&f.cluster, &mesh, 2, AXIS_DATA); /* 2, 3, 6, 7, 10, ... */
    assert_int_equal(data.n, 8);
    assert_int_equal(data.n_nodes, 2);
    assert_int_equal(data.per_node, 4);
    arena_release(&f.arena);
}

static void test_nothing_to_move(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f, "h100-sxm", 16);
    struct group_shape alone = group_of(&f, 1, 16, AXIS_TP), all = group_of(&f, 1, 16, AXIS_DP);
    assert_int_equal(collective_ns(&f.cluster, &alone, OP_ALL_REDUCE, 1 << 20), 0);
    assert_int_equal(collective_ns(&f.cluster, &all, OP_ALL_REDUCE, 0), 0);
    assert_int_equal(all_to_all_ns(&f.cluster, &alone, 1 << 20), 0);
    assert_int_equal(rotate_ns(&f.cluster, &alone, 1 << 20), 0);
    assert_int_equal(rotate_ns(&f.cluster, &all, 0), 0);
    assert_int_equal(transfer_level(&f.cluster, 3, 3), LEVEL_SAME);
    assert_int_equal(transfer_level(&f.cluster, 0, 7), LEVEL_FAST);
    assert_int_equal(transfer_level(&f.cluster, 7, 8), LEVEL_RAIL);
    arena_release(&f.arena);
}

/* More nodes, slower NICs, more sharers, more latency: never less time. In order of bytes, too. */
static void test_is_monotone(void **state)
{
    static const enum op_kind kinds[] = { OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE };

    (void)state;
    for (int n = 2; n <= 512; n *= 2)
        for (int k = 0; k < 3; k++) {
            int64_t before = 0;
            struct fixture f, slow;

            open_fixture(&f, "h100-sxm", n);
            open_fixture(&slow, "h100-sxm", n);
            slow.cluster.islands[0].nic /= 2;
            slow.cluster.links.rail_latency *= 3;
            slow.device.fast_bus *= 0.7;
            struct group_shape group = group_of(&f, 1, n, AXIS_DP);
            for (int64_t bytes = 1; bytes < (int64_t)1 << 36; bytes *= 3) {
                int64_t ns = collective_ns(&f.cluster, &group, kinds[k], bytes);

                assert_true(ns >= before && ns > 0);
                assert_true(collective_ns(&slow.cluster, &group, kinds[k], bytes) >= ns);
                struct group_shape shared = group;
                shared.n_sharing *= 2;
                assert_true(collective_ns(&f.cluster, &shared, kinds[k], bytes) >= ns);
                before = ns;
            }
            arena_release(&f.arena);
            arena_release(&slow.arena);
        }
}

/* Tensor parallelism over the fast link's domain is the trap that it is known to be. */
static void test_crossing_nodes(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f, "h100-sxm", 64);
    struct group_shape inside = group_of(&f, 8, 8, AXIS_TP), across = group_of(&f, 16, 4, AXIS_TP);
    int64_t in = collective_ns(&f.cluster, &inside, OP_ALL_GATHER, 64 << 20);
    int64_t over = collective_ns(&f.cluster, &across, OP_ALL_GATHER, 64 << 20);

    assert_int_equal(across.n_nodes, 2);
    assert_true(collective_uses_nic(&across));
    assert_true(over > in);
    assert_true(transfer_ns(&f.cluster, 0, 8, 1 << 20, 8) >=
                transfer_ns(&f.cluster, 0, 1, 1 << 20, 1));
    assert_true(transfer_ns(&f.cluster, 0, 8, 1 << 20, 1) <=
                transfer_ns(&f.cluster, 0, 8, 1 << 20, 8));
    arena_release(&f.arena);
}

/* In a domain as one message; across nodes as the slowest, and of those one leaves each node, or
 * all that it has. */
static void test_rotation(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f, "h100-sxm", 64);
    for (int64_t bytes = 1; bytes < (int64_t)1 << 32; bytes *= 5) {
        struct group_shape inside = group_of(&f, 8, 8, AXIS_TP);
        struct group_shape chain = group_of(&f, 16, 4, AXIS_TP);
        struct group_shape apart = group_of(&f, 8, 8, AXIS_DP);

        assert_int_equal(rotate_ns(&f.cluster, &inside, bytes),
                         transfer_ns(&f.cluster, 0, 1, bytes, 1));
        assert_int_equal(rotate_ns(&f.cluster, &chain, bytes),
                         max_i64(transfer_ns(&f.cluster, 0, 1, bytes, 1),
                                 transfer_ns(&f.cluster, 7, 8, bytes, 1)));
        assert_int_equal(rotate_ns(&f.cluster, &apart, bytes),
                         transfer_ns(&f.cluster, 0, 8, bytes, 8));
    }
    arena_release(&f.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_in_a_node), cmocka_unit_test(test_nothing_to_move),
        cmocka_unit_test(test_composite),      cmocka_unit_test(test_is_monotone),
        cmocka_unit_test(test_crossing_nodes), cmocka_unit_test(test_rotation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
