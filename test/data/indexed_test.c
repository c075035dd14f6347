/*
 * indexed_test.c - all types read, every broken length refused
 */
#include "data_fixture.h"

#include "data/stream/indexed.h"
#include "data/stream/indexed_impl.h"

static const char *folder;

static int set_up(void **state)
{
    (void)state;
    folder = fixture_folder();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fixture_remove(folder);
    return 0;
}

/* The three sequences 2, 0 and 3 long in two documents, with tokens 1..5 of a type. */
struct image {
    unsigned char idx[34 + 3 * 12 + 3 * 8 + 3];
    size_t idx_bytes;
    unsigned char bin[5 * 8];
    size_t bin_bytes;
};

static void put(struct image *image, size_t at, const void *value, size_t n_bytes)
{
    memcpy(image->idx + at, value, n_bytes);
}

static void put_u64(struct image *image, size_t at, uint64_t value)
{
    put(image, at, &value, 8);
}

static struct image make_image(int type, size_t token_bytes)
{
    struct image image = { .idx_bytes = 34 + 3 * 12 + 3 * 8, .bin_bytes = 5 * token_bytes };
    const int32_t lengths[] = { 2, 0, 3 };
    const uint64_t documents[] = { 0, 2, 3 };

    put(&image, 0, "MMIDIDX\0\0", 9);
    put_u64(&image, 9, 1);
    image.idx[17] = (unsigned char)type;
    put_u64(&image, 18, 3);
    put_u64(&image, 26, 3);
    put(&image, 34, lengths, sizeof lengths);
    put_u64(&image, 46, 0);
    put_u64(&image, 54, 2 * token_bytes);
    put_u64(&image, 62, 2 * token_bytes);
    put(&image, 70, documents, sizeof documents);
    for (size_t i = 0; i < 5; i++)
        image.bin[i * token_bytes] = (unsigned char)(i + 1);
    return image;
}

static int open_image(const struct image *image, struct indexed *indexed, struct err *err)
{
    char *prefix = fixture_path(folder, "image"), *idx = fixture_path(folder, "image.idx");
    char *bin = fixture_path(folder, "image.bin");

    assert_int_equal(file_write(idx, image->idx, image->idx_bytes, err), 0);
    assert_int_equal(file_write(bin, image->bin, image->bin_bytes, err), 0);
    int rc = indexed_open(indexed, prefix, err);
    free(prefix);
    free(idx);
    free(bin);
    return rc;
}

