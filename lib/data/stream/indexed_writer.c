/*
 * indexed_writer.c - the writing half of .bin/.idx; the layout is documented in indexed.c
 */
#include "data/stream/indexed_writer.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/interrupt.h"
#include "base/str.h"

#define VOCAB_SIZE_U16 65500 /* megatron-core's DType.optimal_dtype */

static char *join(const char *prefix, const char *suffix)
{
    struct str path = { 0 };

    str_printf(&path, "%s%s", prefix, suffix);
    return path.data;
}

/* The folder of prefix must exist before a file can be made in it. */
static int make_folder(const char *prefix, struct err *err)
{
    const char *slash = strrchr(prefix, '/');

    if (!slash || slash == prefix)
        return 0;
    char *folder = strndup(prefix, (size_t)(slash - prefix));
    if (!folder)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", prefix);
    int rc = file_make_folders(folder, err);
    free(folder);
    return rc;
}

int indexed_writer_open(struct indexed_writer *writer, const char *prefix, int vocab_size,
                        struct err *err)
{
    CHECK(vocab_size > 0);
    *writer = (struct indexed_writer){
        .type = vocab_size < VOCAB_SIZE_U16 ? INDEXED_U16 : INDEXED_I32,
        .vocab_size = vocab_size,
        .prefix = join(prefix, ""),
    };
    if (make_folder(prefix, err) < 0)
        goto fail;
    char *partial = join(prefix, ".bin.partial");
    unlink(partial);
    int fd = file_open_write(partial, O_WRONLY | O_EXCL, err);
    if (fd < 0) {
        free(partial);
        goto fail;
    }
    writer->partial = partial;
    interrupt_mark(partial);
    writer->file = fdopen(fd, "wb");
    CHECK(writer->file);
    return 0;
fail:
    indexed_writer_abandon(writer);
    return -1;
}

static int write_tokens(struct indexed_writer *writer, const int32_t *ids, int64_t n)
{
    uint16_t buffer[4096];

    if (n == 0)
        return 1;
    if (writer->type == INDEXED_I32)
        return fwrite(ids, sizeof *ids, (size_t)n, writer->file) == (size_t)n;
    for (int64_t done = 0; done < n;) {
        size_t part = 0;

        while (part < sizeof buffer / sizeof *buffer && done < n)
            buffer[part++] = (uint16_t)ids[done++];
        if (fwrite(buffer, sizeof *buffer, part, writer->file) != part)
            return 0;
    }
    return 1;
}

int indexed_writer_add(struct indexed_writer *writer, const int32_t *ids, int64_t n,
                       struct err *err)
{
    if (n > INT32_MAX)
        return err_set(err, ERR_DATA, "a document of %lld tokens, at most %d fit the format",
                       (long long)n, INT32_MAX);
    for (int64_t i = 0; i < n; i++)
        CHECK((uint32_t)ids[i] < (uint32_t)writer->vocab_size);
    if (writer->n_documents == writer->capacity) {
        int64_t capacity = writer->capacity ? writer->capacity * 2 : 1024;
        int32_t *lengths = realloc(writer->lengths, (size_t)capacity * sizeof *lengths);

        if (!lengths)
            return err_set(err, ERR_DEVICE, "%s: out of host memory", writer->prefix);
        writer->lengths = lengths;
        writer->capacity = capacity;
    }
    if (!write_tokens(writer, ids, n))
        return err_set_errno(err, ERR_FAILED, "%s", writer->partial);
    writer->lengths[writer->n_documents++] = (int32_t)n;
    writer->n_tokens += n;
    return 0;
}

/* The whole .idx as megatron-core's _IndexWriter packs it. */
static void build_index(const struct indexed_writer *writer, struct str *out)
{
    uint64_t version = INDEXED_VERSION, n_sequences = (uint64_t)writer->n_documents,
             n_starts = n_sequences + 1;
    int64_t token_bytes = writer->type == INDEXED_U16 ? 2 : 4, offset = 0;

    str_add_bytes(out, "MMIDIDX\0\0", 9);
    str_add_bytes(out, &version, 8);
    str_add_char(out, (char)writer->type);
    str_add_bytes(out, &n_sequences, 8);
    str_add_bytes(out, &n_starts, 8);
    str_add_bytes(out, writer->lengths, n_sequences * sizeof *writer->lengths);
    for (int64_t i = 0; i < writer->n_documents; i++) {
        str_add_bytes(out, &offset, 8);
        offset += writer->lengths[i] * token_bytes;
    }
    for (int64_t i = 0; i <= writer->n_documents; i++)
        str_add_bytes(out, &i, 8);
}

static int finish_bin(struct indexed_writer *writer, const char *bin, struct err *err)
{
    FILE *file = writer->file;

    writer->file = NULL;
    bool failed = fflush(file) != 0 || fsync(fileno(file)) != 0;
    if (fclose(file) != 0 || failed || rename(writer->partial, bin) != 0)
        return err_set_errno(err, ERR_FAILED, "%s", writer->partial);
    return 0;
}

int indexed_writer_finish(struct indexed_writer *writer, struct err *err)
{
    char *bin = join(writer->prefix, ".bin"), *idx = join(writer->prefix, ".idx");
    struct str index = { 0 };

    /* An old index must not stand beside new tokens, not even for a moment. */
    unlink(idx);
    int rc = finish_bin(writer, bin, err);
    if (rc == 0) {
        build_index(writer, &index);
        rc = file_write(idx, index.data, index.length, err);
    }
    str_release(&index);
    free(bin);
    free(idx);
    indexed_writer_abandon(writer);
    return rc;
}

void indexed_writer_abandon(struct indexed_writer *writer)
{
    if (writer->file)
        fclose(writer->file);
    if (writer->partial) {
        unlink(writer->partial);
        interrupt_forget(writer->partial);
        free(writer->partial);
    }
    free(writer->prefix);
    free(writer->lengths);
    *writer = (struct indexed_writer){ 0 };
}
