/*
 * store_list_test.c - the newest whole checkpoint is found, and only what may go is removed
 */
#include "ckpt_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/log.h"

/* A small checkpoint of this step in folder. */
static const char *make(const char *folder, int step)
{
    char name[32];
    float w[2] = { (float)step, 0 };
    struct store_slice slice = fixture_whole("w", DTYPE_F32, 2, 1, w);

    snprintf(name, sizeof name, "step-%08d", step);
    fixture_checkpoint(fixture_path(folder, name), step, &slice, 1);
    return fixture_path(folder, name);
}

static void count_warning(void *context, enum log_level level, const char *line)
{
    assert_int_equal(level, LOG_WARN);
    assert_non_null(strstr(line, "is skipped"));
    ++*(int *)context;
}

static void newest_is_found_from_each_folder(void **state)
{
    const char *run = *state, *checkpoints = fixture_path(run, "checkpoints");
    struct err err = { 0 };

    assert_null(store_newest(run, &fixture_arena, &err));
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "no checkpoint in"));
    make(checkpoints, 9);
    const char *newest = make(checkpoints, 10);
    make(checkpoints, 8);
    assert_string_equal(store_newest(run, &fixture_arena, &err), newest);
    assert_string_equal(store_newest(checkpoints, &fixture_arena, &err), newest);
    assert_string_equal(store_newest(newest, &fixture_arena, &err), newest);
    assert_null(store_newest(fixture_path(run, "nowhere"), &fixture_arena, &err));
    assert_int_equal(err.code, ERR_DATA);
    fixture_write(fixture_path(run, "file"), "x", 1);
    assert_null(store_newest(fixture_path(run, "file"), &fixture_arena, &err));
}

/* Steps are numbers: 100000000 comes after 99999999 though its text sorts before. */
static void newest_goes_by_number(void **state)
{
    struct err err = { 0 };

    make(*state, 99999999);
    const char *newest = make(*state, 100000000);
    assert_string_equal(store_newest(*state, &fixture_arena, &err), newest);
}

static void damaged_ones_are_passed_over_with_a_warning(void **state)
{
    int n_warnings = 0;
    struct err err = { 0 };
    const char *good = make(*state, 1), *torn = make(*state, 2), *lacking = make(*state, 3);

    assert_ok(file_make_folders(fixture_path(*state, "step-00000004"), &err), &err);
    fixture_poke(fixture_path(torn, "manifest.json"), 90, "?", 1);
    assert_int_equal(unlink(fixture_path(lacking, "rank-00000.safetensors")), 0);
    log_set_sink(count_warning, &n_warnings);
    assert_string_equal(store_newest(*state, &fixture_arena, &err), good);
    assert_int_equal(n_warnings, 3);
    assert_int_equal(unlink(fixture_path(good, "manifest.json")), 0);
    assert_null(store_newest(*state, &fixture_arena, &err));
    assert_non_null(strstr(err.text, "no complete checkpoint in"));
    assert_int_equal(n_warnings, 7);
    log_set_sink(NULL, NULL);
    assert_null(store_newest(lacking, &fixture_arena, &err));
    assert_non_null(strstr(err.text, "rank-00000.safetensors"));
}

/* It is whole to the lmtrain that wrote it: to resume from the one before would lose its steps. */
static void one_of_a_newer_format_is_an_error(void **state)
{
    struct err err = { 0 };
    const char *old = make(*state, 1), *newer = make(*state, 2);

    assert_int_equal(store_version(newer), STORE_VERSION);
    fixture_poke(fixture_path(newer, "manifest.json"), strlen("{\"lmtrain_checkpoint\":"), "2", 1);
    assert_int_equal(store_version(newer), 2);
    assert_null(store_newest(*state, &fixture_arena, &err));
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "step-00000002/manifest.json is of checkpoint format 2, "));
    assert_string_equal(store_newest_before(*state, 2, &fixture_arena, &err), old);
    assert_int_equal(store_version(fixture_path(*state, "nowhere")), -1);
    fixture_write(fixture_path(newer, "manifest.json"), "{", 1);
    assert_int_equal(store_version(newer), -1);
}

static void count_kept(void *context, enum log_level level, const char *line)
{
    assert_int_equal(level, LOG_WARN);
    assert_non_null(strstr(line, " is kept as "));
    ++*(int *)context;
}

static void later_ones_are_removed(void **state)
{
    struct err err = { 0 };
    const char *first = make(*state, 1);

    assert_ok(store_remove_later(fixture_path(*state, "missing"), 0, &err), &err);
    make(*state, 2);
    make(*state, 3);
    assert_ok(store_remove_later(*state, 3, &err), &err);
    assert_int_equal(store_count(*state, &err), 3);
    assert_ok(store_remove_later(*state, 1, &err), &err);
    assert_int_equal(store_count(*state, &err), 1);
    assert_string_equal(store_newest(*state, &fixture_arena, &err), first);
}

