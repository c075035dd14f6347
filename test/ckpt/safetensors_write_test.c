/*
 * safetensors_write_test.c - the bytes of the Python library; small and large pieces; failures
 */
#include "ckpt_fixture.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "ckpt/safetensors.h"

static struct safetensors_tensor tensor(const char *name, enum safetensors_type type, int64_t n)
{
    return (struct safetensors_tensor){ .name = name, .type = type, .n_dims = 1, .shape = { n } };
}

static void order_and_offsets(void **state)
{
    struct safetensors_tensor tensors[] = {
        tensor("b", SAFETENSORS_BF16, 3), tensor("z", SAFETENSORS_F32, 1),
        tensor("a", SAFETENSORS_I64, 2),  tensor("a2", SAFETENSORS_F32, 0),
        tensor("c", SAFETENSORS_U8, 5),   tensor("d", SAFETENSORS_F16, 1),
    };
    static const char *const names[] = { "a", "a2", "z", "b", "d", "c" };
    static const uint64_t ends[] = { 16, 16, 20, 26, 28, 33 };

    (void)state;
    safetensors_place(tensors, 6);
    for (int i = 0; i < 6; i++) {
        assert_string_equal(tensors[i].name, names[i]);
        assert_int_equal(tensors[i].end, ends[i]);
        assert_int_equal(tensors[i].begin, i ? ends[i - 1] : 0);
    }
}

/* As safetensors.numpy.save wrote it: test/oracle/safetensors.py compares many more. */
static void bytes_are_those_of_the_python_library(void **state)
{
    static const char wanted[] =
        "\x80\0\0\0\0\0\0\0"
        "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"U8\",\"shape\":[2,3],"
        "\"data_offsets\":[0,6]},\"\xc3\xa9\\\"\\\\\\n\\u0001\":{\"dtype\":\"U8\",\"shape\":[],"
        "\"data_offsets\":[6,7]}}";
    struct safetensors_tensor tensors[] = {
        { .name = "\xc3\xa9\"\\\n\x01", .type = SAFETENSORS_U8 },
        { .name = "w", .type = SAFETENSORS_U8, .n_dims = 2, .shape = { 2, 3 } },
    };
    static const struct safetensors_meta meta = { "format", "pt" };
    const char *path = fixture_path(*state, "m.safetensors");
    struct safetensors_writer *writer;
    struct err err = { 0 };
    uint64_t n_bytes, hash;
    char *text;
    size_t n;

    safetensors_place(tensors, 2);
    assert_ok(safetensors_create(&writer, path, tensors, 2, &meta, 1, &err), &err);
    assert_ok(safetensors_write(writer, "abcdefg", 7, &err), &err);
    assert_ok(safetensors_finish(writer, &n_bytes, &hash, &err), &err);
    assert_ok(file_read(path, 1000, ERR_DATA, &text, &n, &err), &err);
    assert_int_equal(n, n_bytes);
    assert_true(XXH3_64bits(text, n) == hash);
    size_t header = sizeof wanted - 1 - 8, padded = (header + 7) / 8 * 8;
    assert_int_equal((unsigned char)text[0], padded);
    assert_memory_equal(text + 1, "\0\0\0\0\0\0\0", 7);
    assert_memory_equal(text + 8, wanted + 8, header);
    for (size_t i = header; i < padded; i++)
        assert_int_equal(text[8 + i], ' ');
    assert_string_equal(text + 8 + padded, "abcdefg");
    free(text);
}

/* Pieces of all sizes around the buffer's 4 MiB give one content. */
static void pieces_of_any_size(void **state)
{
    static const size_t pieces[] = { 1, 7, 4096, 4194303, 4194304, 4194305, 9000000 };
    enum { N = 9500000 };
    const char *path = fixture_path(*state, "m.safetensors");
    unsigned char *data = malloc(N), *back = malloc(N);
    struct safetensors_tensor one = tensor("w", SAFETENSORS_U8, N);
    struct err err = { 0 };

    for (int i = 0; i < N; i++)
        data[i] = (unsigned char)((uint32_t)i * 2654435761u >> 24);
    safetensors_place(&one, 1);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct safetensors_writer *writer;
        struct safetensors *file;
        uint64_t n_bytes, hash;
        size_t step = pieces[i] < 4096 ? pieces[i] * 1000 + 1 : pieces[i];

        assert_ok(safetensors_create(&writer, path, &one, 1, NULL, 0, &err), &err);
        for (size_t at = 0; at < N; at += step)
            assert_ok(safetensors_write(writer, data + at, N - at < step ? N - at : step, &err),
                      &err);
        assert_ok(safetensors_finish(writer, &n_bytes, &hash, &err), &err);
        assert_int_equal(file_size(path), n_bytes);
        assert_ok(safetensors_open(&file, path, &err), &err);
        assert_int_equal(file->index.n_meta, 0);
        assert_ok(safetensors_read(file, file->index.tensors, 0, back, N, &err), &err);
        assert_memory_equal(back, data, N);
        assert_ok(safetensors_read(file, file->index.tensors, N - 3, back, 3, &err), &err);
        assert_memory_equal(back, data + N - 3, 3);
        safetensors_close(file);
    }
    free(data);
    free(back);
}

static void failures_are_told(void **state)
{
    struct safetensors_tensor one = tensor("w", SAFETENSORS_U8, 10000);
    const char *path = fixture_path(*state, "m.safetensors");
    static const char data[10000];
    struct safetensors_writer *writer;
    struct rlimit before, small;
    struct err err = { 0 };
    uint64_t n_bytes, hash;

    safetensors_place(&one, 1);
    assert_fails(
        safetensors_create(&writer, fixture_path(*state, "none/m"), &one, 1, NULL, 0, &err), &err,
        ERR_FAILED, "No such file");
    assert_fails(safetensors_create(&writer, *state, &one, 1, NULL, 0, &err), &err, ERR_FAILED,
                 "cannot replace");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){ .rlim_cur = 5000, .rlim_max = before.rlim_max };
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_ok(safetensors_create(&writer, path, &one, 1, NULL, 0, &err), &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int failed = safetensors_write(writer, data, 10000, &err) < 0 ||
                 safetensors_finish(writer, &n_bytes, &hash, &err) < 0;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(failed);
    assert_int_equal(err.code, ERR_FAILED);
    if (!strstr(err.text,
                "m.safetensors: cannot write the last 5.0 KiB of 9.8 KiB: File too large"))
        fail_msg("it said: %s", err.text);
    safetensors_abandon(NULL);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(order_and_offsets),
        TEST(bytes_are_those_of_the_python_library),
        TEST(pieces_of_any_size),
        TEST(failures_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
