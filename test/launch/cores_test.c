/*
 * cores_test.c - dealing on machines that are made up, and on this one
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <sched.h>
#include <string.h>
#include <cmocka.h>

#include "launch/cores_impl.h"

static hwloc_topology_t make(const char *description)
{
    hwloc_topology_t topology;

    assert_int_equal(hwloc_topology_init(&topology), 0);
    assert_int_equal(hwloc_topology_set_synthetic(topology, description), 0);
    assert_int_equal(hwloc_topology_load(topology), 0);
    return topology;
}

/* What n ranks get, as "0,2 | 4,6": the compute threads of each; and each alone where it must be.
 */
static void check_deal(const char *description, const char *mask, int n_ranks, const char *expected)
{
    hwloc_topology_t topology = make(description);
    hwloc_bitmap_t allowed = hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(topology));
    hwloc_bitmap_t taken = hwloc_bitmap_alloc();
    char got[1024] = "";

    if (mask)
        assert_int_equal(hwloc_bitmap_list_sscanf(allowed, mask), 0);
    for (int rank = 0; rank < n_ranks; rank++) {
        struct rank_cores cores;

        cores_deal(topology, allowed, rank, n_ranks, NULL, &cores);
        assert_in_range(cores.n_cores, 1, RANK_CORES_MAX);
        for (int i = 0; i < cores.n_cores; i++) {
            size_t used = strlen(got);

            snprintf(got + used, sizeof got - used, "%s%d",
                     i      ? ","
                     : rank ? " | "
                            : "",
                     cores.cores[i]);
        }
        for (int i = 0; i < cores.n_all; i++) {
            assert_true(hwloc_bitmap_isset(allowed, (unsigned)cores.all[i]));
            assert_true(cores.is_shared || !hwloc_bitmap_isset(taken, (unsigned)cores.all[i]));
            hwloc_bitmap_set(taken, (unsigned)cores.all[i]);
        }
    }
    assert_string_equal(got, expected);
    /* Nothing lies idle. */
    if (n_ranks <= hwloc_bitmap_weight(allowed))
        assert_true(hwloc_bitmap_isequal(taken, allowed));
    hwloc_bitmap_free(taken);
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
}

/* Hyperthreads 2k and 2k + 1 are core k; cores 0 to 3 lie in the first node. */
#define TWO_NODES "numa:2 core:4 pu:2"

static void test_whole_cores(void **state)
{
    (void)state;
    check_deal(TWO_NODES, NULL, 1, "0,2,4,6,8,10,12,14");
    check_deal(TWO_NODES, NULL, 2, "0,2,4,6 | 8,10,12,14");
    check_deal(TWO_NODES, NULL, 4, "0,2 | 4,6 | 8,10 | 12,14");
    check_deal(TWO_NODES, NULL, 8, "0 | 2 | 4 | 6 | 8 | 10 | 12 | 14");
    check_deal("core:2 pu:1", NULL, 1, "0,1");
    check_deal("core:2 pu:1", NULL, 2, "0 | 1");
}

/* A rank's threads stay in one node if nobody gets fewer by it. */
static void test_nodes(void **state)
{
    (void)state;
    check_deal("numa:2 core:4 pu:1", NULL, 3, "0,1 | 2,3 | 4,5,6,7");
    check_deal("numa:2 core:5 pu:1", NULL, 3, "0,1,2 | 3,4,5 | 6,7,8,9");
    check_deal("numa:2 core:3 pu:1", NULL, 4, "0 | 1,2 | 3 | 4,5");
    check_deal("numa:4 core:2 pu:1", NULL, 2, "0,1,2,3 | 4,5,6,7");
    check_deal("numa:4 core:2 pu:1", NULL, 3, "0,1 | 2,3,4 | 5,6,7");
    /* Where the mask leaves one node less, it gets fewer ranks. */
    check_deal(TWO_NODES, "0-3,8-15", 3, "0,2 | 8,10 | 12,14");
}

/* Only what is allowed: half a core is one too, and the other half is nobody's. */
static void test_masks(void **state)
{
    (void)state;
    check_deal(TWO_NODES, "5", 1, "5");
    check_deal(TWO_NODES, "1,3,6-7", 1, "1,3,6");
    check_deal(TWO_NODES, "1,3,6-7", 3, "1 | 3 | 6");
    check_deal(TWO_NODES, "2-3,12-13", 2, "2 | 12");
}

