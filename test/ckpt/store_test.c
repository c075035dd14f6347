/*
 * store_test.c - any layout reads any checkpoint, and damage is found
 */
#include "ckpt_fixture.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "ckpt/convert_dtype.h"
#include "ckpt/manifest.h"

enum { ROWS = 12, COLS = 10 };

/* Row-major r * 100 + c + 0.5: exact in all three types, and tells its place. */
static void fill(float *data, int64_t r0, int64_t r1, int64_t c0, int64_t c1)
{
    for (int64_t r = r0; r < r1; r++)
        for (int64_t c = c0; c < c1; c++)
            *data++ = (float)(r * 100 + c) + 0.5f;
}

static void check_rect(const float *data, int64_t r0, int64_t r1, int64_t c0, int64_t c1)
{
    for (int64_t r = r0; r < r1; r++)
        for (int64_t c = c0; c < c1; c++, data++)
            if (*data != (float)(r * 100 + c) + 0.5f)
                fail_msg("element %d,%d is %g", (int)r, (int)c, (double)*data);
}

/* A checkpoint by `world` ranks, each with its share of rows or columns. */
static void save_split(const char *folder, int world, int by_rows)
{
    struct err err = { 0 };
    float data[ROWS * COLS];

    for (int rank = 0; rank < world; rank++) {
        struct store_slice slice = fixture_whole("w", DTYPE_F32, ROWS, COLS, data);
        int64_t extent = by_rows ? ROWS : COLS;
        int64_t begin = extent * rank / world, end = extent * (rank + 1) / world;

        if (by_rows)
            slice.row_begin = begin, slice.row_end = end;
        else
            slice.col_begin = begin, slice.col_end = end;
        fill(data, slice.row_begin, slice.row_end, slice.col_begin, slice.col_end);
        fixture_save(folder, rank, &slice, 1);
    }
    assert_ok(store_commit(folder, world, 7, "{}", &err), &err);
}

static void read_all_rects(struct store *store)
{
    struct err err = { 0 };
    float data[ROWS * COLS];

    for (int64_t r0 = 0; r0 < ROWS; r0++)
        for (int64_t r1 = r0 + 1; r1 <= ROWS; r1++)
            for (int64_t c0 = 0; c0 < COLS; c0++)
                for (int64_t c1 = c0 + 1; c1 <= COLS; c1++) {
                    struct store_slice want =
                        fixture_slice("w", DTYPE_F32, ROWS, COLS, r0, r1, c0, c1, data);

                    memset(data, 0xff, sizeof data);
                    assert_ok(store_read(store, &want, &err), &err);
                    check_rect(data, r0, r1, c0, c1);
                }
}

/* Split by rows or columns over 1..5 ranks, read back as every rectangle there is. */
static void any_split_reads_as_any_rectangle(void **state)
{
    struct err err = { 0 };

    for (int world = 1; world <= 5; world++)
        for (int by_rows = 0; by_rows < 2; by_rows++) {
            char name[64];
            struct store *store;

            snprintf(name, sizeof name, "step-%d%d", world, by_rows);
            save_split(fixture_path(*state, name), world, by_rows);
            assert_ok(store_open(&store, fixture_path(*state, name), &err), &err);
            assert_int_equal(store_step(store), 7);
            read_all_rects(store);
            store_close(store);
        }
}