static void damaged_ones_are_set_aside(void **state)
{
    int n_warnings = 0;
    struct err err = { 0 };
    const char *first = make(*state, 1), *second = make(*state, 2), *third = make(*state, 3);

    assert_string_equal(store_newest_before(*state, 4, &fixture_arena, &err), third);
    assert_string_equal(store_newest_before(*state, 3, &fixture_arena, &err), second);
    assert_string_equal(store_newest_before(*state, 2, &fixture_arena, &err), first);
    assert_null(store_newest_before(*state, 1, &fixture_arena, &err));
    assert_non_null(strstr(err.text, "no checkpoint in"));
    log_set_sink(count_kept, &n_warnings);
    assert_ok(store_set_aside(*state, 3, &err), &err);
    assert_int_equal(n_warnings, 0);
    assert_ok(store_set_aside(*state, 1, &err), &err);
    assert_int_equal(n_warnings, 2);
    make(*state, 3);
    assert_ok(store_set_aside(*state, 1, &err), &err);
    log_set_sink(NULL, NULL);
    assert_true(file_exists(fixture_path(*state, "step-00000002.damaged/manifest.json")));
    assert_true(file_exists(fixture_path(*state, "step-00000003.damaged/manifest.json")));
    assert_true(file_exists(fixture_path(*state, "step-00000003.damaged2/manifest.json")));
    assert_string_equal(store_newest(*state, &fixture_arena, &err), first);
    /* They are for people: neither counted nor removed. */
    assert_int_equal(store_count(*state, &err), 1);
    assert_ok(store_clean(*state, 1, &err), &err);
    assert_true(file_exists(fixture_path(*state, "step-00000003.damaged/manifest.json")));
}

static void clean_keeps_the_newest_and_all_that_is_not_ours(void **state)
{
    static const char *const strangers[] = { "step-", "step-5x", "best", "step-00000005.mine",
                                             "step-1234567890123456789.partial" };
    static const char *const rests[] = { "step-00000002.partial", "step-00000009.partial",
                                         "step-00000001.removed", "step-00000004.replaced" };
    struct err err = { 0 };
    const char *steps[5];

    for (int i = 1; i < 5; i++)
        steps[i] = make(*state, i);
    for (int i = 0; i < 5; i++)
        assert_ok(file_make_folders(fixture_path(*state, strangers[i]), &err), &err);
    for (int i = 0; i < 4; i++)
        assert_ok(file_make_folders(fixture_path(fixture_path(*state, rests[i]), "in"), &err),
                  &err);
    assert_ok(store_clean(*state, 0, &err), &err);
    for (int i = 1; i < 5; i++)
        assert_true(file_exists(steps[i]));
    for (int i = 0; i < 4; i++)
        assert_false(file_exists(fixture_path(*state, rests[i])));
    assert_ok(store_clean(*state, 2, &err), &err);
    for (int i = 1; i < 5; i++)
        assert_int_equal(file_exists(steps[i]), i > 2);
    assert_false(file_exists(fixture_path(*state, "step-00000001.removed")));
    for (int i = 0; i < 5; i++)
        assert_true(file_exists(fixture_path(*state, strangers[i])));
}

/* A run went on from the whole one: it must outlive the damaged ones, which go when they are old.
 */
static void clean_does_not_count_damaged_ones(void **state)
{
    const char *old = make(*state, 1), *oldest_damaged = make(*state, 2), *whole = make(*state, 3);
    const char *damaged = make(*state, 4);
    struct err err = { 0 };

    assert_int_equal(unlink(fixture_path(damaged, "rank-00000.safetensors")), 0);
    assert_int_equal(unlink(fixture_path(oldest_damaged, "rank-00000.safetensors")), 0);
    assert_int_equal(store_count(*state, &err), 4);
    assert_ok(store_clean(*state, 1, &err), &err);
    assert_true(file_exists(whole));
    assert_true(file_exists(damaged));
    assert_false(file_exists(oldest_damaged));
    assert_false(file_exists(old));
    assert_int_equal(store_count(*state, &err), 2);
}

/* Besides the newest: the newest whole one that is old, the one that will be, and what is held. */
static void clean_keeps_an_old_one(void **state)
{
    static const int64_t held[] = { 1 };
    const struct store_kept kept = { .n_newest = 1, .old_step = 4, .held = held, .n_held = 1 };
    const struct store_kept all_old = { .n_newest = 1, .old_step = 9 };
    struct err err = { 0 };
    const char *steps[10];

    for (int i = 1; i < 10; i++)
        steps[i] = make(*state, i);
    assert_int_equal(unlink(fixture_path(steps[4], "rank-00000.safetensors")), 0);
    assert_int_equal(unlink(fixture_path(steps[5], "rank-00000.safetensors")), 0);
    assert_ok(store_clean_but(*state, &kept, &err), &err);
    for (int i = 1; i < 10; i++)
        assert_int_equal(file_exists(steps[i]), i == 9 || i == 6 || i == 3 || i == 1);
    /* The newest one may be old itself. */
    assert_ok(store_clean_but(*state, &all_old, &err), &err);
    for (int i = 1; i < 10; i++)
        assert_int_equal(file_exists(steps[i]), i == 9);
}

