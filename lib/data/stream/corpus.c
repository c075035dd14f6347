/*
 * corpus.c - reading inputs, tokenizing, writing
 */
#include "data/stream/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/num.h"
#include "base/str.h"
#include "data/rows/decompress.h"
#include "data/stream/batch.h"
#include "data/stream/indexed_writer.h"
#include "data/stream/token_meta.h"

#define TEXT_BYTES_MAX ((size_t)8 << 30)
#define LINE_BYTES_MAX ((size_t)256 << 20)

#define BUFFER_BYTES ((size_t)1 << 18)

struct corpus {
    const struct corpus_options *options;
    struct ordered_pool *pool;
    struct batch *batch; /* being filled, or NULL */
    struct row_files files;
    struct indexed_writer writer;
    struct corpus_counts *counts;
    int64_t n_read; /* bytes of the files */
    struct err *err;
    char buffer[BUFFER_BYTES];
};

/* ---- batches ---- */

/* Write the oldest batch: 1, or 0 if there is none, or -1. */
static int write_batch(struct corpus *c)
{
    const struct batch *batch = ordered_pool_take(c->pool);
    int64_t start = 0;

    if (!batch)
        return 0;
    for (int i = 0; i < batch->n_done; start = batch->ends[i++])
        if (indexed_writer_add(&c->writer, batch->ids.ids + start, batch->ends[i] - start, c->err) <
            0)
            return -1;
    if (batch->failed) {
        *c->err = batch->err;
        return -1;
    }
    c->counts->n_documents += batch->n_done;
    c->counts->n_empty += batch->n_empty;
    c->counts->n_bytes += batch->n_text_bytes;
    c->counts->n_tokens = c->writer.n_tokens;
    c->counts->n_file_bytes = max_i64(c->counts->n_file_bytes, batch->n_file_bytes);
    if (c->options->progress)
        c->options->progress(c->options->context, c->counts);
    return 1;
}

static int write_all(struct corpus *c)
{
    int rc;

    if (c->batch)
        ordered_pool_submit(c->pool);
    c->batch = NULL;
    while ((rc = write_batch(c)) > 0)
        ;
    return rc;
}

/* The batch that takes the next document; NULL on failure. */
static struct batch *open_batch(struct corpus *c)
{
    if (c->batch &&
        (c->batch->text.length >= BATCH_BYTES || c->batch->n_documents == BATCH_DOCUMENTS)) {
        ordered_pool_submit(c->pool);
        c->batch = NULL;
    }
    while (!c->batch) {
        c->batch = ordered_pool_next(c->pool);
        if (c->batch)
            batch_clear(c->batch);
        else if (write_batch(c) < 0)
            return NULL;
    }
    return c->batch;
}

/* The text at the batch's end, from start on, is a document. */
static void close_document(struct corpus *c, const char *path, int64_t line, bool is_json,
                           size_t start)
{
    struct batch *batch = c->batch;

    batch->n_file_bytes = c->n_read;
    batch->documents[batch->n_documents++] =
        (struct batch_document){ path, line, is_json, start, batch->text.length - start };
    str_add_char(&batch->text, '\0');
}

/* ---- inputs ---- */

static int read_text(struct corpus *c, const char *path)
{
    const char *from = strcmp(path, "-") == 0 ? "/dev/stdin" : path;
    struct batch *batch = open_batch(c);
    size_t n_bytes;
    char *text;

    if (!batch)
        return -1;
    if (file_read(from, TEXT_BYTES_MAX, ERR_DATA, &text, &n_bytes, c->err) < 0)
        return err_add(c->err, "%s", path);
    if (n_bytes == 0) {
        c->counts->n_empty++;
    } else {
        size_t start = batch->text.length;

        str_add_bytes(&batch->text, text, n_bytes);
        c->n_read += (int64_t)n_bytes;
        close_document(c, path, 0, false, start);
    }
    free(text);
    return 0;
}

/* A JSONL file while it is read. */
struct jsonl_input {
    const char *path;
    int64_t number; /* of the line that is being read */
    size_t start;   /* of its part that is in the batch */
    bool is_open;   /* there is such a part */
};

static int line_failed(struct corpus *c, const struct jsonl_input *lines)
{
    return err_add(c->err, "%s:%lld", lines->path, (long long)lines->number);
}

/* Take n bytes of the file, line by line. */
static int add_lines(struct corpus *c, struct jsonl_input *lines, const char *bytes, size_t n)
{
    while (n > 0) {
        const char *end = memchr(bytes, '\n', n);
        size_t length = end ? (size_t)(end - bytes) + 1 : n;
        struct batch *batch = lines->is_open ? c->batch : open_batch(c);

        if (!batch)
            return -1;
        if (!lines->is_open)
            lines->start = batch->text.length;
        lines->is_open = true;
        if (batch->text.length - lines->start + length > LINE_BYTES_MAX) {
            err_set(c->err, ERR_DATA, "the line is longer than %zu bytes", LINE_BYTES_MAX);
            return line_failed(c, lines);
        }
        str_add_bytes(&batch->text, bytes, length);
        bytes += length;
        n -= length;
        c->n_read += (int64_t)length;
        if (end) {
            close_document(c, lines->path, lines->number++, true, lines->start);
            lines->is_open = false;
        }
    }
    return 0;
}