/* Columns [c0, c1) of all rows out of a buffer with rows of `stride`, and back into another. */
static void check_strided(const char *folder, int64_t c0, int64_t c1, int64_t stride)
{
    struct err err = { 0 };
    float from[ROWS * 2 * COLS], to[ROWS * 2 * COLS], dense[ROWS * COLS];
    struct store_slice slices[3];
    struct store *store;

    fill(dense, 0, ROWS, 0, COLS);
    for (int i = 0; i < ROWS * 2 * COLS; i++)
        from[i] = to[i] = -1;
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = c0; c < c1; c++)
            from[r * stride + c - c0] = dense[r * COLS + c];
    slices[0] = fixture_slice("w", DTYPE_F32, ROWS, COLS, 0, ROWS, 0, c0, dense);
    slices[1] = fixture_slice("w", DTYPE_F32, ROWS, COLS, 0, ROWS, c0, c1, from);
    slices[2] = fixture_slice("w", DTYPE_F32, ROWS, COLS, 0, ROWS, c1, COLS, dense + c1);
    slices[0].stride = slices[2].stride = COLS;
    slices[1].stride = stride;
    fixture_checkpoint(folder, 1, slices, 3);
    assert_ok(store_open(&store, folder, &err), &err);
    read_all_rects(store);
    slices[1].data = to;
    assert_ok(store_read(store, &slices[1], &err), &err);
    assert_memory_equal(to, from, sizeof to);
    store_close(store);
}

static void rows_may_lie_apart(void **state)
{
    check_strided(fixture_path(*state, "step-1"), 3, 7, 4);
    check_strided(fixture_path(*state, "step-2"), 3, 7, 9);
    check_strided(fixture_path(*state, "step-3"), 0, COLS, COLS + 1);
    check_strided(fixture_path(*state, "step-4"), 9, 10, 2);
}

/* More files than are kept open, read forth and back, so that files are closed and opened again. */
static void many_files_take_turns(void **state)
{
    enum { WORLD = 80 };
    const char *folder = fixture_path(*state, "step-1");
    struct err err = { 0 };
    struct rlimit before, few;
    struct store *store;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){ 80, before.rlim_max };
    for (int rank = 0; rank < WORLD; rank++) {
        float value[2] = { (float)rank, (float)-rank };
        struct store_slice slice =
            fixture_slice("w", DTYPE_F32, 2 * WORLD, 1, 2 * rank, 2 * rank + 2, 0, 1, value);

        fixture_save(folder, rank, &slice, 1);
    }
    assert_ok(store_commit(folder, WORLD, 1, "{}", &err), &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_ok(store_open(&store, folder, &err), &err);
    for (int round = 0; round < 4; round++) {
        float data[2 * WORLD];
        struct store_slice want = fixture_whole("w", DTYPE_F32, 2 * WORLD, 1, data);

        assert_ok(store_read(store, &want, &err), &err);
        for (int rank = 0; rank < WORLD; rank++) {
            assert_true(data[2 * rank] == (float)rank);
            assert_true(data[2 * rank + 1] == (float)-rank);
        }
        int back = WORLD - 1 - 9 * round;
        want = fixture_slice("w", DTYPE_F32, 2 * WORLD, 1, 2 * back + 1, 2 * back + 2, 0, 1, data);
        assert_ok(store_read(store, &want, &err), &err);
        assert_true(data[0] == (float)-back);
    }
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd < 60);
    close(fd);
    store_close(store);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Rows beyond the short-row limit and tensors beyond the buffer: the other way of reading. */
static void long_rows_and_large_tensors(void **state)
{
    enum { WIDE = 40000, N = 3 << 20 };
    const char *folder = fixture_path(*state, "step-1");
    float *wide = malloc(3 * WIDE * sizeof *wide), *large = malloc(N * sizeof *large);
    float *back = malloc(N * sizeof *back);
    struct store_slice slices[2] = { fixture_whole("wide", DTYPE_F32, 3, WIDE, wide),
                                     fixture_whole("large", DTYPE_F32, N, 1, large) };
    struct err err = { 0 };
    struct store *store;

    for (int i = 0; i < 3 * WIDE; i++)
        wide[i] = (float)i;
    for (int i = 0; i < N; i++)
        large[i] = (float)i;
    fixture_checkpoint(folder, 1, slices, 2);
    assert_ok(store_open(&store, folder, &err), &err);
    slices[0].data = slices[1].data = back;
    assert_ok(store_read(store, &slices[0], &err), &err);
    assert_memory_equal(back, wide, 3 * WIDE * sizeof *wide);
    assert_ok(store_read(store, &slices[1], &err), &err);
    assert_memory_equal(back, large, N * sizeof *large);
    struct store_slice part = fixture_slice("wide", DTYPE_F32, 3, WIDE, 1, 3, 777, 39001, back);
    assert_ok(store_read(store, &part, &err), &err);
    assert_memory_equal(back, wide + WIDE + 777, (39001 - 777) * sizeof *wide);
    assert_memory_equal(back + 39001 - 777, wide + 2 * WIDE + 777, (39001 - 777) * sizeof *wide);
    part = fixture_slice("large", DTYPE_F32, N, 1, 5, N - 5, 0, 1, back);
    assert_ok(store_read(store, &part, &err), &err);
    assert_memory_equal(back, large + 5, (N - 10) * sizeof *large);
    assert_ok(store_verify(store, NULL, NULL, &err), &err);
    store_close(store);
    free(wide);
    free(large);
    free(back);
}

