/*
 * price_nodes_test.c - prices of sums and gathers by node are of the ranks that run joins
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "plan/price.h"

static void open_nodes(struct prices *prices, struct cluster *cluster, struct arena *arena)
{
    struct err err;

    if (cluster_read(cluster, "dgx-h100", arena, &err))
        fail_msg("%s", err.text);
    *prices = (struct prices){ .cluster = cluster };
}

static struct op_shape sum_of(int64_t n, int size)
{
    struct op_shape op = { .kind = OP_REDUCE_SCATTER };

    op.in[OPS_FIRST] = (struct tensor){ .rows = 1, .cols = n, .stride = n, .dtype = DTYPE_F32 };
    op.out[OPS_FIRST] =
        (struct tensor){ .rows = 1, .cols = n / size, .stride = n / size, .dtype = DTYPE_F32 };
    return op;
}

static int64_t price_of(struct prices *prices, const struct mesh *mesh, int node_ranks,
                        const struct op_shape *op)
{
    prices->node_ranks = node_ranks;
    struct group_shape group = price_group(prices, mesh, 0, AXIS_DP);
    return price_collective(prices, &group, op).ns;
}

/* Sums by node are fewer bytes between nodes; of one node, and of what a library adds, nothing
 * changes. */
static void by_node_is_less(void **state)
{
    const struct mesh two_nodes = mesh_data_parallel(16), one_node = mesh_data_parallel(8);
    struct op_shape op = sum_of(1 << 24, 16);
    struct arena arena = { 0 };
    struct cluster cluster;
    struct prices prices;

    (void)state;
    open_nodes(&prices, &cluster, &arena);
    int64_t at_once = price_of(&prices, &two_nodes, 0, &op);
    assert_true(price_of(&prices, &two_nodes, 8, &op) < at_once * 2 / 3);
    assert_int_equal(price_of(&prices, &one_node, 8, &op), price_of(&prices, &one_node, 0, &op));
    prices.fast_reductions = true;
    assert_int_equal(price_of(&prices, &two_nodes, 8, &op), price_of(&prices, &two_nodes, 0, &op));
    arena_release(&arena);
}

/* By what is executed, not by the cluster's nodes: the more ranks are joined, the less goes between
 * nodes; all ranks of several nodes are as good as none. */
static void by_those_that_are_joined(void **state)
{
    const struct mesh mesh = mesh_data_parallel(32);
    struct op_shape op = sum_of(1 << 24, 32);
    struct arena arena = { 0 };
    struct cluster cluster;
    struct prices prices;

    (void)state;
    open_nodes(&prices, &cluster, &arena);
    int64_t before = price_of(&prices, &mesh, 0, &op);
    assert_int_equal(price_of(&prices, &mesh, 32, &op), before);
    assert_int_equal(price_of(&prices, &mesh, 3, &op), before); /* divides no group */
    assert_true(price_of(&prices, &mesh, 16, &op) > price_of(&prices, &mesh, 8, &op));
    for (int n = 2; n <= 8; n *= 2) {
        int64_t ns = price_of(&prices, &mesh, n, &op);

        assert_true(ns < before);
        before = ns;
    }
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_node_is_less),
        cmocka_unit_test(by_those_that_are_joined),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
