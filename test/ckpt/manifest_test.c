/*
 * manifest_test.c - print and read agree; numbers from outside are checked
 */
#include "ckpt_fixture.h"

#include "ckpt/manifest.h"

static int parse(struct manifest *manifest, const char *text, struct err *err)
{
    return manifest_parse_body(manifest, "m.json", text, strlen(text), &fixture_arena, err);
}

static void what_is_printed_reads_back(void **state)
{
    struct manifest_file files[] = { { "rank-00000.safetensors", 123, 0xfedcba9876543210u },
                                     { "rank-00001.safetensors", INT64_MAX, 0 } };
    struct manifest_slice z[] = { { 1, 2, 4, 0, 3, 7 }, { 0, 0, 2, 0, 3, UINT64_MAX } };
    struct manifest_slice a[] = { { 0, 0, 5, 0, 1, 1 } };
    struct manifest_tensor tensors[] = {
        { { "z\"\n", DTYPE_BF16, 2, 4, 3, 0, 4, 0, 3, NULL, 0, NULL }, 2, z },
        { { "a", DTYPE_I64, 1, 5, 1, 0, 5, 0, 1, NULL, 0, NULL }, 1, a },
    };
    struct manifest manifest = { 77, 2, "{\"x\": [1]}", 2, files, 2, tensors }, back;
    struct str text = { 0 }, again = { 0 };
    struct err err = { 0 };

    (void)state;
    manifest_print(&manifest, &text);
    assert_ok(manifest_parse(&back, "m.json", text.data, text.length, &fixture_arena, &err), &err);
    assert_ok(manifest_check_complete(&back, "m.json", &err), &err);
    assert_int_equal(back.step, 77);
    assert_int_equal(back.world_size, 2);
    assert_string_equal(back.state, "{\"x\": [1]}");
    assert_int_equal(back.n_files, 2);
    assert_int_equal(back.files[1].n_bytes, INT64_MAX);
    assert_true(back.files[0].hash == 0xfedcba9876543210u);
    assert_string_equal(back.tensors[0].whole.name, "a");
    assert_string_equal(back.tensors[1].whole.name, "z\"\n");
    assert_int_equal(back.tensors[1].slices[0].row_begin, 0);
    assert_true(back.tensors[1].slices[0].hash == UINT64_MAX);
    assert_int_equal(back.tensors[1].slices[1].file, 1);
    manifest_print(&back, &again);
    assert_ok(manifest_parse(&back, "m.json", again.data, again.length, &fixture_arena, &err),
              &err);
    str_release(&text);
    str_release(&again);
}

/* A manifest of one file and the given text for its tensors. */
#define M(tensors) \
    "{\"lmtrain_checkpoint\":1,\"step\":1,\"world_size\":1,\"state\":{}," \
    "\"files\":[{\"name\":\"f\",\"bytes\":9,\"xxh3\":\"0123456789abcdef\"}],\"tensors\":{" tensors \
    "}}"
#define F(files) \
    "{\"lmtrain_checkpoint\":1,\"step\":1,\"world_size\":1,\"state\":{},\"files\":[" files \
    "],\"tensors\":{}}"
#define H ",\"0123456789abcdef\""