static void reading_converts(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    static const enum dtype kinds[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
    float values[6] = { 0, -1.5f, 3.25f, 0x1p-14f, 256, -0.0f };
    unsigned char data[3][24], got[24], wanted[24];
    struct store_slice slices[3];
    struct err err = { 0 };
    struct store *store;
    static const char *const names[] = { "a", "b", "c" };

    for (int i = 0; i < 3; i++) {
        convert(kinds[i], data[i], DTYPE_F32, values, 6);
        slices[i] = fixture_whole(names[i], kinds[i], 2, 3, data[i]);
    }
    fixture_checkpoint(folder, 1, slices, 3);
    assert_ok(store_open(&store, folder, &err), &err);
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            struct store_slice want = fixture_whole(names[from], kinds[to], 2, 3, got);

            assert_ok(store_read(store, &want, &err), &err);
            convert(kinds[to], wanted, DTYPE_F32, values, 6);
            assert_memory_equal(got, wanted, (size_t)6 * dtype_bytes(kinds[to]));
        }
    struct store_slice want = fixture_whole("a", DTYPE_I32, 2, 3, got);
    assert_fails(store_read(store, &want, &err), &err, ERR_DATA,
                 "fp32, which cannot be converted to i32");
    store_close(store);
}

static void lists_tensors_and_state(void **state)
{
    const char *folder = fixture_path(*state, "step-00000003");
    float w[6] = { 1, 2, 3, 4, 5, 6 };
    int64_t n = -9;
    struct store_slice slices[2] = { fixture_whole("z.w", DTYPE_F32, 2, 3, w),
                                     fixture_whole("a.n", DTYPE_I64, 1, 1, &n) };
    struct err err = { 0 };
    struct store *store;

    fixture_checkpoint(folder, 3, slices, 2);
    assert_ok(store_open(&store, folder, &err), &err);
    assert_int_equal(store_step(store), 3);
    assert_string_equal(store_state(store), "{\"seed\": 1}");
    assert_int_equal(store_n_tensors(store), 2);
    assert_string_equal(store_tensor(store, 0)->name, "a.n");
    assert_string_equal(store_tensor(store, 1)->name, "z.w");
    assert_null(store_tensor(store, 2));
    assert_null(store_tensor(store, -1));
    const struct store_slice *found = store_find(store, "z.w");
    assert_non_null(found);
    assert_int_equal(found->rows, 2);
    assert_int_equal(found->row_end, 2);
    assert_int_equal(found->col_end, 3);
    assert_int_equal(found->dtype, DTYPE_F32);
    assert_null(found->data);
    assert_null(store_find(store, "z"));
    int64_t got = 0;
    struct store_slice want = fixture_whole("a.n", DTYPE_I64, 1, 1, &got);
    assert_ok(store_read(store, &want, &err), &err);
    assert_int_equal(got, -9);
    store_close(store);
}

