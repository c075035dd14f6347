/*
 * store_save_test.c - saves of checkpoints: what is written, refused and replaced (kills:
 * store_save_kill_test.c)
 */
#include "saved_value.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/fault.h"

static void a_full_disk_fails_the_save_and_nothing_else(void **state)
{
    const char *first = fixture_path(*state, "step-1"), *second = fixture_path(*state, "step-2");
    struct rlimit before, small;
    struct err err = { 0 };
    struct stat status;
    int64_t step;

    assert_ok(save_value(first, 1, 1, &err), &err);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){ .rlim_cur = 10000, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int failed = save_value(second, 2, 2, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(failed, -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.text, "rank-0000"));
    assert_non_null(strstr(err.text, "File too large"));
    assert_int_equal(stat(second, &status), -1);
    assert_true(read_value(first, &step) == 1);
    /* The very same save goes through once there is room. */
    assert_ok(save_value(second, 2, 2, &err), &err);
    assert_true(read_value(second, &step) == 2);
}

static void a_full_disk_at_the_commit_can_be_tried_again(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    struct rlimit before, small;
    struct err err = { 0 };
    struct stat status;
    float w[2] = { 1, 2 };
    struct store_slice slice = fixture_whole("w", DTYPE_F32, 2, 1, w);

    fixture_save(folder, 0, &slice, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){ .rlim_cur = 50, .rlim_max = before.rlim_max };
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int failed = store_commit(folder, 1, 1, "{}", &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(failed, -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_int_equal(stat(folder, &status), -1);
    assert_ok(store_commit(folder, 1, 1, "{}", &err), &err);
    assert_int_equal(stat(folder, &status), 0);
}

static void modes_are_private(void **state)
{
    const char *folder = fixture_path(*state, "a/step-1");
    static const char *const names[] = { "", "/manifest.json", "/rank-00000.json",
                                         "/rank-00001.safetensors" };
    mode_t mask = umask(0);
    struct err err = { 0 };
    struct stat status;

    assert_ok(save_value(folder, 1, 1, &err), &err);
    umask(mask);
    for (int i = 0; i < 4; i++) {
        char path[4096];

        snprintf(path, sizeof path, "%s%s", folder, names[i]);
        assert_int_equal(stat(path, &status), 0);
        assert_int_equal(status.st_mode & 07777, i ? 0600 : 0700);
    }
}

/* Names and the table of slices may go at once; only data must stay. */
static void start_copies_all_but_data(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    char *name = strdup("gone"), *path = strdup(folder);
    struct store_slice *slices = calloc(1, sizeof *slices);
    float w[2] = { 5, 6 }, back[2];
    struct err err = { 0 };
    struct store_save *save;
    struct store *store;

    *slices = fixture_whole(name, DTYPE_F32, 2, 1, w);
    assert_ok(store_save_start(&save, path, 0, slices, 1, &err), &err);
    memset(name, 'x', 4);
    free(name);
    free(path);
    free(slices);
    while (store_save_busy(save))
        usleep(100);
    w[0] = w[1] = -1; /* no longer read */
    assert_ok(store_save_wait(save, &err), &err);
    assert_ok(store_commit(folder, 1, 1, "{}", &err), &err);
    assert_ok(store_open(&store, folder, &err), &err);
    struct store_slice want = fixture_whole("gone", DTYPE_F32, 2, 1, back);
    assert_ok(store_read(store, &want, &err), &err);
    assert_true(back[0] == 5 && back[1] == 6);
    store_close(store);
}

/* A load callback that copies a row at a time, into one of two buffers as cells_load does. */
struct row_loader {
    float rows[2][3];
    int next;
};

static int load_row(void *context, struct store_slice *slice, struct err *err)
{
    struct row_loader *loader = context;
    float *row = loader->rows[loader->next];

    (void)err;
    loader->next = !loader->next;
    memcpy(row, slice->data, sizeof loader->rows[0]);
    slice->row_end = slice->row_begin + 1;
    slice->data = row;
    slice->stride = 0;
    return 0;
}

/* The writing stands still in its midst; what was not loaded by then is copied. */
static void a_copy_frees_the_memory_of_a_slow_save(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    struct row_loader own = { .next = 0 }, other = { .next = 0 };
    int64_t n_written, n_bytes;
    float w[12], back[12];
    struct err err = { 0 };
    struct store_save *save;
    struct store *store;

    for (int i = 0; i < 12; i++)
        w[i] = (float)i;
    struct store_slice slice = fixture_whole("w", DTYPE_F32, 4, 3, w);
    setenv("LMTRAIN_FAULT", "rank0:save:writing:1:sleep1", 1);
    assert_ok(fault_init(0, 0, &err), &err);
    assert_ok(store_save_start_from(&save, folder, 0, &slice, 1, load_row, &own, &err), &err);
    assert_int_equal(store_save_copy(save, 11, load_row, &other, &err), 0);
    assert_true(store_save_busy(save));
    assert_int_equal(store_save_copy(save, 48, load_row, &other, &err), 1);
    assert_false(store_save_busy(save));
    assert_false(store_save_ended(save));
    memset(w, 0, sizeof w);
    while (!store_save_ended(save))
        usleep(1000);
    store_save_amount(save, &n_written, &n_bytes);
    assert_true(n_written == 48 && n_bytes == 48);
    assert_ok(store_save_wait(save, &err), &err);
    unsetenv("LMTRAIN_FAULT");
    assert_ok(fault_init(0, 0, &err), &err);
    assert_ok(store_commit(folder, 1, 1, "{}", &err), &err);
    assert_ok(store_open(&store, folder, &err), &err);
    struct store_slice want = fixture_whole("w", DTYPE_F32, 4, 3, back);
    assert_ok(store_read(store, &want, &err), &err);
    for (int i = 0; i < 12; i++)
        assert_true(back[i] == (float)i);
    store_close(store);
}

/* A rank may have nothing of a tensor, or nothing at all. */
static void empty_slices_and_empty_ranks(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    float w[4] = { 1, 2, 3, 4 };
    struct store_slice slices[2] = { fixture_slice("w", DTYPE_F32, 4, 1, 0, 4, 0, 1, w),
                                     fixture_slice("w", DTYPE_F32, 4, 1, 4, 4, 0, 1, NULL) };
    struct err err = { 0 };
    struct store *store;

    fixture_save(folder, 0, slices, 1);
    fixture_save(folder, 1, slices + 1, 1);
    fixture_save(folder, 2, NULL, 0);
    assert_ok(store_commit(folder, 3, 1, "{}", &err), &err);
    assert_ok(store_open(&store, folder, &err), &err);
    assert_int_equal(store_n_tensors(store), 1);
    assert_ok(store_verify(store, NULL, NULL, &err), &err);
    store_close(store);
}

static void places_that_cannot_be_written_are_errors(void **state)
{
    const char *file = fixture_path(*state, "file");
    struct err err = { 0 };
    struct store_save *save;
    float w[1] = { 1 };
    struct store_slice slice = fixture_whole("w", DTYPE_F32, 1, 1, w);

    fixture_write(file, "x", 1);
    assert_fails(store_save_start(&save, fixture_path(file, "step-1"), 0, &slice, 1, &err), &err,
                 ERR_FAILED, "file");
    /* A folder stands where the data are to go. */
    const char *folder = fixture_path(*state, "step-1");
    assert_ok(
        file_make_folders(fixture_path(*state, "step-1.partial/rank-00000.safetensors/in"), &err),
        &err);
    assert_ok(store_save_start(&save, folder, 0, &slice, 1, &err), &err);
    assert_fails(store_save_wait(save, &err), &err, ERR_FAILED, "rank-00000.safetensors");
    /* And where rank-N.json is to go. */
    const char *other = fixture_path(*state, "step-2");
    assert_ok(file_make_folders(fixture_path(*state, "step-2.partial/rank-00000.json/in"), &err),
              &err);
    assert_ok(store_save_start(&save, other, 0, &slice, 1, &err), &err);
    assert_fails(store_save_wait(save, &err), &err, ERR_FAILED, "rank-00000.json");
}

static void a_planted_link_is_replaced_and_not_followed(void **state)
{
    const char *target = fixture_path(*state, "precious");
    struct err err = { 0 };
    int64_t step;
    char *text;
    size_t n;

    fixture_write(target, "precious", 8);
    assert_ok(file_make_folders(fixture_path(*state, "step-1.partial"), &err), &err);
    assert_int_equal(symlink(target, fixture_path(*state, "step-1.partial/rank-00000.safetensors")),
                     0);
    assert_int_equal(symlink(target, fixture_path(*state, "step-1.partial/rank-00001.json")), 0);
    assert_int_equal(symlink(target, fixture_path(*state, "step-1.partial/manifest.json")), 0);
    assert_ok(save_value(fixture_path(*state, "step-1"), 1, 2, &err), &err);
    assert_true(read_value(fixture_path(*state, "step-1"), &step) == 2);
    assert_ok(file_read(target, 100, ERR_DATA, &text, &n, &err), &err);
    assert_string_equal(text, "precious");
    free(text);
}

static void what_another_world_left_is_swept_out(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    float w[1] = { 1 };
    struct store_slice slice = fixture_whole("w", DTYPE_F32, 1, 1, w);

    fixture_save(folder, 1, &slice, 1);
    fixture_save(folder, 7, &slice, 1);
    fixture_write(fixture_path(*state, "step-1.partial/rank-00000.json.part-99"), "x", 1);
    fixture_checkpoint(folder, 1, &slice, 1);
    assert_true(file_exists(fixture_path(folder, "rank-00000.json")));
    assert_false(file_exists(fixture_path(folder, "rank-00001.json")));
    assert_false(file_exists(fixture_path(folder, "rank-00007.safetensors")));
    assert_false(file_exists(fixture_path(folder, "rank-00000.json.part-99")));
}

/* What is known only after the commit: the state alone changes. */
static void a_state_is_replaced(void **state)
{
    const char *path = fixture_path(*state, "step-00000007");
    struct err err = { 0 };
    struct store *store;
    int64_t step;

    assert_ok(save_value(path, 7, 2.5f, &err), &err);
    assert_ok(store_restate(path, 7, "{\"a\":1}", &err), &err);
    assert_true(read_value(path, &step) == 2.5f);
    assert_int_equal(step, 7);
    assert_ok(store_open(&store, path, &err), &err);
    assert_string_equal(store_state(store), "{\"a\":1}");
    store_close(store);
    assert_fails(store_restate(path, 8, "{}", &err), &err, ERR_DATA, "is from step 7, not 8");
    assert_fails(store_restate(path, 7, "[]", &err), &err, ERR_FAILED, "not a JSON object");
    assert_fails(store_restate(fixture_path(*state, "nowhere"), 7, "{}", &err), &err, ERR_DATA,
                 "nowhere");
    assert_true(read_value(path, &step) == 2.5f);
}

static void commit_refuses_what_does_not_fit_together(void **state)
{
    float w[8] = { 0 };
    struct store_slice upper = fixture_slice("w", DTYPE_F32, 4, 2, 0, 2, 0, 2, w);
    struct store_slice lower = fixture_slice("w", DTYPE_F32, 4, 2, 2, 4, 0, 2, w);
    struct store_slice wrong;
    const char *folder = fixture_path(*state, "step-1");
    struct err err = { 0 };

    assert_fails(store_commit(folder, 2, 1, "{}", &err), &err, ERR_DATA, "step-1.partial");
    fixture_save(folder, 0, &upper, 1);
    assert_fails(store_commit(folder, 2, 1, "{}", &err), &err, ERR_DATA, "rank-00001.json");
    assert_fails(store_commit(folder, 1, 1, "{}", &err), &err, ERR_DATA, "exactly once");
    wrong = lower;
    wrong.row_begin = 1;
    fixture_save(folder, 1, &wrong, 1);
    assert_fails(store_commit(folder, 2, 1, "{}", &err), &err, ERR_DATA, "exactly once");
    wrong = lower;
    wrong.dtype = DTYPE_BF16;
    fixture_save(folder, 1, &wrong, 1);
    assert_fails(store_commit(folder, 2, 1, "{}", &err), &err, ERR_DATA, "ranks 0 and 1 differ");
    fixture_save(folder, 1, &lower, 1);
    assert_fails(store_commit(folder, 2, 1, "[]", &err), &err, ERR_FAILED, "not a JSON object");
    assert_fails(store_commit(folder, 2, 1, "{\"a\":}", &err), &err, ERR_FAILED,
                 "not a JSON object");
    assert_fails(store_commit(folder, 2, 1, "{} x", &err), &err, ERR_FAILED, "not a JSON object");
    const char *data = fixture_path(*state, "step-1.partial/rank-00001.safetensors");
    assert_int_equal(truncate(data, file_size(data) - 1), 0);
    assert_fails(store_commit(folder, 2, 1, "{}", &err), &err, ERR_DATA,
                 "according to the manifest");
    fixture_save(folder, 1, &lower, 1);
    const char *part = fixture_path(*state, "step-1.partial/rank-00001.json");
    assert_int_equal(rename(fixture_path(*state, "step-1.partial/rank-00000.json"), part), 0);
    fixture_save(folder, 0, &upper, 1);
    assert_int_equal(unlink(part), 0);
    assert_int_equal(link(fixture_path(*state, "step-1.partial/rank-00000.json"), part), 0);
    assert_fails(store_commit(folder, 2, 1, "{}", &err), &err, ERR_DATA, "just its rank's file");
    assert_int_equal(unlink(part), 0);
    fixture_save(folder, 1, &lower, 1);
    assert_false(file_exists(folder));
    assert_ok(store_commit(folder, 2, 1, "{\"a\":[1,{\"b\":null}]}", &err), &err);
    assert_true(file_exists(folder));
}

/* Gives `step` rows of w at a time, from two buffers by turns. */
struct loader {
    const float *w;
    int64_t step;
    float pieces[2][64];
    int n_asked;
};

static int load_rows(void *context, struct store_slice *slice, struct err *err)
{
    struct loader *loader = context;
    float *piece = loader->pieces[loader->n_asked++ % 2];
    int64_t cols = slice->col_end - slice->col_begin;

    (void)err;
    if (slice->row_end > slice->row_begin + loader->step)
        slice->row_end = slice->row_begin + loader->step;
    for (int64_t row = slice->row_begin; row < slice->row_end; row++)
        memcpy(piece + (row - slice->row_begin) * cols,
               loader->w + row * slice->cols + slice->col_begin, (size_t)cols * sizeof *piece);
    slice->data = piece;
    slice->stride = 0;
    return 0;
}

static void pieces_make_the_same_file(void **state)
{
    float w[7 * 8];
    struct store_slice slices[] = { fixture_slice("b", DTYPE_F32, 7, 8, 0, 7, 0, 3, w),
                                    fixture_slice("b", DTYPE_F32, 7, 8, 2, 6, 3, 8, w + 2 * 8 + 3),
                                    fixture_slice("a", DTYPE_F32, 7, 8, 3, 4, 0, 8, w + 3 * 8) };
    const char *at_once = fixture_path(*state, "step-1"), *piecewise;
    struct err err = { 0 };
    char *wanted, *got;
    size_t n = 0, m = 0;
    int64_t n_bytes = 0;

    for (int i = 0; i < 7 * 8; i++)
        w[i] = (float)i;
    slices[0].stride = slices[1].stride = 8;
    fixture_save(at_once, 0, slices, 3);
    for (int64_t step = 1; step <= 8; step++) {
        struct loader loader = { .w = w, .step = step };

        piecewise = fixture_path(*state, arena_printf(&fixture_arena, "step-%d", 1 + (int)step));
        assert_false(store_written(piecewise, 0, &n_bytes, NULL, NULL));
        assert_ok(store_write(piecewise, 0, slices, 3, load_rows, &loader, &err), &err);
        for (int i = 0; i < 2; i++) {
            const char *name = i ? "rank-00000.json" : "rank-00000.safetensors";

            assert_ok(file_read(arena_printf(&fixture_arena, "%s.partial/%s", at_once, name),
                                1 << 20, ERR_DATA, &wanted, &n, &err),
                      &err);
            assert_ok(file_read(arena_printf(&fixture_arena, "%s.partial/%s", piecewise, name),
                                1 << 20, ERR_DATA, &got, &m, &err),
                      &err);
            assert_int_equal(n, m);
            assert_memory_equal(wanted, got, n);
            free(wanted);
            free(got);
        }
        assert_true(store_written(piecewise, 0, &n_bytes, NULL, NULL));
        assert_false(store_written(piecewise, 1, &n_bytes, NULL, NULL));
    }
    const char *data = arena_printf(&fixture_arena, "%s.partial/rank-00000.safetensors", piecewise);
    assert_int_equal(n_bytes, file_size(data));
    fixture_poke(data, -1, "x", 1);
    assert_false(store_written(piecewise, 0, &n_bytes, NULL, NULL));
}

static int load_nothing(void *context, struct store_slice *slice, struct err *err)
{
    (void)context;
    return err_set(err, ERR_DATA, "%s is not to be had", slice->name);
}

static void what_cannot_be_loaded_fails_the_write(void **state)
{
    float w[4] = { 0 };
    struct store_slice slice = fixture_whole("a", DTYPE_F32, 2, 2, w);
    const char *folder = fixture_path(*state, "step-1");
    struct err err = { 0 };
    int64_t n_bytes;

    assert_fails(store_write(folder, 0, &slice, 1, load_nothing, NULL, &err), &err, ERR_DATA,
                 "a is not to be had");
    assert_false(store_written(folder, 0, &n_bytes, NULL, NULL));
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_full_disk_fails_the_save_and_nothing_else),
        TEST(a_full_disk_at_the_commit_can_be_tried_again),
        TEST(modes_are_private),
        TEST(start_copies_all_but_data),
        TEST(a_copy_frees_the_memory_of_a_slow_save),
        TEST(empty_slices_and_empty_ranks),
        TEST(places_that_cannot_be_written_are_errors),
        TEST(a_planted_link_is_replaced_and_not_followed),
        TEST(what_another_world_left_is_swept_out),
        TEST(a_state_is_replaced),
        TEST(commit_refuses_what_does_not_fit_together),
        TEST(pieces_make_the_same_file),
        TEST(what_cannot_be_loaded_fails_the_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