/* More ranks than cores get hyperthreads; more than those share them evenly. */
static void test_more_ranks_than_cores(void **state)
{
    (void)state;
    check_deal("core:2 pu:2", NULL, 3, "0 | 1 | 2,3");
    check_deal("core:2 pu:2", NULL, 4, "0 | 1 | 2 | 3");
    check_deal("core:2 pu:1", NULL, 5, "0 | 1 | 0 | 1 | 0");
    check_deal(TWO_NODES, "6-7", 3, "6 | 7 | 6");
}

static int node_of(const char *description, const char *mask, int rank, int n_ranks)
{
    hwloc_topology_t topology = make(description);
    hwloc_bitmap_t allowed = hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(topology));
    struct rank_cores cores;

    if (mask)
        assert_int_equal(hwloc_bitmap_list_sscanf(allowed, mask), 0);
    cores_deal(topology, allowed, rank, n_ranks, NULL, &cores);
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return cores.numa_node;
}

/* Whose memory is taken: the node's that all cores lie in. */
static void test_memory(void **state)
{
    (void)state;
    assert_int_equal(node_of(TWO_NODES, NULL, 0, 2), 0);
    assert_int_equal(node_of(TWO_NODES, NULL, 1, 2), 1);
    assert_int_equal(node_of(TWO_NODES, NULL, 0, 1), -1);
    assert_int_equal(node_of(TWO_NODES, "8-11", 0, 1), 1);
    assert_int_equal(node_of("numa:2 core:5 pu:1", NULL, 1, 3), -1);
    assert_int_equal(node_of("numa:2(indexes=1,0) core:2 pu:1", NULL, 0, 2), 1);
}

/* Every share of every small machine: as even as can be without leaving a node. */
static void test_fair(void **state)
{
    char description[64];

    (void)state;
    for (int n_nodes = 1; n_nodes <= 4; n_nodes++)
        for (int n_cores = 1; n_cores <= 5; n_cores++) {
            snprintf(description, sizeof description, "numa:%d core:%d pu:2", n_nodes, n_cores);
            hwloc_topology_t topology = make(description);

            for (int n = 1; n <= n_nodes * n_cores; n++) {
                int total = 0;

                for (int rank = 0; rank < n; rank++) {
                    struct rank_cores cores;

                    cores_deal(topology, hwloc_topology_get_topology_cpuset(topology), rank, n,
                               NULL, &cores);
                    assert_true(cores.n_cores >= n_nodes * n_cores / n);
                    assert_int_equal(cores.n_all, 2 * cores.n_cores);
                    total += cores.n_cores;
                }
                assert_int_equal(total, n_nodes * n_cores);
            }
            hwloc_topology_destroy(topology);
        }
}

/* Ranks that a launcher has bound apart have nobody to share with. */
static void test_alike(void **state)
{
    char *masks[] = { "0-3", "4-7", "0-3", "8", "0-3" };
    static const int gpu_nodes[] = { 10, 11, 12, 13, 14 };
    int index, n, theirs[5];

    (void)state;
    cores_count_alike(masks, gpu_nodes, 5, 1, &index, &n, theirs);
    assert_int_equal(index, 0);
    assert_int_equal(n, 1);
    assert_int_equal(theirs[0], 11);
    cores_count_alike(masks, gpu_nodes, 5, 4, &index, &n, theirs);
    assert_int_equal(index, 2);
    assert_int_equal(n, 3);
    assert_int_equal(theirs[0], 10);
    assert_int_equal(theirs[1], 12);
    assert_int_equal(theirs[2], 14);
}

/* What ranks with GPUs at these NUMA nodes get. */
static void check_near(const char *description, const char *mask, int n_ranks, const int *gpu_nodes,
                       const char *expected)
{
    hwloc_topology_t topology = make(description);
    hwloc_bitmap_t allowed = hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(topology));
    char got[1024] = "";

    if (mask)
        assert_int_equal(hwloc_bitmap_list_sscanf(allowed, mask), 0);
    for (int rank = 0; rank < n_ranks; rank++) {
        struct rank_cores cores;

        cores_deal(topology, allowed, rank, n_ranks, gpu_nodes, &cores);
        for (int i = 0; i < cores.n_cores; i++) {
            size_t used = strlen(got);

            snprintf(got + used, sizeof got - used, "%s%d",
                     i      ? ","
                     : rank ? " | "
                            : "",
                     cores.cores[i]);
        }
    }
    assert_string_equal(got, expected);
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
}

