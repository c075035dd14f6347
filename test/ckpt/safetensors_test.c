/*
 * safetensors_test.c - headers that lie are refused; what is written reads back
 */
#include "ckpt_fixture.h"

#include <sys/stat.h>

#include "ckpt/safetensors.h"

/* Parse a header that describes n_data bytes. */
static int parse(struct safetensors_index *index, const char *header, uint64_t n_data,
                 struct err *err)
{
    return safetensors_parse(index, "m.safetensors", header, strlen(header), n_data, &fixture_arena,
                             err);
}

static void a_header_is_read(void **state)
{
    static const char header[] =
        " {\"__metadata__\":{\"format\":\"pt\",\"a\":\"\"},"
        "\"w\\u00e9\\ud83d\\ude00\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
        "\"a\":{\"data_offsets\":[0,8],\"dtype\":\"F64\",\"shape\":[],"
        "\"later\":{\"x\":[1,-2.5e3,null,{}]}},"
        "\"z\":{\"dtype\":\"F8_E4M3\",\"shape\":[0,9],\"data_offsets\":[20,20]}}   ";
    struct safetensors_index index;
    struct err err = { 0 };

    (void)state;
    assert_ok(parse(&index, header, 20, &err), &err);
    assert_int_equal(index.n_tensors, 3);
    assert_string_equal(index.tensors[0].name, "a");
    assert_int_equal(index.tensors[0].n_dims, 0);
    assert_int_equal(safetensors_type_dtype(index.tensors[0].type), DTYPE_F64);
    const struct safetensors_tensor *w = safetensors_find(&index, "w\xc3\xa9\xf0\x9f\x98\x80");
    assert_non_null(w);
    assert_int_equal(w->type, SAFETENSORS_BF16);
    assert_int_equal(w->n_dims, 2);
    assert_int_equal(w->shape[1], 3);
    assert_int_equal(w->begin, 8);
    assert_int_equal(safetensors_find(&index, "z")->shape[1], 9);
    assert_null(safetensors_find(&index, "b"));
    assert_int_equal(index.n_meta, 2);
    assert_string_equal(index.meta[1].key, "format");
    assert_string_equal(index.meta[1].value, "pt");
    assert_ok(parse(&index, "{}", 0, &err), &err);
    assert_int_equal(index.n_tensors, 0);
    assert_null(safetensors_find(&index, "a"));
}

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

#define BRACKETS_8 "[[[[[[[["
#define BRACKETS_64 \
    BRACKETS_8 BRACKETS_8 BRACKETS_8 BRACKETS_8 BRACKETS_8 BRACKETS_8 BRACKETS_8 BRACKETS_8

