/*
 * decompress.c - by zlib, libzstd and liblzma, piece by piece
 */
#include "data/rows/decompress.h"

#include <lzma.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/num.h"
#include "base/str.h"

#define PIECE_BYTES ((size_t)1 << 20)
#define TOTAL_BYTES_MAX ((int64_t)1 << 40) /* more would be a trick */
#define CHECK_BYTES ((int64_t)64 << 20)    /* so often the disk's free space is looked at */
#define FREE_BYTES_MIN ((int64_t)256 << 20)
#define XZ_MEMORY_MAX ((uint64_t)512 << 20) /* xz -9 takes 65 MiB; xz --lzma2=dict=256MiB passes */

struct unpacking {
    const char *path;
    const unsigned char *in, *end;
    unsigned char *out; /* PIECE_BYTES */
    int fd;
    int64_t n_bytes, n_packed, n_max;
    struct err *err;
};

size_t decompress_name_length(const char *path)
{
    size_t length = strlen(path);

    return str_ends_with(path, ".gz")    ? length - 3
           : str_ends_with(path, ".xz")  ? length - 3
           : str_ends_with(path, ".zst") ? length - 4
                                         : length;
}

/* Text is packed to a tenth or a twentieth. */
static int64_t unpack_bytes_max(size_t n_packed)
{
    return min_i64(TOTAL_BYTES_MAX,
                   DECOMPRESS_BYTES_MIN + DECOMPRESS_RATIO_MAX * (int64_t)n_packed);
}

static int damaged(const struct unpacking *u, const char *what)
{
    return err_set(u->err, ERR_DATA, "%s: it is %s after byte %lld of its content", u->path, what,
                   (long long)u->n_bytes);
}

/* Whether enough is left of the disk (which may be memory) that others write to as well. */
static int check_disk(const struct unpacking *u)
{
    struct statvfs disk;

    if (fstatvfs(u->fd, &disk) < 0)
        return 0;
    double left = (double)disk.f_bavail * (double)disk.f_frsize;
    if (left >= (double)FREE_BYTES_MIN)
        return 0;
    return err_set(u->err, ERR_FAILED,
                   "%s: %lld MB are decompressed, and the folder for temporary files has only %.0f "
                   "MB left (hint: TMPDIR)",
                   u->path, (long long)(u->n_bytes / 1000000), left / 1e6);
}

static int put(struct unpacking *u, size_t n)
{
    int64_t n_before = u->n_bytes;

    u->n_bytes += (int64_t)n;
    if (u->n_bytes > u->n_max)
        return err_set(u->err, ERR_DATA,
                       "%s: it decompresses to more than %lld MB, from %lld bytes (hint: if this "
                       "is intended, decompress it first)",
                       u->path, (long long)(u->n_max / 1000000), (long long)u->n_packed);
    if (n_before / CHECK_BYTES != u->n_bytes / CHECK_BYTES && check_disk(u) < 0)
        return -1;
    if (file_write_all(u->fd, u->out, n) == 0)
        return 0;
    return err_set_errno(u->err, ERR_FAILED,
                         "%s: it cannot be decompressed in the folder for temporary files (hint: "
                         "TMPDIR)",
                         u->path);
}

/* Member after member, as gzip itself reads them. */
static int unpack_gzip(struct unpacking *u)
{
    z_stream z = { 0 };
    int status = 0, code = Z_OK;

    if (inflateInit2(&z, 15 + 16) != Z_OK)
        return err_set(u->err, ERR_DEVICE, "out of host memory");
    while (!status && (u->in < u->end || code == Z_OK)) {
        uInt given = (uInt)min_i64(u->end - u->in, (int64_t)1 << 30);

        if (code == Z_STREAM_END)
            inflateReset(&z);
        z.next_in = (Bytef *)(uintptr_t)u->in;
        z.avail_in = given;
        z.next_out = u->out;
        z.avail_out = (uInt)PIECE_BYTES;
        code = inflate(&z, Z_NO_FLUSH);
        u->in += given - z.avail_in;
        size_t n = PIECE_BYTES - z.avail_out;
        if (code != Z_OK && code != Z_STREAM_END)
            status = damaged(u, code == Z_BUF_ERROR ? "cut off" : "damaged");
        else if (n)
            status = put(u, n);
    }
    inflateEnd(&z);
    return status;
}