static int read_jsonl(struct corpus *c, const char *path)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int rc = 0;
    FILE *file = is_stdin ? stdin : fopen(path, "re");
    struct jsonl_input lines = { .path = path, .number = 1 };
    size_t n;

    if (!file)
        return err_set_errno(c->err, ERR_DATA, "%s", path);
    while (rc == 0 && (n = fread(c->buffer, 1, sizeof c->buffer, file)) > 0)
        rc = add_lines(c, &lines, c->buffer, n);
    if (rc == 0 && ferror(file)) {
        err_set_errno(c->err, ERR_DATA, "cannot be read");
        rc = line_failed(c, &lines);
    }
    if (rc == 0 && lines.is_open)
        close_document(c, path, lines.number, true, lines.start);
    if (!is_stdin)
        fclose(file);
    return rc;
}

static int add_row(struct corpus *c, const char *path, const struct row *row)
{
    if (row->kind == ROW_BAD)
        return err_set(c->err, ERR_DATA, "%s:%lld: %s", path, (long long)row->number, row->text);
    if (row->n_bytes == 0) {
        c->counts->n_empty++;
        return 0;
    }
    struct batch *batch = open_batch(c);
    if (!batch)
        return -1;
    size_t start = batch->text.length;
    str_add_bytes(&batch->text, row->text, row->n_bytes);
    close_document(c, path, row->number, row->kind == ROW_JSON, start);
    return 0;
}

static int read_rows(struct corpus *c, const char *path, enum rows_format format)
{
    struct rows *rows;
    struct row row;
    int64_t before = c->n_read, size = max_i64(file_size(path), 0);
    int rc;

    if (!strcmp(path, "-"))
        return err_set(c->err, ERR_DATA, "standard input is read as text or jsonl alone, not as %s",
                       rows_format_names[format]);
    if (rows_open(&rows, path, format, c->options->column, c->err) < 0)
        return -1;
    while ((rc = rows_next(rows, &row, c->err)) > 0) {
        c->n_read = before + (int64_t)(rows_share(rows) * (double)size);
        if (add_row(c, path, &row) < 0) {
            rc = -1;
            break;
        }
    }
    c->n_read = before + size;
    rows_close(rows);
    return rc;
}

/* Text and JSONL may come from a pipe; the others are mapped. */
static int read_input(struct corpus *c, const char *path)
{
    enum rows_format format = c->options->format;

    if (format == ROWS_AUTO)
        format = rows_format_of(path);
    if (decompress_name_length(path) < strlen(path))
        return read_rows(c, path, format == ROWS_AUTO ? ROWS_TEXT : format);
    if (format == ROWS_JSONL)
        return read_jsonl(c, path);
    return format == ROWS_AUTO || format == ROWS_TEXT ? read_text(c, path)
                                                      : read_rows(c, path, format);
}

/* Read all inputs; what was read before an error may have one of its own, which comes first. */
static int read_all(struct corpus *c)
{
    struct err err = { 0 };
    int rc = 0;

    for (int i = 0; i < c->files.n && rc == 0; i++) {
        rc = read_input(c, c->files.paths[i]);
        c->counts->n_inputs += rc == 0;
    }
    if (rc == 0)
        return write_all(c);
    err = *c->err;
    if (write_all(c) == 0)
        *c->err = err;
    return -1;
}

/* 0 if that is not known: standard input, a pipe. */
static int64_t all_bytes(const struct row_files *files)
{
    int64_t sum = 0;

    for (int i = 0; i < files->n; i++) {
        int64_t size = strcmp(files->paths[i], "-") ? file_size(files->paths[i]) : -1;

        if (size < 0)
            return 0;
        sum += size;
    }
    return sum;
}

/* With all inputs found. */
static int write_corpus(struct corpus *c, const struct tokenizer *tokenizer)
{
    const struct corpus_options *options = c->options;
    struct token_meta meta = { .vocab_size = tokenizer_vocab_size(tokenizer),
                               .end_of_text = options->end_of_text };
    struct batch_options batches = { tokenizer, options->column, options->end_of_text };
    int rc = -1;

    tokenizer_hash_text(tokenizer, meta.tokenizer);
    if (token_meta_check_place(options->prefix, c->err) < 0)
        return -1;
    if (indexed_writer_open(&c->writer, options->prefix, tokenizer_vocab_size(tokenizer), c->err) ==
            0 &&
        batch_pool_create(&c->pool, &batches, options->n_threads, c->err) == 0)
        rc = read_all(c);
    meta.n_documents = c->writer.n_documents;
    meta.n_tokens = c->writer.n_tokens;
    if (rc == 0) {
        /* Never beside tokens that it is not of. */
        token_meta_remove(options->prefix);
        rc = indexed_writer_finish(&c->writer, c->err);
    }
    if (rc == 0)
        rc = token_meta_write(options->prefix, &meta, c->err);
    ordered_pool_destroy(c->pool);
    indexed_writer_abandon(&c->writer);
    return rc;
}

int corpus_tokenize(const struct tokenizer *tokenizer, const struct corpus_options *options,
                    struct corpus_counts *counts, struct err *err)
{
    struct corpus *c = calloc(1, sizeof *c);
    int rc = -1;

    if (!c)
        return err_set(err, ERR_DEVICE, "out of host memory");
    *c = (struct corpus){ .options = options, .counts = counts, .err = err };
    *counts = (struct corpus_counts){ 0 };
    if (row_files_find(&c->files, options->inputs, options->n_inputs, err) == 0) {
        counts->n_found = c->files.n;
        counts->n_ignored = c->files.n_ignored;
        counts->n_all_file_bytes = all_bytes(&c->files);
        rc = write_corpus(c, tokenizer);
    }
    row_files_release(&c->files);
    free(c);
    return rc;
}
