/*
 * dataset_stats_test.c - lengths, ends and ids counted
 */
#include "data_fixture.h"

#include "data/stream/dataset_stats.h"

static void test_counts(void **state)
{
    const char *folder = fixture_folder();
    char *prefix = fixture_counting(folder, "c", 0, 10001, 100, 20000);
    struct indexed indexed;
    struct dataset_stats census = { 0 };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(indexed_open(&indexed, prefix, &err), 0);
    assert_int_equal(dataset_stats_take(&census, &indexed, 20000, 4999, &err), 0);
    assert_int_equal(census.shortest, 1);
    assert_int_equal(census.longest, 100);
    assert_int_equal(census.greatest_token, 10000);
    assert_int_equal(census.n_ended, 1);
    for (int b = 0; b < DATASET_STATS_BINS; b++)
        assert_int_equal(census.n_by_length[b], b == 1 ? 1 : b == 7 ? 100 : 0);
    assert_int_equal(dataset_stats_take(&census, &indexed, 20000, -1, &err), 0);
    assert_int_equal(census.n_ended, 0);
    assert_int_equal(dataset_stats_take(&census, &indexed, 9000, -1, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "token 9000 at position 9000"));
    indexed_close(&indexed);
    free(prefix);
    fixture_remove(folder);
}

static void test_empty(void **state)
{
    const char *folder = fixture_folder();
    char *prefix = fixture_counting(folder, "c", 0, 0, 1, 100);
    struct indexed indexed;
    struct dataset_stats census;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(indexed_open(&indexed, prefix, &err), 0);
    assert_int_equal(dataset_stats_take(&census, &indexed, 100, 0, &err), 0);
    assert_int_equal(census.greatest_token, -1);
    assert_int_equal(census.longest, 0);
    indexed_close(&indexed);
    free(prefix);
    fixture_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_empty),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