/* Each with the words that its message must have; the file has 8 bytes of data. */
static const struct {
    const char *header, *words;
} bad_headers[] = {
    { "", "an object is expected" },
    { "[]", "an object is expected" },
    { "{", "a string is expected" },
    { "{" T("a", "F32", "[2]", "[0,8]"), "'}' is expected" },
    { "{" T("a", "F32", "[2]", "[0,8]") ",}", "header byte 54: a string is expected" },
    { "{" T("a", "F32", "[2]", "[0,8]") "} x", "unexpected characters after" },
    { "{" T("a", "F33", "[2]", "[0,8]") "}", "tensor a: unknown dtype" },
    { "{" T("a", "f32", "[2]", "[0,8]") "}", "tensor a: unknown dtype" },
    { "{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", "tensor a: dtype, shape" },
    { "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", "tensor a: dtype, shape" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "data_offsets is missing" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,8]}}", "twice" },
    { "{\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", "a string is expected" },
    { "{\"a\":7}", "tensor a: an object is expected" },
    { "{" T("a", "F32", "2", "[0,8]") "}", "tensor a: an array is expected" },
    { "{" T("a", "F32", "[-2]", "[0,8]") "}", "a whole number is expected" },
    { "{" T("a", "F32", "[2.0]", "[0,8]") "}", "a whole number is expected" },
    { "{" T("a", "F32", "[2e0]", "[0,8]") "}", "a whole number is expected" },
    { "{" T("a", "F32", "[02]", "[0,8]") "}", "out of range" },
    { "{" T("a", "F32", "[9223372036854775808]", "[0,8]") "}", "out of range" },
    { "{" T("a", "F32", "[99999999999999999999999]", "[0,8]") "}", "out of range" },
    { "{" T("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", "more than 8 dims" },
    { "{" T("a", "F32", "[2]", "[0]") "}", "must be two numbers" },
    { "{" T("a", "F32", "[2]", "[0,8,9]") "}", "must be two numbers" },
    { "{" T("a", "F32", "[2]", "[]") "}", "must be two numbers" },
    { "{" T("a", "F32", "[4611686018427387904,4]", "[0,8]") "}",
      "tensor a: its shape is too large" },
    { "{" T("a", "F32", "[4611686018427387904,4,0]", "[0,0]") "}", "its shape is too large" },
    { "{" T("a", "F32", "[3]", "[0,8]") "}", "tensor a: data_offsets do not fit" },
    { "{" T("a", "F32", "[2]", "[8,0]") "}", "tensor a: data_offsets do not fit" },
    { "{" T("a", "F32", "[4]", "[0,16]") "}", "tensor a: its data are beyond" },
    { "{" T("a", "F32", "[1]", "[0,4]") "}", "4 bytes follow the last tensor" },
    { "{}", "8 bytes follow the last tensor" },
    { "{" T("a", "F32", "[1]", "[4,8]") "}", "tensor a: there is a gap" },
    { "{" T("a", "F16", "[1]", "[0,2]") "," T("b", "F32", "[1]", "[4,8]") "}",
      "tensor b: there is a gap" },
    { "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}",
      "b: its data overlap" },
    { "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[0,8]") "}", "its data overlap" },
    { "{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}",
      "tensor a: it is given" },
    { "{" T("a", "F32", "[1]", "[0,4]") "," T("\\u0061", "F32", "[1]", "[4,8]") "}",
      "given twice" },
    { "{" T("a\xff", "F32", "[2]", "[0,8]") "}", "broken UTF-8" },
    { "{" T("a\xc0\x80", "F32", "[2]", "[0,8]") "}", "broken UTF-8" },
    { "{" T("a\\ud800", "F32", "[2]", "[0,8]") "}", "an unpaired surrogate" },
    { "{" T("a\\udc00", "F32", "[2]", "[0,8]") "}", "an unpaired surrogate" },
    { "{" T("a\\u0000", "F32", "[2]", "[0,8]") "}", "\\u0000 in a string" },
    { "{" T("a\\x", "F32", "[2]", "[0,8]") "}", "unknown escape" },
    { "{" T("a\n", "F32", "[2]", "[0,8]") "}", "control character" },
    { "{\"__metadata__\":{\"a\":1}," T("a", "F32", "[2]", "[0,8]") "}", "a string is expected" },
    { "{\"__metadata__\":{\"a\":{}}," T("a", "F32", "[2]", "[0,8]") "}", "a string is expected" },
    { "{\"__metadata__\":null," T("a", "F32", "[2]", "[0,8]") "}", "an object is expected" },
    { "{\"__metadata__\":{},\"__metadata__\":{}," T("a", "F32", "[2]", "[0,8]") "}", "twice" },
    { "{\"__metadata__\":{\"k\":\"\",\"k\":\"\"}," T("a", "F32", "[2]", "[0,8]") "}",
      "k is given twice" },
    { "{\"a\":{\"x\":" BRACKETS_64 BRACKETS_64 BRACKETS_64 BRACKETS_64 "[", "nested too deep" },
    { "{\"a\":{\"x\":tru}}", "a value is expected" },
    { "{\"a\":{\"x\":1.}}", "an invalid number" },
    { "{\"a\":{\"x\":01}}", "an invalid number" },
    { "{\"a\":{\"x\":[1 2]}}", "',' or ']' is expected" },
    { "{\"a\":{\"x\":{\"k\" 2}}}", "':' is expected" },
    { "{\"a", "does not end" },
};

static void bad_headers_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_headers / sizeof *bad_headers; i++) {
        struct safetensors_index index = { .n_tensors = -7 };
        struct err err = { 0 };

        assert_fails(parse(&index, bad_headers[i].header, 8, &err), &err, ERR_DATA,
                     bad_headers[i].words);
        assert_non_null(strstr(err.text, "m.safetensors"));
        assert_int_equal(index.n_tensors, -7);
    }
}

