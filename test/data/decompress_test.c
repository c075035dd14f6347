/*
 * decompress_test.c - what gzip, xz and zstd made is what it was; damage is said
 */
#include "data/data_fixture.h"

#include <lzma.h>
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

#include "data/rows/decompress.h"
#include "data/rows/rows.h"
#include "support/temporary.h"

#define N_LINES 400000

static char folder[256], *plain;
static size_t n_plain;

static int set_up(void **state)
{
    struct str text = { 0 };

    (void)state;
    for (int i = 0; i < N_LINES; i++)
        str_printf(&text, "{\"text\": \"line %d\"}\n", i);
    plain = text.data;
    n_plain = text.length;
    return temporary_folder(folder, sizeof folder);
}

static int tear_down(void **state)
{
    struct err err;

    (void)state;
    free(plain);
    return file_remove_tree(folder, &err);
}

static const char *put(const char *name, const void *data, size_t n)
{
    static char path[512];
    struct err err;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(file_write(path, data, n, &err), 0);
    return path;
}

enum kind { ZSTD, GZIP, XZ, N_KINDS };
static const char *const names[N_KINDS] = { "a.jsonl.zst", "a.jsonl.gz", "a.jsonl.xz" };

static size_t gzip(unsigned char *data, size_t n_max, const char *at, size_t n)
{
    z_stream z = { .next_in = (Bytef *)(uintptr_t)at,
                   .avail_in = (uInt)n,
                   .next_out = data,
                   .avail_out = (uInt)n_max };

    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return n_max - z.avail_out;
}

/* Of n bytes from at on, behind what is in out already. */
static void pack(struct str *out, enum kind kind, const char *at, size_t n)
{
    unsigned char *data = malloc(n + 4096);
    size_t length = 0;

    assert_non_null(data);
    if (kind == GZIP)
        length = gzip(data, n + 4096, at, n);
    else if (kind == ZSTD)
        length = ZSTD_compress(data, n + 4096, at, n, 1);
    else
        assert_int_equal(lzma_easy_buffer_encode(0, LZMA_CHECK_CRC64, NULL, (const uint8_t *)at, n,
                                                 data, &length, n + 4096),
                         LZMA_OK);
    assert_false(ZSTD_isError(length));
    str_add_bytes(out, (const char *)data, length);
    free(data);
}

static void there_and_back(void **state)
{
    (void)state;
    for (enum kind kind = 0; kind < N_KINDS; kind++) {
        struct str packed = { 0 };
        struct file_map map;
        struct rows *rows;
        struct row row;
        struct err err;
        int64_t n = 0;

        /* In two parts, one behind the other. */
        pack(&packed, kind, plain, 1000003);
        pack(&packed, kind, plain + 1000003, n_plain - 1000003);
        const char *path = put(names[kind], str_text(&packed), packed.length);
        if (decompress_map(&map, path, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(map.n_bytes, n_plain);
        assert_memory_equal(map.data, plain, n_plain);
        file_map_close(&map);
        assert_int_equal(rows_format_of(path), ROWS_JSONL);
        assert_int_equal(rows_open(&rows, path, ROWS_AUTO, NULL, &err), 0);
        while (rows_next(rows, &row, &err) == 1)
            assert_int_equal(row.number, ++n);
        rows_close(rows);
        assert_int_equal(n, N_LINES);
        /* Cut anywhere, or with a byte turned. */
        for (size_t i = 1; i < 12; i++) {
            path = put("bad", str_text(&packed), packed.length * i / 12);
            assert_int_equal(decompress_map(&map, path, &err), -1);
            assert_int_equal(err.code, ERR_DATA);
        }
        packed.data[packed.length / 2] ^= 0x10;
        path = put("bad", str_text(&packed), packed.length);
        if (decompress_map(&map, path, &err) == 0) { /* zstd without a checksum cannot tell */
            assert_int_equal(kind, ZSTD);
            file_map_close(&map);
        }
        str_release(&packed);
    }
}

/* xz --lzma2=dict=1GiB of one byte. */
static const unsigned char large[] = {
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21,
    0x01, 0x24, 0x00, 0x00, 0x00, 0x5e, 0x1f, 0xc7, 0xf9, 0x01, 0x00, 0x00, 0x61, 0x00, 0x00,
    0x00, 0x00, 0x05, 0x2b, 0x65, 0x2e, 0x77, 0x84, 0x02, 0x33, 0x00, 0x01, 0x19, 0x01, 0xa5,
    0x2c, 0x81, 0xcc, 0x1f, 0xb6, 0xf3, 0x7d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a,
};

static void what_is_not_packed_is_as_it_is(void **state)
{
    struct file_map map;
    struct err err;

    (void)state;
    assert_int_equal(decompress_map(&map, put("x.gz", "{}", 2), &err), 0);
    assert_int_equal(map.n_bytes, 2);
    assert_memory_equal(map.data, "{}", 2);
    file_map_close(&map);
    assert_int_equal(decompress_map(&map, put("empty.gz", "", 0), &err), 0);
    assert_int_equal(map.n_bytes, 0);
    file_map_close(&map);
    assert_int_equal(decompress_map(&map, put("short.gz", "\x1f\x8b", 2), &err), -1);
    assert_non_null(strstr(err.text, "cut off"));
    assert_int_equal(decompress_map(&map,
                                    put("short.xz",
                                        "\xfd"
                                        "7zXZ\0",
                                        6),
                                    &err),
                     -1);
    assert_non_null(strstr(err.text, "cut off"));
    /* With a dictionary of 1 GiB. */
    assert_int_equal(decompress_map(&map, put("large.xz", large, sizeof large), &err), -1);
    assert_non_null(strstr(err.text, "takes more than 536 MB of memory"));
    assert_int_equal(rows_format_of("a.json.gz"), ROWS_JSON);
    assert_int_equal(rows_format_of("a.json.xz"), ROWS_JSON);
    assert_int_equal(rows_format_of(".gz"), ROWS_AUTO);
    assert_int_equal(rows_format_of("a.gz"), ROWS_AUTO);
}

/* Many members of a megabyte in a few hundred kilobytes: it stops soon, and says why. */
static void what_unpacks_to_too_much_is_refused(void **state)
{
    char *megabyte = calloc(1, 1 << 20);

    (void)state;
    assert_non_null(megabyte);
    for (enum kind kind = 0; kind < N_KINDS; kind++) {
        struct str one = { 0 }, many = { 0 }, says = { 0 };
        struct file_map map;
        struct err err;

        pack(&one, kind, megabyte, 1 << 20);
        for (int i = 0; i < 400; i++)
            str_add_bytes(&many, str_text(&one), one.length);
        long long max =
            (DECOMPRESS_BYTES_MIN + DECOMPRESS_RATIO_MAX * (long long)many.length) / 1000000;
        assert_true(max < 300);
        assert_int_equal(decompress_map(&map, put("bomb", str_text(&many), many.length), &err), -1);
        assert_int_equal(err.code, ERR_DATA);
        str_printf(&says, "it decompresses to more than %lld MB, from %zu bytes", max, many.length);
        if (!strstr(err.text, str_text(&says)))
            fail_msg("'%s' does not say '%s'", err.text, str_text(&says));
        /* A small one is none, although it ends with a full piece. */
        if (decompress_map(&map, put("small", str_text(&one), one.length), &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(map.n_bytes, 1 << 20);
        file_map_close(&map);
        str_release(&one);
        str_release(&many);
        str_release(&says);
    }
    free(megabyte);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(what_unpacks_to_too_much_is_refused),
        cmocka_unit_test(what_is_not_packed_is_as_it_is),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
