/*
 * parquet_codec.c - snappy by hand, gzip by zlib, zstd by libzstd
 */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "data/parquet/parquet_impl.h"

enum { CODEC_NONE, CODEC_SNAPPY, CODEC_GZIP, CODEC_LZO, CODEC_BROTLI, CODEC_LZ4, CODEC_ZSTD };

int parquet_codec_known(int codec, const char **name)
{
    static const char *const names[] = { "none",   "snappy", "gzip", "lzo",
                                         "brotli", "lz4",    "zstd", "lz4_raw" };

    *name = codec >= 0 && codec < (int)(sizeof names / sizeof *names) ? names[codec] : "unknown";
    return codec == CODEC_NONE || codec == CODEC_SNAPPY || codec == CODEC_GZIP ||
           codec == CODEC_ZSTD;
}

/* ---- snappy: github.com/google/snappy/blob/main/format_description.txt ---- */

static uint32_t load_le(const unsigned char *p, int n)
{
    uint32_t value = 0;

    for (int i = 0; i < n; i++)
        value |= (uint32_t)p[i] << (8 * i);
    return value;
}

/* The length that stands in front; NULL if there is none. */
static const unsigned char *snappy_length(const unsigned char *in, const unsigned char *end,
                                          uint32_t *length)
{
    *length = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (in == end)
            return NULL;
        unsigned byte = *in++;
        if (shift == 28 && byte > 15)
            return NULL;
        *length |= (uint32_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return in;
    }
    return NULL;
}

/* With so many bytes of input left, and so much room in the output, words are moved without a look
 * at where an element ends. */
#define FAST_IN 8
#define FAST_OUT 80

/* Bytes from `offset` back, which may overlap what is written: then they repeat. */
static void copy_back(unsigned char *out, size_t offset, size_t n)
{
    const unsigned char *from = out - offset;

    if (offset >= n) {
        memcpy(out, from, n);
        return;
    }
    while (n > 0) { /* what is there doubles with every round */
        size_t part = offset < n ? offset : n;

        memcpy(out, from, part);
        out += part;
        n -= part;
        offset += part;
    }
}

/* The same of at most 64 bytes, with FAST_OUT of room: whole words, some of them too many. */
static void copy_back_fast(unsigned char *out, size_t offset, size_t n)
{
    const unsigned char *from = out - offset;

    if (offset >= 16) {
        for (size_t at = 0; at < n; at += 16)
            memcpy(out + at, from + at, 16);
    } else if (offset >= 8) {
        for (size_t at = 0; at < n; at += 8)
            memcpy(out + at, from + at, 8);
    } else {
        for (size_t at = 0; at < n; at++)
            out[at] = from[at];
    }
}

/* A literal of n bytes. */
static int take_literal(const unsigned char **in, const unsigned char *end, unsigned char **at,
                        unsigned char *out_end, size_t n)
{
    if (n > (size_t)(end - *in) || n > (size_t)(out_end - *at))
        return -1;
    if (n <= 16 && end - *in >= 16 && out_end - *at >= 16)
        memcpy(*at, *in, 16); /* most are short: a fixed size costs no call */
    else
        memcpy(*at, *in, n);
    *in += n;
    *at += n;
    return 0;
}

/* Length and offset of the copy whose tag was taken; -1 if its bytes end. */
static int read_copy(const unsigned char **in, const unsigned char *end, unsigned tag, size_t *n,
                     size_t *offset)
{
    static const uint32_t masks[] = { 0, 0xff, 0xffff, 0xffffffff };
    unsigned kind = tag & 3;
    int n_extra = kind == 3 ? 4 : (int)kind;
    uint32_t word;

    if (end - *in >= FAST_IN) {
        memcpy(&word, *in, 4);
        word &= masks[kind];
    } else {
        if (end - *in < n_extra)
            return -1;
        word = load_le(*in, n_extra);
    }
    *in += n_extra;
    *n = kind == 1 ? 4 + (tag >> 2 & 7) : (size_t)(tag >> 2) + 1;
    *offset = kind == 1 ? word | (size_t)(tag >> 5) << 8 : word;
    return 0;
}

