/*
 * safetensors_write.c - the writer
 *
 * Small pieces are gathered in a buffer of 4 MiB, large ones go to the file in pieces of that size
 * straight from the caller's memory; both are hashed on their way, while they are in the cache.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "base/str.h"
#include "ckpt/safetensors.h"

#define BUFFER_BYTES ((size_t)4 << 20)
#define START_BYTES ((uint64_t)32 << 20)

struct safetensors_writer {
    int fd;
    char *path;
    unsigned char *buffer;
    size_t used;  /* of the buffer */
    uint64_t due; /* data bytes still to come */
    uint64_t file_bytes;
    uint64_t started; /* of these, the bytes whose write-back has been started */
    XXH3_state_t *hash;
};

static int compare_file_order(const void *a, const void *b)
{
    const struct safetensors_tensor *left = a, *right = b;

    if (left->type != right->type)
        return left->type > right->type ? -1 : 1;
    return strcmp(left->name, right->name);
}

void safetensors_place(struct safetensors_tensor *tensors, int n_tensors)
{
    uint64_t at = 0;

    if (n_tensors)
        qsort(tensors, (size_t)n_tensors, sizeof *tensors, compare_file_order);
    for (int i = 0; i < n_tensors; i++) {
        uint64_t n_bytes = safetensors_type_bytes(tensors[i].type);

        CHECK(i == 0 || compare_file_order(&tensors[i - 1], &tensors[i]));
        for (int dim = 0; dim < tensors[i].n_dims; dim++)
            CHECK(!__builtin_mul_overflow(n_bytes, (uint64_t)tensors[i].shape[dim], &n_bytes));
        tensors[i].begin = at;
        CHECK(!__builtin_add_overflow(at, n_bytes, &at));
        CHECK(at <= INT64_MAX);
        tensors[i].end = at;
    }
}

static void header_print(struct str *out, const struct safetensors_tensor *tensors, int n_tensors,
                         const struct safetensors_meta *meta, int n_meta)
{
    str_add_char(out, '{');
    if (n_meta) {
        str_add(out, "\"__metadata__\":{");
        for (int i = 0; i < n_meta; i++) {
            if (i)
                str_add_char(out, ',');
            json_add_string(out, meta[i].key);
            str_add_char(out, ':');
            json_add_string(out, meta[i].value);
        }
        str_add_char(out, '}');
    }
    for (int i = 0; i < n_tensors; i++) {
        if (i || n_meta)
            str_add_char(out, ',');
        json_add_string(out, tensors[i].name);
        str_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_type_name(tensors[i].type));
        for (int dim = 0; dim < tensors[i].n_dims; dim++)
            str_printf(out, dim ? ",%lld" : "%lld", (long long)tensors[i].shape[dim]);
        str_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)tensors[i].begin,
                   (unsigned long long)tensors[i].end);
    }
    str_add_char(out, '}');
    while (out->length % 8)
        str_add_char(out, ' ');
}

/* The bytes that were not written are the missing room. */
static int fail_to_write(const struct safetensors_writer *writer, size_t n_bytes, struct err *err)
{
    char missing[32], whole[32];
    int number = errno;
    uint64_t left = n_bytes + writer->due;

    str_bytes(missing, sizeof missing, left);
    str_bytes(whole, sizeof whole, writer->file_bytes + writer->due);
    errno = number;
    return err_set_errno(err, ERR_FAILED, "%s: cannot write the last %s of %s", writer->path,
                         missing, whole);
}

static int flush_bytes(struct safetensors_writer *writer, const unsigned char *data, size_t n_bytes,
                       struct err *err)
{
    XXH3_64bits_update(writer->hash, data, n_bytes);
    writer->file_bytes += n_bytes;
    size_t n_left = file_write_all(writer->fd, data, n_bytes);
    if (n_left)
        return fail_to_write(writer, n_left, err);
    if (writer->file_bytes - writer->started >= START_BYTES) {
        /* The disk begins now, so that the fsync at the end has little left. A mere hint. */
        sync_file_range(writer->fd, (off_t)writer->started,
                        (off_t)(writer->file_bytes - writer->started), SYNC_FILE_RANGE_WRITE);
        writer->started = writer->file_bytes;
    }
    return 0;
}

