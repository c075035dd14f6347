/*
 * indexed_writer_test.c - byte for byte what megatron-core's builder writes, and whole or not at
 * all
 */
#include "data_fixture.h"

#include <sys/stat.h>
#include <unistd.h>

#include "data/stream/indexed.h"

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

static void expect_file(const char *name, const void *bytes, size_t n_bytes)
{
    char *path = fixture_path(folder, name), *data;
    struct err err = { 0 };
    size_t n;

    assert_int_equal(file_read(path, 1 << 20, ERR_DATA, &data, &n, &err), 0);
    assert_int_equal(n, n_bytes);
    assert_int_equal(memcmp(data, bytes, n_bytes), 0);
    free(data);
    free(path);
}

/* Of documents [1, 2, 300], [] and [7]; that megatron-core agrees is test/oracle/indexed.py's to
 * show. */
static const unsigned char idx_golden[] = {
    'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0,          /* magic */
    1,   0,   0,   0,   0,   0,   0,   0,             /* version */
    8,                                                /* u16 */
    3,   0,   0,   0,   0,   0,   0,   0,             /* sequences */
    4,   0,   0,   0,   0,   0,   0,   0,             /* document indices */
    3,   0,   0,   0,   0,   0,   0,   0, 1, 0, 0, 0, /* lengths */
    0,   0,   0,   0,   0,   0,   0,   0,             /* offsets */
    6,   0,   0,   0,   0,   0,   0,   0, 6, 0, 0, 0,
    0,   0,   0,   0,   0,   0,   0,   0, 0, 0, 0, 0, /* documents */
    1,   0,   0,   0,   0,   0,   0,   0, 2, 0, 0, 0,
    0,   0,   0,   0,   3,   0,   0,   0, 0, 0, 0, 0,
};

static void write_three(const char *prefix, int vocab_size)
{
    const int32_t one[] = { 1, 2, 300 }, three[] = { 7 };
    struct indexed_writer writer;
    struct err err = { 0 };

    assert_int_equal(indexed_writer_open(&writer, prefix, vocab_size, &err), 0);
    assert_int_equal(indexed_writer_add(&writer, one, 3, &err), 0);
    assert_int_equal(indexed_writer_add(&writer, NULL, 0, &err), 0);
    assert_int_equal(indexed_writer_add(&writer, three, 1, &err), 0);
    assert_int_equal(writer.n_tokens, 4);
    assert_int_equal(indexed_writer_finish(&writer, &err), 0);
}

static void test_bytes(void **state)
{
    static const unsigned char u16[] = { 1, 0, 2, 0, 44, 1, 7, 0 };
    static const int32_t i32[] = { 1, 2, 300, 7 };
    char *prefix = fixture_path(folder, "new/folder/x");
    char *partial = fixture_path(folder, "new/folder/x.bin.partial");
    unsigned char idx[sizeof idx_golden];

    (void)state;
    write_three(prefix, 65499);
    expect_file("new/folder/x.bin", u16, sizeof u16);
    expect_file("new/folder/x.idx", idx_golden, sizeof idx_golden);
    write_three(prefix, 65500);
    memcpy(idx, idx_golden, sizeof idx);
    idx[17] = 4;
    idx[54] = idx[62] = 12;
    expect_file("new/folder/x.bin", i32, sizeof i32);
    expect_file("new/folder/x.idx", idx, sizeof idx);
    assert_false(file_exists(partial));
    free(partial);
    free(prefix);
}

static void test_long_documents_come_back(void **state)
{
    char *prefix = fixture_counting(folder, "long", 0, 50000, 9999, 65000);
    static int32_t out[50000];
    struct indexed indexed;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(indexed_open(&indexed, prefix, &err), 0);
    assert_int_equal(indexed.n_tokens, 50000);
    assert_int_equal(indexed.n_documents, 6);
    assert_int_equal(indexed_document_start(&indexed, 5), 49995);
    assert_int_equal(indexed_read(&indexed, 0, 50000, 50000, out, &err), 0);
    for (int i = 0; i < 50000; i++)
        assert_int_equal(out[i], i);
    indexed_close(&indexed);
    free(prefix);
}

static void test_no_documents(void **state)
{
    char *prefix = fixture_counting(folder, "empty", 0, 0, 1, 100);
    struct indexed indexed;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(indexed_open(&indexed, prefix, &err), 0);
    assert_int_equal(indexed.n_tokens, 0);
    assert_int_equal(indexed.n_documents, 0);
    indexed_close(&indexed);
    free(prefix);
}

static void test_abandon_leaves_the_old(void **state)
{
    char *prefix = fixture_counting(folder, "old", 5, 10, 5, 100);
    char *partial = fixture_path(folder, "old.bin.partial");
    struct indexed_writer writer;
    struct indexed indexed;
    struct err err = { 0 };
    int32_t token = 1;

    (void)state;
    assert_int_equal(indexed_writer_open(&writer, prefix, 100, &err), 0);
    assert_int_equal(indexed_writer_add(&writer, &token, 1, &err), 0);
    assert_true(file_exists(partial));
    indexed_writer_abandon(&writer);
    indexed_writer_abandon(&writer);
    assert_false(file_exists(partial));
    assert_int_equal(indexed_open(&indexed, prefix, &err), 0);
    assert_int_equal(indexed.n_tokens, 10);
    indexed_close(&indexed);
    free(partial);
    free(prefix);
}

static void test_unwritable(void **state)
{
    struct indexed_writer writer;
    struct err err = { 0 };
    char *link_path = fixture_path(folder, "blocked.bin.partial");
    char *prefix = fixture_path(folder, "blocked");

    (void)state;
    assert_int_equal(indexed_writer_open(&writer, "/dev/null/x", 100, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.text, "/dev/null"));
    /* A folder where the file should be. */
    assert_int_equal(mkdir(link_path, 0700), 0);
    assert_int_equal(indexed_writer_open(&writer, prefix, 100, &err), -1);
    assert_non_null(strstr(err.text, "blocked.bin.partial"));
    assert_null(writer.file);
    free(link_path);
    free(prefix);
}

static void test_too_long_a_document(void **state)
{
    char *prefix = fixture_path(folder, "toolong");
    struct indexed_writer writer;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(indexed_writer_open(&writer, prefix, 100, &err), 0);
    assert_int_equal(indexed_writer_add(&writer, NULL, (int64_t)INT32_MAX + 1, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    indexed_writer_abandon(&writer);
    free(prefix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),        cmocka_unit_test(test_long_documents_come_back),
        cmocka_unit_test(test_no_documents), cmocka_unit_test(test_abandon_leaves_the_old),
        cmocka_unit_test(test_unwritable),   cmocka_unit_test(test_too_long_a_document),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