static void test_near_gpus(void **state)
{
    static const int by_turns[] = { 1, 0, 1, 0 }, one_side[] = { 1, 1 }, swapped[] = { 1, 0 };
    static const int unknown[] = { 1, -1 }, elsewhere[] = { 1, 7 };

    (void)state;
    check_near(TWO_NODES, NULL, 4, by_turns, "8,10 | 0,2 | 12,14 | 4,6");
    check_near(TWO_NODES, NULL, 2, swapped, "8,10,12,14 | 0,2,4,6");
    check_near(TWO_NODES, NULL, 2, one_side, "8,10 | 12,14");
    check_near(TWO_NODES, NULL, 1, one_side, "8,10,12,14");
    check_near("numa:2(indexes=1,0) core:2 pu:1", NULL, 2, swapped, "0,1 | 2,3");
    check_near("numa:4 core:2 pu:1", NULL, 2, swapped, "2,3 | 0,1");
    /* As if there were no GPUs: one is not known, or nowhere, or a node has too few cores. */
    check_near(TWO_NODES, NULL, 2, unknown, "0,2,4,6 | 8,10,12,14");
    check_near(TWO_NODES, NULL, 2, elsewhere, "0,2,4,6 | 8,10,12,14");
    check_near("numa:2 core:1 pu:1", NULL, 2, one_side, "0 | 1");
    check_near(TWO_NODES, "0-7", 2, swapped, "0,2 | 4,6");
}

static int is_far(const char *description, const char *mask, int gpu_node)
{
    hwloc_topology_t topology = make(description);
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    struct rank_cores cores;

    assert_int_equal(hwloc_bitmap_list_sscanf(allowed, mask), 0);
    cores_deal(topology, allowed, 0, 1, &gpu_node, &cores);
    int far = cores_are_far(topology, &cores, gpu_node);
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return far;
}

/* Another NUMA node of the GPU's socket is near enough. */
static void test_bound_away_from_the_gpu(void **state)
{
    (void)state;
    assert_true(is_far("package:2 numa:2 core:2 pu:1", "0-3", 2));
    assert_false(is_far("package:2 numa:2 core:2 pu:1", "0-1", 1));
    assert_false(is_far("package:2 numa:2 core:2 pu:1", "0-7", 3));
    assert_true(is_far("numa:2 core:4 pu:1", "0-3", 1));
    assert_false(is_far("numa:2 core:4 pu:1", "0-4", 1));
    assert_false(is_far("numa:2 core:4 pu:1", "0-3", -1));
    assert_false(is_far("numa:2 core:4 pu:1", "0-3", 9));
}

/* Only what this process may use, without repetition; alone, all of it. */
static void test_here(void **state)
{
    struct launch_rank alone = { 0, 1, 0, 1, 0 };
    struct rank_cores cores, whole;
    cpu_set_t allowed, one, now;
    struct err err;
    int first = 0;
    char text[128];

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    assert_int_equal(launch_cores(&alone, NULL, &whole, &err), 0);
    assert_int_equal(whole.n_all, CPU_COUNT(&allowed));
    assert_false(whole.is_shared);
    for (int i = 0; i < whole.n_all; i++)
        assert_true(CPU_ISSET((size_t)whole.all[i], &allowed));
    assert_int_equal(launch_cores_of(0, 1, &cores, &err), 0);
    assert_int_equal(cores.n_cores, whole.n_cores);
    assert_non_null(strstr(launch_cores_describe(text, sizeof text), " NUMA node"));

    while (!CPU_ISSET((size_t)first, &allowed))
        first++;
    CPU_ZERO(&one);
    CPU_SET((size_t)first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(launch_cores(&alone, NULL, &cores, &err), 0);
    assert_int_equal(cores.n_cores, 1);
    assert_int_equal(cores.cores[0], first);
    assert_int_equal(launch_cores_of(6, 7, &cores, &err), 0);
    assert_true(cores.is_shared);
    assert_int_equal(cores.cores[0], first);
    launch_cores_spread(&whole);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&now, &allowed));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_cores),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_more_ranks_than_cores),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_fair),
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_near_gpus),
        cmocka_unit_test(test_bound_away_from_the_gpu),
        cmocka_unit_test(test_here),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