/* At any time one is old enough, from when it can be. */
static void clean_has_always_an_old_one(void **state)
{
    enum { AGE = 4 };
    struct err err = { 0 };

    for (int step = 1; step < 16; step++) {
        const struct store_kept kept = { .n_newest = 1, .old_step = step - AGE };

        make(*state, step);
        assert_ok(store_clean_but(*state, &kept, &err), &err);
        assert_true(store_count(*state, &err) <= 3);
        if (step > AGE)
            assert_non_null(store_newest_before(*state, step - AGE + 1, &fixture_arena, &err));
    }
}

static void count_is_of_checkpoints(void **state)
{
    struct err err = { 0 };

    assert_int_equal(store_count(*state, &err), 0);
    assert_int_equal(store_count(fixture_path(*state, "nowhere"), &err), 0);
    make(*state, 6);
    assert_ok(file_make_folders(fixture_path(*state, "step-00000007.partial"), &err), &err);
    assert_ok(file_make_folders(fixture_path(*state, "step-00000008"), &err), &err);
    assert_int_equal(store_count(*state, &err), 2);
    fixture_write(fixture_path(*state, "file"), "x", 1);
    assert_fails(store_count(fixture_path(*state, "file"), &err), &err, ERR_FAILED, "file");
}

/* Killed between the two renames of a replacement: the old one gets its name back. */
static void clean_brings_a_replaced_one_back(void **state)
{
    const char *old = make(*state, 6);
    struct err err = { 0 };

    assert_int_equal(rename(old, fixture_path(*state, "step-00000006.replaced")), 0);
    assert_ok(store_clean(*state, 1, &err), &err);
    assert_string_equal(store_newest(*state, &fixture_arena, &err), old);
}

static void clean_of_nothing_and_of_no_folder(void **state)
{
    struct err err = { 0 };

    assert_ok(store_clean(*state, 3, &err), &err);
    assert_ok(store_clean(fixture_path(*state, "nowhere"), 3, &err), &err);
    fixture_write(fixture_path(*state, "file"), "x", 1);
    assert_fails(store_clean(fixture_path(*state, "file"), 3, &err), &err, ERR_FAILED, "file");
}

/* Folders in folders in path, which is there, until no path reaches the last: as root, too, such
 * a tree is not removed by paths. Not making: remove them again. */
static void bury(const char *path, int making)
{
    char name[201];
    int fds[32], n = 0;

    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    fds[n] = open(path, O_RDONLY | O_DIRECTORY);
    assert_true(fds[n] >= 0);
    for (; n < 31; n++) {
        if (making)
            assert_int_equal(mkdirat(fds[n], name, 0700), 0);
        fds[n + 1] = openat(fds[n], name, O_RDONLY | O_DIRECTORY);
        assert_true(fds[n + 1] >= 0);
    }
    for (; n >= 0; n--) {
        close(fds[n]);
        if (!making && n > 0)
            assert_int_equal(unlinkat(fds[n - 1], name, AT_REMOVEDIR), 0);
    }
}

/* On NFS what somebody has open cannot be removed. The newest comes first: all others are after. */
static void clean_goes_on_past_what_it_cannot_remove(void **state)
{
    struct err err = { 0 };
    const char *partial = fixture_path(*state, "step-00000009.partial");
    const char *stuck = make(*state, 3), *old = make(*state, 2), *older = make(*state, 1);

    make(*state, 4);
    assert_ok(file_make_folders(partial, &err), &err);
    bury(partial, 1);
    bury(stuck, 1);
    assert_fails(store_clean(*state, 1, &err), &err, ERR_FAILED, "step-00000009.partial");
    assert_false(file_exists(stuck)); /* it has another name, and is no checkpoint */
    assert_false(file_exists(old));
    assert_false(file_exists(older));
    assert_int_equal(store_count(*state, &err), 1);
    bury(partial, 0);
    assert_fails(store_clean(*state, 1, &err), &err, ERR_FAILED, "step-00000003.removed");
    assert_false(file_exists(partial));
    bury(fixture_path(*state, "step-00000003.removed"), 0);
    assert_ok(store_clean(*state, 1, &err), &err);
    assert_int_equal(store_count(*state, &err), 1);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(newest_is_found_from_each_folder),
        TEST(newest_goes_by_number),
        TEST(damaged_ones_are_passed_over_with_a_warning),
        TEST(one_of_a_newer_format_is_an_error),
        TEST(later_ones_are_removed),
        TEST(damaged_ones_are_set_aside),
        TEST(clean_keeps_the_newest_and_all_that_is_not_ours),
        TEST(clean_does_not_count_damaged_ones),
        TEST(clean_keeps_an_old_one),
        TEST(clean_has_always_an_old_one),
        TEST(count_is_of_checkpoints),
        TEST(clean_brings_a_replaced_one_back),
        TEST(clean_of_nothing_and_of_no_folder),
        TEST(clean_goes_on_past_what_it_cannot_remove),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