static void wrong_names_and_shapes_are_refused(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    float w[6] = { 0 };
    struct store_slice want = fixture_whole("w", DTYPE_F32, 2, 3, w);
    struct err err = { 0 };
    struct store *store;

    fixture_checkpoint(folder, 1, &want, 1);
    assert_ok(store_open(&store, folder, &err), &err);
    want = fixture_whole("v", DTYPE_F32, 2, 3, w);
    assert_fails(store_read(store, &want, &err), &err, ERR_DATA, "has no tensor v");
    want = fixture_whole("w", DTYPE_F32, 3, 2, w);
    assert_fails(store_read(store, &want, &err), &err, ERR_DATA, "3 x 2");
    want = fixture_whole("w", DTYPE_F32, 6, 1, w);
    assert_fails(store_read(store, &want, &err), &err, ERR_DATA, "expected 6 x 1 (1-D)");
    want = fixture_slice("w", DTYPE_F32, 2, 3, 1, 1, 0, 3, NULL);
    assert_ok(store_read(store, &want, &err), &err);
    store_close(store);
}

/* A checkpoint of one 64 x 8 tensor, opened. */
static struct store *open_sample(const char *folder)
{
    static float w[512];
    struct store_slice slice = fixture_whole("w", DTYPE_F32, 64, 8, w);
    struct err err = { 0 };
    struct store *store;

    for (int i = 0; i < 512; i++)
        w[i] = (float)i;
    fixture_checkpoint(folder, 1, &slice, 1);
    assert_ok(store_open(&store, folder, &err), &err);
    return store;
}

static void a_flipped_byte_is_found(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    struct store *store = open_sample(folder);
    float back[512];
    struct store_slice want = fixture_whole("w", DTYPE_F32, 64, 8, back);
    struct err err = { 0 };

    fixture_poke(fixture_path(folder, "rank-00000.safetensors"), -77, "\x55", 1);
    assert_fails(store_verify(store, NULL, NULL, &err), &err, ERR_DATA,
                 "rank-00000.safetensors is damaged");
    assert_fails(store_read(store, &want, &err), &err, ERR_DATA, "tensor w is damaged");
    store_close(store);
}

static void every_flipped_bit_of_the_manifest_is_found(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    struct err err = { 0 };
    char *text;
    size_t n_bytes;

    store_close(open_sample(folder));
    const char *path = fixture_path(folder, "manifest.json");
    assert_ok(file_read(path, 1 << 20, ERR_DATA, &text, &n_bytes, &err), &err);
    for (size_t i = 0; i < n_bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            struct manifest manifest;
            struct arena arena = { 0 };

            text[i] ^= (char)(1 << bit);
            assert_fails(manifest_parse(&manifest, path, text, n_bytes, &arena, &err), &err,
                         ERR_DATA, "manifest.json is");
            text[i] ^= (char)(1 << bit);
            arena_release(&arena);
        }
    free(text);
}

static void missing_short_and_linked_files_are_found(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    struct store *store = open_sample(folder);
    const char *data = fixture_path(folder, "rank-00000.safetensors");
    const char *moved = fixture_path(*state, "elsewhere");
    float back[512];
    struct store_slice want = fixture_whole("w", DTYPE_F32, 64, 8, back);
    struct err err = { 0 };

    assert_int_equal(rename(data, moved), 0);
    assert_fails(store_read(store, &want, &err), &err, ERR_DATA, "No such file");
    assert_fails(store_verify(store, NULL, NULL, &err), &err, ERR_DATA, "No such file");
    assert_fails(store_check_sizes(store, &err), &err, ERR_DATA, "No such file");
    assert_int_equal(symlink(moved, data), 0);
    assert_fails(store_read(store, &want, &err), &err, ERR_DATA, "symbolic link");
    assert_fails(store_verify(store, NULL, NULL, &err), &err, ERR_DATA, "symbolic link");
    assert_int_equal(unlink(data), 0);
    assert_int_equal(mkfifo(data, 0600), 0);
    assert_fails(store_read(store, &want, &err), &err, ERR_DATA, "not a regular file");
    assert_int_equal(unlink(data), 0);
    assert_int_equal(rename(moved, data), 0);
    assert_ok(store_read(store, &want, &err), &err);
    assert_int_equal(truncate(data, 1000), 0);
    /* Already open, so that the size is not asked for again: the read itself must notice. */
    assert_fails(store_read(store, &want, &err), &err, ERR_DATA, "ends at byte 1000");
    assert_fails(store_check_sizes(store, &err), &err, ERR_DATA, "according to the manifest");
    store_close(store);
    assert_ok(store_open(&store, folder, &err), &err);
    assert_fails(store_read(store, &want, &err), &err, ERR_DATA, "has 1000 bytes");
    store_close(store);
}