static int unpack_zstd(struct unpacking *u)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    ZSTD_inBuffer in = { u->in, (size_t)(u->end - u->in), 0 };
    size_t left = 1;
    int status = z ? 0 : err_set(u->err, ERR_DEVICE, "out of host memory");
    bool is_full = false;

    while (!status && (in.pos < in.size || is_full)) {
        ZSTD_outBuffer out = { u->out, PIECE_BYTES, 0 };

        left = ZSTD_decompressStream(z, &out, &in);
        is_full =
            out.pos == out.size && left != 0; /* 0: the frame is whole, and all of it is out */
        status = ZSTD_isError(left) ? damaged(u, "damaged") : put(u, out.pos);
    }
    if (!status && left != 0)
        status = damaged(u, "cut off");
    ZSTD_freeDStream(z);
    return status;
}

static int unpack_xz(struct unpacking *u)
{
    lzma_stream z = LZMA_STREAM_INIT;
    int status = 0;
    lzma_ret code = lzma_stream_decoder(&z, XZ_MEMORY_MAX, LZMA_CONCATENATED);

    z.next_in = u->in;
    z.avail_in = (size_t)(u->end - u->in);
    while (!status && code == LZMA_OK) {
        z.next_out = u->out;
        z.avail_out = PIECE_BYTES;
        code = lzma_code(&z, LZMA_FINISH);
        size_t n = PIECE_BYTES - z.avail_out;
        if (n)
            status = put(u, n);
    }
    if (!status && code == LZMA_MEM_ERROR)
        status = err_set(u->err, ERR_DEVICE, "out of host memory");
    else if (!status && code == LZMA_MEMLIMIT_ERROR)
        status = err_set(u->err, ERR_DATA,
                         "%s: decompressing it takes more than %d MB of memory (hint: decompress "
                         "it first, by xz -d)",
                         u->path, (int)(XZ_MEMORY_MAX / 1000000));
    else if (!status && code != LZMA_STREAM_END)
        status = damaged(u, code == LZMA_BUF_ERROR ? "cut off" : "damaged");
    lzma_end(&z);
    return status;
}

/* ---- by the first bytes of a file ---- */

struct packed_format {
    unsigned char begin[6];
    size_t n_begin;
    int (*unpack)(struct unpacking *u);
};

static const struct packed_format formats[] = {
    { { 0x1f, 0x8b }, 2, unpack_gzip },
    { { 0x28, 0xb5, 0x2f, 0xfd }, 4, unpack_zstd },
    { { 0xfd, '7', 'z', 'X', 'Z', 0 }, 6, unpack_xz },
};

/* NULL: the file is not compressed. */
static const struct packed_format *format_of(const struct file_map *map)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (map->n_bytes >= formats[i].n_begin &&
            !memcmp(map->data, formats[i].begin, formats[i].n_begin))
            return &formats[i];
    return NULL;
}

static int open_nameless(struct err *err)
{
    const char *folder = getenv("TMPDIR");
    struct str name = { 0 };

    str_printf(&name, "%s/lmtrain-XXXXXX", folder && *folder ? folder : "/tmp");
    int fd = mkostemp(name.data, 02000000); /* O_CLOEXEC */
    if (fd < 0)
        err_set_errno(err, ERR_FAILED, "%s (hint: TMPDIR)", name.data);
    else
        unlink(name.data);
    str_release(&name);
    return fd;
}

static int map_unpacked(const struct unpacking *u, struct file_map *map)
{
    *map = (struct file_map){ .n_bytes = (size_t)u->n_bytes };
    if (!map->n_bytes)
        return 0;
    void *data = mmap(NULL, map->n_bytes, PROT_READ, MAP_PRIVATE, u->fd, 0);
    if (data != MAP_FAILED) {
        map->data = data;
        return 0;
    }
    *map = (struct file_map){ 0 };
    return err_set_errno(u->err, ERR_DATA, "cannot map what is in %s", u->path);
}

int decompress_map(struct file_map *map, const char *path, struct err *err)
{
    if (file_map_open(map, path, err) < 0)
        return -1;
    const struct packed_format *format = format_of(map);
    if (!format)
        return 0;
    struct file_map packed = *map;
    struct unpacking u = { .path = path,
                           .in = packed.data,
                           .end = packed.data + packed.n_bytes,
                           .n_packed = (int64_t)packed.n_bytes,
                           .n_max = unpack_bytes_max(packed.n_bytes),
                           .out = malloc(PIECE_BYTES),
                           .err = err };
    int status = u.out ? 0 : err_set(err, ERR_DEVICE, "out of host memory");
    u.fd = status ? -1 : open_nameless(err);
    if (u.fd < 0)
        status = -1;
    if (!status)
        status = format->unpack(&u);
    if (!status)
        status = map_unpacked(&u, map);
    if (status < 0)
        *map = (struct file_map){ 0 };
    if (u.fd >= 0)
        close(u.fd);
    free(u.out);
    file_map_close(&packed);
    return status;
}