static const struct {
    const char *text, *words;
} bad[] = {
    { "", "an object is expected" },
    { "{}", "are missing" },
    { M("") "x", "unexpected characters after" },
    { "{\"lmtrain_checkpoint\":2,\"step\":1,\"world_size\":1,\"state\":{},\"files\":[],"
      "\"tensors\":{}}",
      "unsupported format version" },
    { "{\"lmtrain_checkpoint\":1,\"step\":-1}", "a whole number" },
    { "{\"step\":1,\"step\":1}", "given twice" },
    { "{\"step\":99999999999999999999}", "out of range" },
    { "{\"world_size\":4294967296}", "out of range" },
    { "{\"state\":[]}", "state must be an object" },
    { "{\"state\":{\"a\":}}", "a value is expected" },
    { F("{\"name\":\"../f\",\"bytes\":9}"), "not a plain one" },
    { F("{\"name\":\"/etc/passwd\",\"bytes\":9}"), "not a plain one" },
    { F("{\"name\":\"..\",\"bytes\":9}"), "not a plain one" },
    { F("{\"name\":\".hidden\",\"bytes\":9}"), "not a plain one" },
    { F("{\"name\":\"\",\"bytes\":9}"), "not a plain one" },
    { F("{\"name\":\"a b\",\"bytes\":9}"), "not a plain one" },
    { F("{\"bytes\":9}"), "not a plain one" },
    { F("{\"name\":\"f\"}"), "has no size" },
    { F("{\"name\":\"f\",\"bytes\":-9}"), "a whole number" },
    { F("{\"name\":\"f\",\"bytes\":9,\"xxh3\":\"0123\"}"), "16 hex digits" },
    { F("{\"name\":\"f\",\"bytes\":9,\"xxh3\":\"0123456789ABCDEF\"}"), "16 hex digits" },
    { F("{\"name\":\"f\",\"bytes\":9},{\"name\":\"f\",\"bytes\":9}"), "file f is listed twice" },
    { M("\"w\":{\"shape\":[2],\"slices\":[]}"), "dtype or shape" },
    { M("\"w\":{\"dtype\":\"fp32\",\"slices\":[]}"), "dtype or shape" },
    { M("\"w\":{\"dtype\":\"fp31\",\"shape\":[2],\"slices\":[]}"), "dtype or shape" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[],\"slices\":[]}"), "dtype or shape" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[0],\"slices\":[]}"), "empty or too large" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[4294967296,4294967296],\"slices\":[]}"),
      "tensor w: its shape is empty or too large" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2,2,2],\"slices\":[]}"), "is expected" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2],\"slices\":[[0,0,2,0,1]]}"), "five numbers" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2],\"slices\":[[0,0,2,0,1" H ",1]]}"),
      "is expected" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2],\"slices\":[[1,0,2,0,1" H "]]}"), "not listed" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2],\"slices\":[[2147483648,0,2,0,1" H "]]}"),
      "out of range" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2],\"slices\":[[0,0,3,0,1" H "]]}"), "outside" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2],\"slices\":[[0,0,2,0,2" H "]]}"), "outside" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2],\"slices\":[[0,1,1,0,1" H "]]}"), "is empty" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2],\"slices\":[[0,-1,2,0,1" H "]]}"), "whole" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2],\"slices\":[[0,0,2,0,1" H "]],\"slices\":[]}"),
      "given twice" },
    { M("\"w\":{\"dtype\":\"fp32\",\"shape\":[2]},\"w\":{\"dtype\":\"fp32\",\"shape\":[2]}"),
      "tensor w: it is given twice" },
    { M("\"\":{\"dtype\":\"fp32\",\"shape\":[2]}"), "not a name" },
    { M("\"w[0:1]\":{\"dtype\":\"fp32\",\"shape\":[2]}"), "not a name" },
};

static void numbers_and_names_from_outside_are_checked(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct manifest manifest = { .n_files = -7 };
        struct err err = { 0 };

        assert_fails(parse(&manifest, bad[i].text, &err), &err, ERR_DATA, bad[i].words);
        assert_non_null(strstr(err.text, "m.json"));
        assert_int_equal(manifest.n_files, -7);
    }
}

/* A manifest whose version and writer are others; what follows is never looked at. */
static void reads_as(const char *version, const char *writer, const char *words)
{
    struct manifest manifest = { 1, 1, "{}", 0, NULL, 0, NULL };
    struct str text = { 0 }, changed = { 0 };
    struct err err = { 0 };

    manifest_print(&manifest, &text);
    const char *rest = strstr(str_text(&text), ",\"xxh3\""), *key = strstr(rest, "\"lmtrain\"");
    const char *end = strchr(key, ',');
    str_printf(&changed, "{\"lmtrain_checkpoint\":%s%.*s", version, (int)(key - rest), rest);
    if (*writer)
        str_printf(&changed, "\"lmtrain\":\"%s\"", writer);
    str_add(&changed, end + !*writer);
    assert_fails(
        manifest_parse(&manifest, "m.json", changed.data, changed.length, &fixture_arena, &err),
        &err, ERR_DATA, words);
    str_release(&text);
    str_release(&changed);
}

