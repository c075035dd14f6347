/*
 * visible_gpus_test.c - lists as $CUDA_VISIBLE_DEVICES may have them
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>
#include <cmocka.h>

#include "device/visible_gpus.h"

enum { N = 4 };

static const char *const uuids[N] = { "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
                                      "GPU-8931aaaa-d72c-4106-c12f-20bd9faed9f6",
                                      "GPU-0b11c2a1-0000-4106-c12f-20bd9faed9f6",
                                      "GPU-0b11c2a2-0000-4106-c12f-20bd9faed9f6" };

static const struct {
    const char *list;
    int n, indices[N]; /* where the UUIDs are known */
} lists[] = {
    { NULL, 4, { 0, 1, 2, 3 } },
    { "", 0, { 0 } },
    { "2", 1, { 2 } },
    { "3,0,2,1", 4, { 3, 0, 2, 1 } },
    { " 3 , 1", 2, { 3, 1 } },
    { "1gpu,2nd", 2, { 1, 2 } },
    /* The first that is none of them ends the list. */
    { "0,2,-1,1", 2, { 0, 2 } },
    { "0,4,1", 1, { 0 } },
    { "0,99999999999,1", 1, { 0 } },
    { "1,,2", 1, { 1 } },
    { "1,", 1, { 1 } },
    { "none", 0, { 0 } },
    { "0,1,2,3,4", 4, { 0, 1, 2, 3 } },
    { "1,GPU-0b11c2a1", 1, { 1 } },
    { "GPU-0b11c2a1,1", 1, { 2 } },
    /* Named twice. */
    { "0,1,0", 0, { 0 } },
    { "0,1,2,3,0", 0, { 0 } },
    { "0,01", 2, { 0, 1 } },
    { "0,00", 0, { 0 } },
    { "GPU-0b11c2a1,GPU-0b11c2a1-0000", 0, { 0 } },
    /* Cut UUIDs. */
    { "GPU-8932,GPU-0b11c2a2-0000-4106-c12f-20bd9faed9f6", 2, { 0, 3 } },
};

static void visible_are_as_the_runtime_has_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct visible_gpu gpus[N];
        int n = visible_gpus_find(gpus, lists[i].list, N, uuids);

        if (n != lists[i].n)
            fail_msg("'%s' leaves %d, not %d", lists[i].list, n, lists[i].n);
        for (int k = 0; k < n; k++)
            if (gpus[k].index != lists[i].indices[k])
                fail_msg("'%s': %d is %d", lists[i].list, k, gpus[k].index);
    }
}

static void a_cut_uuid_of_several_gpus_is_none(void **state)
{
    struct visible_gpu gpus[N];

    (void)state;
    assert_int_equal(visible_gpus_find(gpus, "GPU-893", N, uuids), 0);
    assert_int_equal(visible_gpus_find(gpus, "GPU-", N, uuids), 0);
    assert_int_equal(visible_gpus_find(gpus, "GPU-0b11c2a1,GPU-0b11,0", N, uuids), 1);
    assert_int_equal(visible_gpus_find(gpus, "GPU-9", N, uuids), 0);
}

static void unknown_uuids_are_counted_and_keep_their_names(void **state)
{
    struct visible_gpu gpus[N];

    (void)state;
    assert_int_equal(visible_gpus_find(gpus, "GPU-a, GPU-b ,GPU-c", N, NULL), 3);
    assert_int_equal(gpus[1].index, -1);
    assert_int_equal(gpus[1].n_bytes, 5);
    assert_memory_equal(gpus[1].name, "GPU-b", 5);
    assert_int_equal(visible_gpus_find(gpus, "GPU-a,GPU-b,GPU-c,GPU-d,GPU-e", N, NULL), 4);
    assert_int_equal(visible_gpus_find(gpus, "GPU-a,GPU-b,GPU-a", N, NULL), 0);
    assert_int_equal(visible_gpus_find(gpus, "MIG-a,MIG-b", N, NULL), 1);
    assert_int_equal(gpus[0].n_bytes, 5);
    assert_int_equal(visible_gpus_find(gpus, "0", 0, NULL), 0);
    assert_int_equal(visible_gpus_find(gpus, NULL, 0, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(visible_are_as_the_runtime_has_them),
        cmocka_unit_test(a_cut_uuid_of_several_gpus_is_none),
        cmocka_unit_test(unknown_uuids_are_counted_and_keep_their_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