static void test_all_types(void **state)
{
    static const struct {
        int type;
        size_t bytes;
    } types[] = { { INDEXED_U8, 1 },  { INDEXED_I8, 1 },  { INDEXED_I16, 2 },
                  { INDEXED_U16, 2 }, { INDEXED_I32, 4 }, { INDEXED_I64, 8 } };
    struct err err = { 0 };
    int32_t out[5];

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct image image = make_image(types[i].type, types[i].bytes);
        struct indexed indexed;

        if (open_image(&image, &indexed, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(indexed.n_tokens, 5);
        assert_int_equal(indexed.n_documents, 2);
        assert_int_equal(indexed.n_sequences, 3);
        assert_int_equal(indexed_document_start(&indexed, 0), 0);
        assert_int_equal(indexed_document_start(&indexed, 1), 2);
        assert_int_equal(indexed_document_start(&indexed, 2), 5);
        assert_int_equal(indexed_read(&indexed, 1, 4, 6, out, &err), 0);
        for (int t = 0; t < 4; t++)
            assert_int_equal(out[t], t + 2);
        assert_int_equal(indexed_read(&indexed, 5, 0, 6, out, &err), 0);
        assert_int_equal(indexed_read(&indexed, 0, 5, 5, out, &err), -1);
        assert_int_equal(err.code, ERR_DATA);
        assert_non_null(strstr(err.text, "image.bin: token 5 at position 4 is not in 0..4"));
        indexed_close(&indexed);
    }
}

static void test_signed_and_wide_tokens(void **state)
{
    static const int types[] = { INDEXED_I8, INDEXED_I16, INDEXED_I32, INDEXED_I64 };
    struct err err = { 0 };
    struct indexed indexed;
    int32_t out[5];

    (void)state;
    for (int i = 0; i < 4; i++) {
        size_t bytes = (size_t)1 << i;
        struct image image = make_image(types[i], bytes);

        memset(image.bin + 3 * bytes, 0xff, bytes);
        assert_int_equal(open_image(&image, &indexed, &err), 0);
        assert_int_equal(indexed_read(&indexed, 0, 5, 100, out, &err), -1);
        assert_non_null(strstr(err.text, "token -1 at position 3"));
        indexed_close(&indexed);
    }
    struct image image = make_image(INDEXED_I64, 8);
    image.bin[4] = 1; /* 2^32 + 1 must not look like 1 */
    assert_int_equal(open_image(&image, &indexed, &err), 0);
    assert_int_equal(indexed_read(&indexed, 0, 1, 100, out, &err), -1);
    assert_non_null(strstr(err.text, "token 4294967297"));
    indexed_close(&indexed);
    image = make_image(INDEXED_U16, 2);
    image.bin[1] = 0xff;
    assert_int_equal(open_image(&image, &indexed, &err), 0);
    assert_int_equal(indexed_read(&indexed, 0, 1, 65536, out, &err), 0);
    assert_int_equal(out[0], 0xff01);
    indexed_close(&indexed);
}

static void expect_refused(const struct image *image, const char *text)
{
    struct indexed indexed = { 0 };
    struct err err = { 0 };

    assert_int_equal(open_image(image, &indexed, &err), -1);
    assert_null(indexed.prefix);
    assert_int_equal(err.code, ERR_DATA);
    if (!strstr(err.text, text))
        fail_msg("'%s' does not say '%s'", err.text, text);
}

static void test_broken_headers(void **state)
{
    const struct image good = make_image(INDEXED_U16, 2);
    struct image image = good;

    (void)state;
    image.idx[3] ^= 1;
    expect_refused(&image, "MMIDIDX");
    for (size_t n = 0; n < good.idx_bytes; n++) {
        image = good;
        image.idx_bytes = n;
        expect_refused(&image, n < 34 ? "MMIDIDX" : "does not match");
    }
    image = good;
    image.idx_bytes += 1;
    expect_refused(&image, "does not match");
    image = good;
    image.idx[9] = 2;
    expect_refused(&image, "version 2");
    for (int type = 0; type < 256; type++) {
        int is_integer = (type >= 1 && type <= 5) || type == 8;

        image = good;
        image.idx[17] = (unsigned char)type;
        if (!is_integer)
            expect_refused(&image, "holds no tokens");
    }
    static const uint64_t counts[] = {
        0, 2, 4, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX / 12 + 1
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        image = good;
        put_u64(&image, 18, counts[i]);
        expect_refused(&image, "does not match");
        image = good;
        put_u64(&image, 26, counts[i]);
        expect_refused(&image, "does not match");
    }
}

static void test_broken_tables(void **state)
{
    const struct image good = make_image(INDEXED_U16, 2);
    struct image image = good;
    int32_t length = -1;

    (void)state;
    put(&image, 38, &length, 4);
    expect_refused(&image, "sequence 1 has length -1");
    image = good;
    put_u64(&image, 62, 6);
    expect_refused(&image, "sequence 2 starts at byte 6");
    image = good;
    put_u64(&image, 46, UINT64_MAX);
    expect_refused(&image, "sequence 0 starts at byte -1");
    image = good;
    length = INT32_MAX;
    put(&image, 42, &length, 4);
    expect_refused(&image, "image.bin has 10 bytes");
    image = good;
    image.bin_bytes = 9;
    expect_refused(&image, "image.bin has 9 bytes, but its .idx requires 10");
    image = good;
    image.bin_bytes = 0;
    expect_refused(&image, "image.bin has 0 bytes");
    image = good;
    put_u64(&image, 70, 1);
    expect_refused(&image, "document 0 starts at sequence 1");
    image = good;
    put_u64(&image, 78, 4);
    expect_refused(&image, "document 1 starts at sequence 4");
    image = good;
    put_u64(&image, 78, UINT64_MAX);
    expect_refused(&image, "document 1 starts at sequence -1");
    image = good;
    put_u64(&image, 86, 2);
    expect_refused(&image, "hold 2 of its 3 sequences");
}

/* An image as a large file that is read by position alone: only ends and places are looked at. */
static int check_places(struct image *image, struct indexed *indexed, struct err *err)
{
    static char prefix[] = "image";

    *indexed = (struct indexed){ .prefix = prefix,
                                 .bin = { image->bin, image->bin_bytes },
                                 .idx = { image->idx, image->idx_bytes } };
    return indexed_check_tokens(indexed, 1, err);
}

static void test_large_files_are_checked_at_their_ends(void **state)
{
    const struct image good = make_image(INDEXED_U16, 2);
    struct image image = good;
    struct indexed indexed;
    struct err err = { 0 };
    int32_t length = 1, out[5];

    (void)state;
    assert_int_equal(check_places(&image, &indexed, &err), 0);
    assert_int_equal(indexed.n_tokens, 5);
    assert_null(indexed.documents);
    assert_int_equal(indexed_read(&indexed, 0, 5, 6, out, &err), 0);
    put_u64(&image, 78, UINT64_MAX); /* documents are not looked at */
    assert_int_equal(check_places(&image, &indexed, &err), 0);
    put_u64(&image, 46, 2);
    assert_int_equal(check_places(&image, &indexed, &err), -1);
    assert_non_null(strstr(err.text, "sequence 0 starts at byte 2"));
    image = good;
    put(&image, 42, &length, 4);
    assert_int_equal(check_places(&image, &indexed, &err), -1);
    assert_non_null(strstr(err.text, "image.bin has 10 bytes, but its .idx requires 6"));
    image = good;
    image.idx_bytes--;
    assert_int_equal(check_places(&image, &indexed, &err), -1);
    assert_non_null(strstr(err.text, "does not match"));
}

static void test_multimodal_modes_are_skipped(void **state)
{
    struct image image = make_image(INDEXED_U16, 2);
    struct indexed indexed;
    struct err err = { 0 };

    (void)state;
    image.idx_bytes += 3;
    assert_int_equal(open_image(&image, &indexed, &err), 0);
    assert_int_equal(indexed.n_tokens, 5);
    indexed_close(&indexed);
}

static void test_missing_files(void **state)
{
    struct indexed indexed = { 0 };
    struct err err = { 0 };
    char *bin = fixture_path(folder, "image.bin"), *prefix = fixture_path(folder, "image");
    struct image image = make_image(INDEXED_U16, 2);

    (void)state;
    assert_int_equal(open_image(&image, &indexed, &err), 0);
    uint64_t fingerprint = indexed_fingerprint(&indexed);
    indexed_close(&indexed);
    image.bin[8] = 77;
    assert_int_equal(open_image(&image, &indexed, &err), 0);
    assert_true(indexed_fingerprint(&indexed) != fingerprint);
    indexed_close(&indexed);
    assert_int_equal(file_remove_tree(bin, &err), 0);
    assert_int_equal(indexed_open(&indexed, prefix, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "image.bin"));
    free(bin);
    free(prefix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_types),
        cmocka_unit_test(test_signed_and_wide_tokens),
        cmocka_unit_test(test_broken_headers),
        cmocka_unit_test(test_broken_tables),
        cmocka_unit_test(test_large_files_are_checked_at_their_ends),
        cmocka_unit_test(test_multimodal_modes_are_skipped),
        cmocka_unit_test(test_missing_files),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