static void other_formats_are_named(void **state)
{
    (void)state;
    reads_as("2", "1.4.0",
             "m.json is of checkpoint format 2, written by lmtrain 1.4.0: this lmtrain, ");
    reads_as("2", "1.4.0", "reads formats 1 to 1 (hint: use lmtrain 1.4.0 or newer)");
    reads_as("17", "", "format 17, written by a newer lmtrain: this lmtrain");
    reads_as("17", "", "(hint: use lmtrain of the version that wrote it)");
    reads_as("2", "x\033[2Jy", "written by lmtrain x: this"); /* nothing that moves a cursor */
    reads_as("2", "0123456789012345678901234567890123456789-and-more",
             "written by lmtrain 012345678901234567890123456789012345678: this");
    reads_as("0", "0.0.1", "format 0, which no lmtrain has written: formats 1 to 1 exist");
    reads_as("1", "0.0.1", "m.json is damaged: it says hash"); /* what is read is protected */
    reads_as("", "0.0.1", "m.json is not a checkpoint's manifest");
    reads_as("-1", "0.0.1", "m.json is not a checkpoint's manifest");
    reads_as("99999999999999999999", "0.0.1", "m.json is not a checkpoint's manifest");
}

static void unknown_keys_are_passed_over(void **state)
{
    struct manifest manifest;
    struct err err = { 0 };

    (void)state;
    assert_ok(parse(&manifest,
                    M("\"w\":{\"dtype\":\"fp32\",\"later\":[{}],\"shape\":[2],\"slices\":[]}"),
                    &err),
              &err);
    assert_int_equal(manifest.tensors[0].whole.row_end, 2);
    assert_fails(manifest_check_complete(&manifest, "m.json", &err), &err, ERR_DATA,
                 "tensor w: its 0 slices");
}

/* Whether slices tile by counting: the plain definition. */
static int tiles_by_count(const struct manifest_tensor *tensor)
{
    for (int64_t r = 0; r < tensor->whole.rows; r++)
        for (int64_t c = 0; c < tensor->whole.cols; c++) {
            int n = 0;

            for (int i = 0; i < tensor->n_slices; i++) {
                const struct manifest_slice *s = &tensor->slices[i];

                n += s->row_begin <= r && r < s->row_end && s->col_begin <= c && c < s->col_end;
            }
            if (n != 1)
                return 0;
        }
    return 1;
}

static int compare_slices(const void *a, const void *b)
{
    const struct manifest_slice *left = a, *right = b;

    if (left->row_begin != right->row_begin)
        return left->row_begin < right->row_begin ? -1 : 1;
    return (left->col_begin > right->col_begin) - (left->col_begin < right->col_begin);
}

enum { N_RECTANGLES = 36 };

/* All rectangles of 3 x 3. */
static void list_rectangles(struct manifest_slice *all)
{
    int n = 0;

    for (int r0 = 0; r0 < 3; r0++)
        for (int r1 = r0 + 1; r1 <= 3; r1++)
            for (int c0 = 0; c0 < 3; c0++)
                for (int c1 = c0 + 1; c1 <= 3; c1++)
                    all[n++] = (struct manifest_slice){ 0, r0, r1, c0, c1, 0 };
    assert_int_equal(n, N_RECTANGLES);
}

/* All choices of up to four rectangles of a 3 x 3 tensor: 36^4 and fewer. */
static void completeness_is_what_counting_says(void **state)
{
    struct manifest_slice all[N_RECTANGLES];
    int n_complete = 0;

    (void)state;
    list_rectangles(all);
    for (int n = 0; n <= 4; n++) {
        int n_choices = 1;

        for (int i = 0; i < n; i++)
            n_choices *= N_RECTANGLES;
        for (int choice = 0; choice < n_choices; choice++) {
            struct manifest_slice slices[4];
            struct manifest_tensor tensor = {
                { "w", DTYPE_F32, 2, 3, 3, 0, 3, 0, 3, NULL, 0, NULL }, n, slices
            };
            struct manifest manifest = { .n_tensors = 1, .tensors = &tensor };
            struct err err = { 0 };
            int rest = choice;

            for (int i = 0; i < n; i++, rest /= N_RECTANGLES)
                slices[i] = all[rest % N_RECTANGLES];
            qsort(slices, (size_t)n, sizeof *slices, compare_slices);
            int complete = manifest_check_complete(&manifest, "m", &err) == 0;
            if (complete != tiles_by_count(&tensor))
                fail_msg("choice %d of %d slices", choice, n);
            n_complete += complete;
        }
    }
    assert_true(n_complete > 100);
}