static void a_manifest_that_is_not_ours_is_refused(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    struct err err = { 0 };
    struct store *store;

    assert_fails(store_open(&store, folder, &err), &err, ERR_DATA, "No such file");
    store_close(open_sample(folder));
    const char *path = fixture_path(folder, "manifest.json");
    fixture_write(path, "{}", 2);
    assert_fails(store_open(&store, folder, &err), &err, ERR_DATA, "not a checkpoint's manifest");
    fixture_write(path, "", 0);
    assert_fails(store_open(&store, folder, &err), &err, ERR_DATA, "not a checkpoint's manifest");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("rank-00000.json", path), 0);
    assert_fails(store_open(&store, folder, &err), &err, ERR_DATA, "symbolic link");
}

/* The manifest and the file are each in order, but speak of different things. */
static void a_file_that_contradicts_its_manifest_is_refused(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    struct arena arena = { 0 };
    struct manifest manifest;
    struct str text = { 0 };
    struct err err = { 0 };
    struct store *store;
    float back[512];
    char *read;
    size_t n_bytes;

    store_close(open_sample(folder));
    const char *path = fixture_path(folder, "manifest.json");
    assert_ok(file_read(path, 1 << 20, ERR_DATA, &read, &n_bytes, &err), &err);
    assert_ok(manifest_parse(&manifest, path, read, n_bytes, &arena, &err), &err);
    free(read);
    static const struct store_slice lies[] = {
        { "v", DTYPE_F32, 2, 64, 8, 0, 64, 0, 8, NULL, 0, NULL },
        { "w", DTYPE_I32, 2, 64, 8, 0, 64, 0, 8, NULL, 0, NULL },
        { "w", DTYPE_F32, 2, 8, 64, 0, 8, 0, 64, NULL, 0, NULL },
        { "w", DTYPE_F32, 1, 512, 1, 0, 512, 0, 1, NULL, 0, NULL },
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct store_slice want = lies[i];

        manifest.tensors[0].whole = lies[i];
        manifest.tensors[0].slices[0].row_end = want.rows;
        manifest.tensors[0].slices[0].col_end = want.cols;
        want.data = back;
        manifest_print(&manifest, &text);
        fixture_write(path, text.data, text.length);
        assert_ok(store_open(&store, folder, &err), &err);
        assert_fails(store_read(store, &want, &err), &err, ERR_DATA,
                     i ? "does not have the dtype and shape of the manifest"
                       : "tensor v is missing");
        store_close(store);
    }
    str_release(&text);
    arena_release(&arena);
}

static void remember_share(void *context, double share)
{
    double *last = context;

    assert_true(share > *last);
    *last = share;
}

static void verify_tells_how_far_it_is(void **state)
{
    struct store *store = open_sample(fixture_path(*state, "step-1"));
    struct err err = { 0 };
    double last = 0;

    assert_ok(store_verify(store, remember_share, &last, &err), &err);
    assert_true(last == 1);
    store_close(store);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(any_split_reads_as_any_rectangle),
        TEST(rows_may_lie_apart),
        TEST(many_files_take_turns),
        TEST(long_rows_and_large_tensors),
        TEST(reading_converts),
        TEST(lists_tensors_and_state),
        TEST(wrong_names_and_shapes_are_refused),
        TEST(a_flipped_byte_is_found),
        TEST(every_flipped_bit_of_the_manifest_is_found),
        TEST(missing_short_and_linked_files_are_found),
        TEST(a_manifest_that_is_not_ours_is_refused),
        TEST(a_file_that_contradicts_its_manifest_is_refused),
        TEST(verify_tells_how_far_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