int snappy_decompress(const unsigned char *in, size_t n_in, unsigned char *out, size_t n_out)
{
    const unsigned char *end = in + n_in;
    unsigned char *at = out, *out_end = out + n_out;
    uint32_t length;

    in = snappy_length(in, end, &length);
    if (!in || length != n_out)
        return -1;
    while (in < end) {
        unsigned tag = *in++;
        size_t n, offset;

        if ((tag & 3) == 0) { /* a literal */
            n = (size_t)(tag >> 2) + 1;
            if (n > 60) {
                int n_extra = (int)n - 60;
                if (end - in < n_extra)
                    return -1;
                n = (size_t)load_le(in, n_extra) + 1;
                in += n_extra;
            }
            if (take_literal(&in, end, &at, out_end, n) < 0)
                return -1;
            continue;
        }
        if (read_copy(&in, end, tag, &n, &offset) < 0)
            return -1;
        if (offset == 0 || offset > (size_t)(at - out) || n > (size_t)(out_end - at))
            return -1;
        if (out_end - at >= FAST_OUT)
            copy_back_fast(at, offset, n);
        else
            copy_back(at, offset, n);
        at += n;
    }
    return at == out_end ? 0 : -1;
}

/* ---- the others ---- */

static int gzip_decompress(const unsigned char *in, size_t n_in, unsigned char *out, size_t n_out)
{
    z_stream z = { .next_in = (unsigned char *)(uintptr_t)in,
                   .avail_in = (unsigned)n_in,
                   .next_out = out,
                   .avail_out = (unsigned)n_out };

    if (inflateInit2(&z, 15 + 32) != Z_OK) /* gzip or zlib, as its head says */
        return -1;
    int rc = inflate(&z, Z_FINISH);
    bool is_whole = rc == Z_STREAM_END && z.avail_out == 0;
    inflateEnd(&z);
    return is_whole ? 0 : -1;
}

/*
 * The largest size that n_in compressed bytes can have uncompressed, so that a page header cannot
 * demand memory that the page cannot fill.
 */
static bool is_plausible(int codec, const unsigned char *in, size_t n_in, size_t n_out)
{
    uint32_t length;
    unsigned long long content;

    switch (codec) {
    case CODEC_SNAPPY: /* a copy is of two bytes at least and gives 64 at most */
        return snappy_length(in, in + n_in, &length) && length == n_out && n_out / 32 <= n_in;
    case CODEC_GZIP: /* deflate gives at most 1032 bytes a byte */
        return n_out / 1040 <= n_in;
    default: /* blocks of 128 KiB may be one byte again and again */
        content = ZSTD_getFrameContentSize(in, n_in);
        return (content == n_out || content == ZSTD_CONTENTSIZE_UNKNOWN) && n_out / 65536 <= n_in;
    }
}

static int make_room(unsigned char **buffer, size_t *capacity, size_t n)
{
    if (n <= *capacity)
        return 0;
    free(*buffer);
    *capacity = 0;
    if (!(*buffer = malloc(n)))
        return -1;
    *capacity = n;
    return 0;
}

int parquet_decompress(int codec, const unsigned char *in, size_t n_in, unsigned char **out,
                       size_t *capacity, size_t n_out, struct err *err)
{
    const char *name;
    int rc = -1;

    parquet_codec_known(codec, &name);
    if (n_out > PARQUET_PAGE_BYTES_FREE && n_out / PARQUET_PAGE_RATIO_MAX > n_in)
        return err_set(err, ERR_DATA,
                       "a page of %zu bytes decompresses to %zu, more than %d times its size", n_in,
                       n_out, PARQUET_PAGE_RATIO_MAX);
    if (n_in > PARQUET_PAGE_BYTES_MAX || n_out > PARQUET_PAGE_BYTES_MAX ||
        !is_plausible(codec, in, n_in, n_out))
        return err_set(err, ERR_DATA, "a page of %zu bytes is not %zu in %s", n_in, n_out, name);
    if (make_room(out, capacity, n_out > 0 ? n_out : 1) < 0)
        return err_set(err, ERR_DEVICE, "out of host memory for a page of %zu bytes", n_out);
    if (codec == CODEC_SNAPPY)
        rc = snappy_decompress(in, n_in, *out, n_out);
    else if (codec == CODEC_GZIP)
        rc = gzip_decompress(in, n_in, *out, n_out);
    else
        rc = ZSTD_decompress(*out, n_out, in, n_in) == n_out ? 0 : -1;
    return rc == 0 ? 0 : err_set(err, ERR_DATA, "a page is no %s of %zu bytes", name, n_out);
}
