/*
 * axes_test.c - each axis has one role, and no sum leaves an axis out
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "layout/axes.h"

/* The roles divide the axes: with all sizes 2, each axis is in one list. */
static void every_axis_has_one_role(void **state)
{
    struct mesh mesh = mesh_data_parallel(2);

    (void)state;
    for (int axis = 0; axis < N_AXES; axis++)
        mesh.size[axis] = 2;
    for (int kind = PARAMETER_DENSE; kind <= PARAMETER_EXPERT; kind++) {
        int n_of[N_AXES] = { 0 };

        for (int role = SPLITS_TOKENS; role <= SPLITS_LAYERS; role++) {
            struct axis_list list = axes_of(&mesh, (enum axis_role)role, (enum parameter_kind)kind);

            assert_int_equal(axes_size(&mesh, (enum axis_role)role, (enum parameter_kind)kind),
                             1 << list.n);
            for (int i = 0; i < list.n; i++) {
                n_of[list.axes[i]]++;
                assert_int_equal(axis_role(list.axes[i], (enum parameter_kind)kind), role);
            }
        }
        for (int axis = 0; axis < N_AXES; axis++)
            assert_int_equal(n_of[axis], 1);
    }
}

/* Neighbours in the batch come first: ep and dp, the parts of the axis that shards, so that what
 * follows is summed on shards. */
static void neighbours_are_summed_first(void **state)
{
    struct mesh mesh = mesh_data_parallel(4);

    (void)state;
    for (int axis = 0; axis < N_AXES; axis++)
        mesh.size[axis] = 2;
    struct axis_list dense = axes_of(&mesh, SPLITS_TOKENS, PARAMETER_DENSE);
    struct axis_list others = axes_of_replicas(&mesh, PARAMETER_DENSE);
    struct axis_list expert = axes_of(&mesh, SPLITS_TOKENS, PARAMETER_EXPERT);

    assert_true(dense.n > 1);
    assert_int_equal(dense.axes[0], AXIS_EP);
    assert_int_equal(dense.axes[1], AXIS_DP);
    for (int i = 0; i < 2; i++)
        assert_true(axis_covers(axes_shard(&mesh, PARAMETER_DENSE), dense.axes[i]));
    assert_int_equal(others.n, dense.n - 2);
    for (int i = 0; i < others.n; i++) {
        assert_int_equal(others.axes[i], dense.axes[i + 2]);
        assert_false(axis_covers(axes_shard(&mesh, PARAMETER_DENSE), others.axes[i]));
    }
    /* Each expert's tokens come from all ranks of ep: its gradient is no sum over them. */
    assert_int_equal(expert.n, dense.n - 1);
    for (int i = 0; i < expert.n; i++)
        assert_int_not_equal(expert.axes[i], AXIS_EP);
}

/* The axes that have a name of their own are those that divide so. */
static void named_axes_divide_as_they_say(void **state)
{
    struct mesh mesh = mesh_data_parallel(2);

    (void)state;
    assert_int_equal(axes_shard(&mesh, PARAMETER_DENSE), AXIS_DP);
    assert_int_equal(axes_shard(&mesh, PARAMETER_EXPERT), AXIS_DP);
    mesh.size[AXIS_EP] = 2;
    assert_int_equal(axes_shard(&mesh, PARAMETER_DENSE), AXIS_DATA);
    assert_int_equal(axes_shard(&mesh, PARAMETER_EXPERT), AXIS_DP);
    assert_int_equal(axis_role(AXIS_DATA, PARAMETER_DENSE), SPLITS_TOKENS);
    assert_int_equal(axes_tensor(), AXIS_TP);
    assert_int_equal(axes_experts(), AXIS_EP);
    assert_int_equal(axes_stages(), AXIS_PP);
}

/* Axes with one rank are in no list. */
static void axes_of_one_rank_are_left_out(void **state)
{
    struct mesh mesh = mesh_data_parallel(1);

    (void)state;
    for (int role = SPLITS_TOKENS; role <= SPLITS_LAYERS; role++)
        assert_int_equal(axes_of(&mesh, (enum axis_role)role, PARAMETER_DENSE).n, 0);
    mesh.size[AXIS_CP] = 2;
    assert_int_equal(axes_of_replicas(&mesh, PARAMETER_DENSE).n, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_axis_has_one_role),
        cmocka_unit_test(neighbours_are_summed_first),
        cmocka_unit_test(named_axes_divide_as_they_say),
        cmocka_unit_test(axes_of_one_rank_are_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