/* A tensor cut again and again into two: a tiling. Then one edge is moved: none. */
static void tilings_of_many_slices(void **state)
{
    enum { N = 300, SIDE = 1 << 20 };
    struct manifest_slice *slices = calloc(N, sizeof *slices);
    struct manifest_tensor tensor = {
        { "w", DTYPE_F32, 2, SIDE, SIDE, 0, SIDE, 0, SIDE, NULL, 0, NULL }, 1, slices
    };
    struct manifest manifest = { .n_tensors = 1, .tensors = &tensor };
    struct err err = { 0 };
    uint32_t random = 12345;

    (void)state;
    slices[0] = (struct manifest_slice){ 0, 0, SIDE, 0, SIDE, 0 };
    while (tensor.n_slices < N) {
        random = random * 1664525u + 1013904223u;
        struct manifest_slice *old = &slices[(random >> 8) % (uint32_t)tensor.n_slices];
        int64_t rows = old->row_end - old->row_begin, cols = old->col_end - old->col_begin;
        struct manifest_slice half = *old;

        if (random >> 31 ? rows >= 3 : cols < 3 && rows >= 3)
            old->row_end = half.row_begin = old->row_begin + rows / 3;
        else if (cols >= 3)
            old->col_end = half.col_begin = old->col_begin + cols / 3;
        else
            continue;
        slices[tensor.n_slices++] = half;
    }
    qsort(slices, N, sizeof *slices, compare_slices);
    assert_ok(manifest_check_complete(&manifest, "m", &err), &err);
    for (int i = 0; i < N; i++) {
        slices[i].row_end -= 1;
        assert_int_equal(manifest_check_complete(&manifest, "m", &err), -1);
        slices[i].row_end += 2;
        assert_int_equal(manifest_check_complete(&manifest, "m", &err), -1);
        slices[i].row_end -= 1;
        slices[i].col_end += 1;
        assert_int_equal(manifest_check_complete(&manifest, "m", &err), -1);
        slices[i].col_end -= 1;
    }
    assert_ok(manifest_check_complete(&manifest, "m", &err), &err);
    free(slices);
}

static void slice_names(void **state)
{
    const struct store_slice flat = { "b", DTYPE_F32, 1, 8, 1, 0, 8, 0, 1, NULL, 0, NULL };
    const struct store_slice wide = { "w", DTYPE_F32, 2, 8, 4, 0, 8, 0, 4, NULL, 0, NULL };
    const struct manifest_slice all = { 0, 0, 8, 0, 1, 0 }, half = { 0, 4, 8, 0, 1, 0 };
    const struct manifest_slice full = { 0, 0, 8, 0, 4, 0 }, part = { 0, 0, 8, 2, 4, 0 };

    (void)state;
    assert_string_equal(manifest_slice_name(&flat, &all, &fixture_arena), "b");
    assert_string_equal(manifest_slice_name(&flat, &half, &fixture_arena), "b[4:8]");
    assert_string_equal(manifest_slice_name(&wide, &full, &fixture_arena), "w");
    assert_string_equal(manifest_slice_name(&wide, &part, &fixture_arena), "w[0:8,2:4]");
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_is_printed_reads_back),
        TEST(numbers_and_names_from_outside_are_checked),
        TEST(other_formats_are_named),
        TEST(unknown_keys_are_passed_over),
        TEST(completeness_is_what_counting_says),
        TEST(tilings_of_many_slices),
        TEST(slice_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