static int put_bytes(struct safetensors_writer *writer, const void *data, size_t n_bytes,
                     struct err *err)
{
    const unsigned char *next = data;

    while (n_bytes) {
        size_t n;

        if (writer->used == 0 && n_bytes >= BUFFER_BYTES) {
            n = BUFFER_BYTES;
            if (flush_bytes(writer, next, n, err) < 0)
                return -1;
        } else {
            n = BUFFER_BYTES - writer->used;
            n = n < n_bytes ? n : n_bytes;
            memcpy(writer->buffer + writer->used, next, n);
            writer->used += n;
            if (writer->used == BUFFER_BYTES) {
                writer->used = 0;
                if (flush_bytes(writer, writer->buffer, BUFFER_BYTES, err) < 0)
                    return -1;
            }
        }
        next += n;
        n_bytes -= n;
    }
    return 0;
}

static int put_header(struct safetensors_writer *writer, const struct safetensors_tensor *tensors,
                      int n_tensors, const struct safetensors_meta *meta, int n_meta,
                      struct err *err)
{
    struct str header = { 0 };
    unsigned char prefix[8];

    header_print(&header, tensors, n_tensors, meta, n_meta);
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((uint64_t)header.length >> (8 * i));
    int failed = put_bytes(writer, prefix, sizeof prefix, err) < 0 ||
                 put_bytes(writer, header.data, header.length, err) < 0;
    if (!failed && header.length > SAFETENSORS_HEADER_MAX_BYTES)
        failed = err_set(err, ERR_FAILED, "%s: header of %zu bytes, at most %zu", writer->path,
                         header.length, SAFETENSORS_HEADER_MAX_BYTES);
    str_release(&header);
    return failed ? -1 : 0;
}

int safetensors_create(struct safetensors_writer **writer, const char *path,
                       const struct safetensors_tensor *tensors, int n_tensors,
                       const struct safetensors_meta *meta, int n_meta, struct err *err)
{
    struct safetensors_writer *made = calloc(1, sizeof *made);

    if (made) {
        made->fd = -1;
        made->path = strdup(path);
        made->buffer = malloc(BUFFER_BYTES);
        made->hash = XXH3_createState();
    }
    if (!made || !made->path || !made->buffer || !made->hash) {
        safetensors_abandon(made);
        return err_set(err, ERR_DEVICE, "%s: out of host memory", path);
    }
    XXH3_64bits_reset(made->hash);
    made->due = n_tensors ? tensors[n_tensors - 1].end : 0;
    if (unlink(path) < 0 && errno != ENOENT) {
        err_set_errno(err, ERR_FAILED, "cannot replace %s", path);
        safetensors_abandon(made);
        return -1;
    }
    made->fd = file_open_write(path, O_WRONLY | O_EXCL, err);
    if (made->fd < 0 || put_header(made, tensors, n_tensors, meta, n_meta, err) < 0) {
        safetensors_abandon(made);
        return -1;
    }
    *writer = made;
    return 0;
}

int safetensors_write(struct safetensors_writer *writer, const void *data, size_t n_bytes,
                      struct err *err)
{
    CHECK(n_bytes <= writer->due);
    writer->due -= n_bytes;
    return put_bytes(writer, data, n_bytes, err);
}

int safetensors_finish(struct safetensors_writer *writer, uint64_t *n_bytes, uint64_t *hash,
                       struct err *err)
{
    CHECK(writer->due == 0);
    int failed = flush_bytes(writer, writer->buffer, writer->used, err) < 0;

    if (!failed && fsync(writer->fd) < 0)
        failed = err_set_errno(err, ERR_FAILED, "%s: fsync", writer->path);
    int fd = writer->fd;
    writer->fd = -1;
    if (close(fd) < 0 && !failed)
        failed = err_set_errno(err, ERR_FAILED, "%s: close", writer->path);
    if (!failed) {
        *n_bytes = writer->file_bytes;
        *hash = XXH3_64bits_digest(writer->hash);
    }
    safetensors_abandon(writer);
    return failed ? -1 : 0;
}

void safetensors_abandon(struct safetensors_writer *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0)
        close(writer->fd);
    free(writer->path);
    free(writer->buffer);
    XXH3_freeState(writer->hash);
    free(writer);
}