/* Every prefix of a good header is refused, whatever the length of the data. */
static void every_cut_header_is_refused(void **state)
{
    static const char header[] = "{\"__metadata__\":{\"f\":\"\\u0041\"}," T(
        "a", "F32", "[2]", "[0,8]") "," T("b", "I8", "[]", "[8,9]") "}";

    (void)state;
    for (size_t n = 0; n < sizeof header; n++)
        for (uint64_t n_data = 0; n_data < 12; n_data++) {
            struct safetensors_index index;
            struct err err = { 0 };
            int good = n == sizeof header - 1 && n_data == 9;

            assert_int_equal(
                safetensors_parse(&index, "m", header, n, n_data, &fixture_arena, &err),
                good ? 0 : -1);
        }
}

/* A file: length, header, data. */
static const char *make_file(const char *folder, uint64_t length, const char *header,
                             const void *data, size_t n_data)
{
    const char *path = fixture_path(folder, "m.safetensors");
    struct str text = { 0 };

    for (int i = 0; i < 8; i++)
        str_add_char(&text, (char)(length >> (8 * i) & 0xff));
    str_add(&text, header);
    str_add_bytes(&text, data, n_data);
    fixture_write(path, text.data, text.length);
    str_release(&text);
    return path;
}

static void bad_files_are_refused(void **state)
{
    static const char header[] = "{" T("a", "F32", "[2]", "[0,8]") "}";
    struct safetensors *file = NULL;
    struct err err = { 0 };
    const char *path = make_file(*state, sizeof header - 1, header, "12345678", 8);

    assert_ok(safetensors_open(&file, path, &err), &err);
    safetensors_close(file);
    file = NULL;
    make_file(*state, sizeof header - 1, header, "1234567", 7);
    assert_fails(safetensors_open(&file, path, &err), &err, ERR_DATA, "beyond the end of the file");
    make_file(*state, sizeof header - 1, header, "123456789", 9);
    assert_fails(safetensors_open(&file, path, &err), &err, ERR_DATA, "follow the last tensor");
    make_file(*state, 1000, header, "12345678", 8);
    assert_fails(safetensors_open(&file, path, &err), &err, ERR_DATA, "header of 1000 bytes");
    make_file(*state, UINT64_MAX, header, "12345678", 8);
    assert_fails(safetensors_open(&file, path, &err), &err, ERR_DATA, "18446744073709551615");
    make_file(*state, 100000001, header, "12345678", 8);
    assert_int_equal(truncate(path, 200000000), 0);
    assert_fails(safetensors_open(&file, path, &err), &err, ERR_DATA, "at most 100000000");
    fixture_write(path, "1234567", 7);
    assert_fails(safetensors_open(&file, path, &err), &err, ERR_DATA, "too few");
    fixture_write(path, "", 0);
    assert_fails(safetensors_open(&file, path, &err), &err, ERR_DATA, "too few");
    assert_fails(safetensors_open(&file, *state, &err), &err, ERR_DATA, "not a regular file");
    assert_fails(safetensors_open(&file, fixture_path(*state, "none"), &err), &err, ERR_DATA,
                 "No such file");
    const char *pipe = fixture_path(*state, "pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_fails(safetensors_open(&file, pipe, &err), &err, ERR_DATA, "not a regular file");
    assert_null(file);
}

/* The golden files that the Python library wrote. */
static void files_of_the_python_library_are_read(void **state)
{
    struct safetensors *file;
    struct err err = { 0 };

    (void)state;
    assert_ok(safetensors_open(&file, "test/golden/llama.safetensors", &err), &err);
    assert_true(file->index.n_tensors > 0);
    for (int i = 0; i < file->index.n_tensors; i++) {
        const struct safetensors_tensor *tensor = &file->index.tensors[i];
        size_t n_bytes = (size_t)(tensor->end - tensor->begin);
        char *data = malloc(n_bytes + 1);

        assert_ok(safetensors_read(file, tensor, 0, data, n_bytes, &err), &err);
        free(data);
    }
    safetensors_close(file);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_header_is_read),
        TEST(bad_headers_are_refused),
        TEST(every_cut_header_is_refused),
        TEST(bad_files_are_refused),
        TEST(files_of_the_python_library_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
