/*
 * parquet_test.c - small files that pyarrow wrote, row for row; damaged ones; snappy by hand
 */
#include "data_fixture.h"

#include "data/parquet/parquet.h"
#include "data/parquet/parquet_impl.h"

#define GOLDEN "test/data/golden/"

static const char *const names[] = { "flat-snappy", "flat-plain", "flat-delta", "nested-zstd",
                                     "nested-pages" };

#define N_NAMES (int)(sizeof names / sizeof *names)

static void read_golden(const char *name, const char *ending, char **data, size_t *n_bytes)
{
    char path[256];
    struct err err = { 0 };

    snprintf(path, sizeof path, GOLDEN "%s%s", name, ending);
    if (file_read(path, 1 << 20, ERR_DATA, data, n_bytes, &err) < 0)
        fail_msg("%s", err.text);
}

static void test_rows(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        struct str rows = { 0 };
        struct parquet *parquet;
        struct err err = { 0 };
        char *data, *expected;
        size_t n, n_expected;
        int rc;

        read_golden(names[i], ".parquet", &data, &n);
        read_golden(names[i], ".jsonl", &expected, &n_expected);
        if (parquet_open(&parquet, data, n, names[i], &err) < 0)
            fail_msg("%s", err.text);
        while ((rc = parquet_next_row(parquet, &rows, &err)) > 0)
            str_add_char(&rows, '\n');
        if (rc < 0)
            fail_msg("%s", err.text);
        assert_string_equal(str_text(&rows), expected);
        assert_int_equal(parquet_n_rows(parquet), 30);
        parquet_close(parquet);
        str_release(&rows);
        free(data);
        free(expected);
    }
}

static void test_text(void **state)
{
    struct parquet *parquet;
    struct err err = { 0 };
    const char *text;
    char *data;
    size_t n, length;

    (void)state;
    for (int i = 0; i < 3; i++) {
        int n_rows = 0, n_null = 0;

        read_golden(names[i], ".parquet", &data, &n);
        assert_int_equal(parquet_open(&parquet, data, n, names[i], &err), 0);
        assert_int_equal(parquet_select_text(parquet, "text", &err), 0);
        while (parquet_next_text(parquet, &text, &length, &err) > 0) {
            n_null += !text;
            if (n_rows == 14)
                assert_true(text && length == 36 && !memcmp(text, "verse 14 verse 14 ", 18));
            n_rows++;
        }
        assert_int_equal(n_rows, 30);
        assert_int_equal(n_null, 4);
        parquet_close(parquet);
        assert_int_equal(parquet_open(&parquet, data, n, names[i], &err), 0);
        assert_int_equal(parquet_select_text(parquet, "txt", &err), -1);
        assert_non_null(strstr(err.text, "there is no column 'txt' (hint: it has text, word, "));
        assert_int_equal(parquet_select_text(parquet, "whole", &err), -1);
        assert_non_null(strstr(err.text, "column 'whole' is not a column of strings"));
        parquet_close(parquet);
        free(data);
    }
}

/* All rows, of a copy of just its size. 1 if it could be read. */
static int read_all(const char *data, size_t n)
{
    char *copy = malloc(n ? n : 1);
    struct parquet *parquet;
    struct str row = { 0 };
    struct err err = { 0 };
    int rc = -1;

    assert_non_null(copy);
    memcpy(copy, data, n);
    if (parquet_open(&parquet, copy, n, "damaged", &err) == 0) {
        while ((rc = parquet_next_row(parquet, &row, &err)) > 0)
            str_clear(&row);
        parquet_close(parquet);
    }
    if (rc < 0)
        assert_true(err.code == ERR_DATA && *err.text);
    str_release(&row);
    free(copy);
    return rc == 0;
}

static void test_damaged(void **state)
{
    uint32_t random = 1;

    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        char *data;
        size_t n;

        read_golden(names[i], ".parquet", &data, &n);
        for (size_t cut = 0; cut < n; cut += 1 + n / 100)
            assert_false(read_all(data, cut));
        for (int k = 0; k < 400; k++) {
            random = random * 1664525 + 1013904223;
            size_t at = random % n;
            char before = data[at];

            data[at] = (char)(random >> 24);
            read_all(data, n);
            data[at] = before;
        }
        assert_true(read_all(data, n));
        free(data);
    }
}

/* A checksum finds what nothing else could. */
static void test_checksum(void **state)
{
    char *data, *verse;
    size_t n;

    (void)state;
    read_golden("flat-plain", ".parquet", &data, &n);
    verse = memmem(data, n, "verse", 5);
    assert_non_null(verse);
    *verse = 'V';
    assert_false(read_all(data, n));
    free(data);
}

static void test_snappy(void **state)
{
    /* literal "abcd", copy of 8 from 4 back, copy of 3 from 1 back, long literal of 61 */
    unsigned char in[128] = { 76, 3 << 2, 'a', 'b', 'c', 'd', (4 << 2) | 1, 4, (2 << 2) | 2, 1, 0 };
    unsigned char out[128], expected[128] = "abcdabcdabcdddd";
    size_t n = 11;

    (void)state;
    in[n++] = 60 << 2;
    in[n++] = 60;
    for (int i = 0; i < 61; i++)
        in[n++] = expected[15 + i] = (unsigned char)('A' + i % 26);
    assert_int_equal(snappy_decompress(in, n, out, 76), 0);
    assert_memory_equal(out, expected, 76);
    assert_int_equal(snappy_decompress(in, n - 1, out, 76), -1); /* cut */
    assert_int_equal(snappy_decompress(in, n, out, 75), -1);     /* another length */
    in[7] = 5;
    assert_int_equal(snappy_decompress(in, n, out, 76), -1); /* from before the start */
    in[7] = 0;
    assert_int_equal(snappy_decompress(in, n, out, 76), -1); /* from nowhere */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_text),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_checksum),
        cmocka_unit_test(test_snappy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
