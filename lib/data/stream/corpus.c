/*
 * corpus.c - reading inputs, tokenizing, writing
 */
#include "data/stream/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/num.h"
#include "base/str.h"
#include "data/rows/decompress.h"
#include "data/stream/batch.h"
#include "data/stream/indexed_writer.h"
#include "data/stream/token_meta.h"
#include "data/stream/token_part.h"

#define TEXT_BYTES_MAX ((size_t)8 << 30)
#define LINE_BYTES_MAX ((size_t)256 << 20)

#define BUFFER_BYTES ((size_t)1 << 18)

struct corpus {
    const struct corpus_options *options;
    struct ordered_pool *pool;
    struct batch *batch; /* being filled, or NULL */
    const struct row_files *files;
    struct token_share share; /* of a part */
    const char *from_path;    /* of a part: the file of lines that it begins in, or NULL, */
    int64_t from_offset;      /* and the byte of it at which line 1 is counted */
    struct indexed_writer writer;
    struct corpus_counts *counts;
    int64_t n_read; /* bytes of the files */
    struct err *err;
    char buffer[BUFFER_BYTES];
};

/* What a file gives to a part: documents that begin at bytes begin to end - 1, and of these
 * rows. */
struct file_share {
    int64_t begin, end, size;
    const struct file_rows *rows; /* NULL: all */
};

/* ---- errors ---- */

/* Newlines in the first n bytes of a file; what cannot be read has none. */
static int64_t count_lines(struct corpus *c, const char *path, int64_t n)
{
    FILE *file = fopen(path, "re");
    int64_t lines = 0;
    size_t got;

    while (file && n > 0 &&
           (got = fread(c->buffer, 1, (size_t)min_i64(n, sizeof c->buffer), file)) > 0) {
        for (size_t i = 0; i < got; i++)
            lines += c->buffer[i] == '\n';
        n -= (int64_t)got;
    }
    if (file)
        fclose(file);
    return lines;
}

/* Add where a document stands to its error; line 0: a whole file. Returns -1. */
static int name_document(struct corpus *c, const char *path, int64_t line)
{
    if (!line)
        return err_add(c->err, "%s", path);
    if (path == c->from_path)
        line += count_lines(c, path, c->from_offset);
    return err_add(c->err, rows_format_of(path) == ROWS_PARQUET ? "%s: row %lld" : "%s:%lld", path,
                   (long long)line);
}

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
        const struct batch_document *document = &batch->documents[batch->failed_document];

        *c->err = batch->err;
        return name_document(c, document->path, document->line);
    }
    fault_at("tokenize:writing", -1);
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
    int64_t number;  /* of the line that is being read */
    int64_t at, end; /* bytes: of what comes next, and lines from here on are left */
    size_t start;    /* of its part that is in the batch */
    bool is_open;    /* there is such a part */
};

static int line_failed(struct corpus *c, const struct jsonl_input *lines)
{
    return name_document(c, lines->path, lines->number);
}

/* Take n bytes of the file, line by line. 0, 1 where the next line is left, or -1. */
static int add_lines(struct corpus *c, struct jsonl_input *lines, const char *bytes, size_t n)
{
    while (n > 0) {
        const char *end = memchr(bytes, '\n', n);
        size_t length = end ? (size_t)(end - bytes) + 1 : n;

        if (!lines->is_open && lines->at >= lines->end)
            return 1;
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
        lines->at += (int64_t)length;
        c->n_read += (int64_t)length;
        if (end) {
            close_document(c, lines->path, lines->number++, true, lines->start);
            lines->is_open = false;
        }
    }
    return 0;
}

/* Go to the first line that begins at byte `begin` or behind it. */
static int find_line(struct corpus *c, struct jsonl_input *lines, FILE *file, int64_t begin)
{
    int byte = 0;

    if (begin == 0)
        return 0;
    if (fseeko(file, begin - 1, SEEK_SET) != 0)
        return err_set_errno(c->err, ERR_DATA, "%s", lines->path);
    lines->at = begin - 1;
    while (byte != '\n' && (byte = getc_unlocked(file)) != EOF)
        lines->at++;
    c->from_path = lines->path;
    c->from_offset = lines->at;
    return 0;
}

static int read_jsonl(struct corpus *c, const char *path, const struct file_share *share)
{
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "re");
    struct jsonl_input lines = { .path = path, .number = 1, .end = share->end };
    size_t n;

    if (!file)
        return err_set_errno(c->err, ERR_DATA, "%s", path);
    int rc = find_line(c, &lines, file, share->begin);
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
    return rc < 0 ? -1 : 0;
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

/* The byte of a file that a place of its rows stands for: of what is compressed and of parquet the
 * like share of the size. */
static int64_t byte_of(const struct rows *rows, const struct file_share *share, int64_t place)
{
    return (int64_t)((__int128)place * share->size / max_i64(rows_size(rows), 1));
}

/* The first place whose byte is in the share. */
static int64_t first_place(const struct rows *rows, const struct file_share *share)
{
    if (share->begin == 0 || share->size == 0)
        return 0;
    return (int64_t)(((__int128)share->begin * rows_size(rows) + share->size - 1) / share->size);
}

/* The rows of an open file that are in the share. */
static int add_rows(struct corpus *c, struct rows *rows, const char *path,
                    const struct file_share *share)
{
    int64_t before = c->n_read, number, place, first = first_place(rows, share);
    struct file_rows range = share->rows ? *share->rows : (struct file_rows){ 0, INT64_MAX };
    struct row row;
    int rc;

    number = rows_skip(rows, max_i64(first, range.begin));
    for (; (place = rows_place(rows)), (rc = rows_next(rows, &row, c->err)) > 0; number++) {
        if (number >= range.end || byte_of(rows, share, place) >= share->end)
            break;
        if (number < range.begin || place < first)
            continue;
        c->n_read = before + byte_of(rows, share, rows_place(rows)) - share->begin;
        if (add_row(c, path, &row) < 0)
            return -1;
    }
    c->n_read = before + min_i64(share->size, share->end) - share->begin;
    return rc < 0 ? -1 : 0;
}

static int read_rows(struct corpus *c, const char *path, enum rows_format format,
                     const struct file_share *share)
{
    struct rows *rows;

    if (!strcmp(path, "-"))
        return err_set(c->err, ERR_DATA, "standard input is read as text or jsonl alone, not as %s",
                       rows_format_names[format]);
    if (rows_open(&rows, path, format, c->options->column, c->err) < 0)
        return -1;
    int rc = add_rows(c, rows, path, share);
    rows_close(rows);
    return rc;
}

/* Text and JSONL may come from a pipe; the others are mapped. */
static int read_input(struct corpus *c, const char *path, const struct file_share *share)
{
    enum rows_format format = c->options->format;

    if (format == ROWS_AUTO)
        format = rows_format_of(path);
    if (decompress_name_length(path) < strlen(path))
        return read_rows(c, path, format == ROWS_AUTO ? ROWS_TEXT : format, share);
    if (format == ROWS_JSONL && !share->rows)
        return read_jsonl(c, path, share);
    if (format != ROWS_AUTO && format != ROWS_TEXT)
        return read_rows(c, path, format, share);
    return share->begin == 0 ? read_text(c, path) : 0;
}

/* Read all inputs; what was read before an error may have one of its own, which comes first. */
static int read_all(struct corpus *c)
{
    struct err err = { 0 };
    int rc = 0;

    for (int i = 0; i < c->files->n && rc == 0; i++) {
        struct file_share share = { .end = INT64_MAX,
                                    .size = max_i64(file_size(c->files->paths[i]), 0),
                                    .rows = c->files->ranges ? &c->files->ranges[i] : NULL };

        if (c->options->n_parts &&
            !token_share_of_file(&c->share, share.size, &share.begin, &share.end))
            continue;
        rc = read_input(c, c->files->paths[i], &share);
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

static int write_meta(const struct corpus *c, struct token_part *part)
{
    const struct corpus_counts *counts = c->counts;

    part->meta.n_documents = counts->n_documents;
    part->meta.n_tokens = counts->n_tokens;
    if (!c->options->n_parts)
        return token_meta_write(c->options->prefix, &part->meta, c->err);
    part->n_inputs = counts->n_inputs;
    part->n_empty = counts->n_empty;
    part->n_bytes = counts->n_bytes;
    return token_part_write(c->options->prefix, part, c->err);
}

/* With all inputs found. */
static int write_corpus(struct corpus *c, const struct tokenizer *tokenizer,
                        struct token_part *part)
{
    const struct corpus_options *options = c->options;
    struct batch_options batches = { tokenizer, options->column, options->end_of_text };
    int rc = -1;

    if (token_meta_check_place(options->prefix, c->err) < 0)
        return -1;
    if (indexed_writer_open(&c->writer, options->prefix, tokenizer_vocab_size(tokenizer), c->err) ==
            0 &&
        batch_pool_create(&c->pool, &batches, options->n_threads, c->err) == 0)
        rc = read_all(c);
    if (rc == 0) {
        /* Never beside tokens that it is not of. */
        token_meta_remove(options->prefix);
        rc = indexed_writer_finish(&c->writer, c->err);
    }
    fault_at("tokenize:renamed", -1);
    if (rc == 0)
        rc = write_meta(c, part);
    ordered_pool_destroy(c->pool);
    indexed_writer_abandon(&c->writer);
    return rc;
}

/* What the part is of. 1 if it is there already, then with its counts; 0, or -1. */
static int begin_part(struct corpus *c, struct token_part *part)
{
    const struct corpus_options *o = c->options;
    struct token_part old;

    part->part = o->part;
    part->n_parts = o->n_parts;
    snprintf(part->column, sizeof part->column, "%s", o->column);
    snprintf(part->format, sizeof part->format, "%s", rows_format_names[o->format]);
    if (token_part_take_inputs(part, c->files, c->err) < 0)
        return -1;
    c->share = token_share_of(part);
    c->counts->n_all_file_bytes = c->share.end - c->share.begin;
    if (!token_part_is_done(o->prefix, part, &old))
        return 0;
    c->counts->n_documents = old.meta.n_documents;
    c->counts->n_tokens = old.meta.n_tokens;
    c->counts->n_inputs = (int)old.n_inputs;
    c->counts->n_empty = old.n_empty;
    c->counts->n_bytes = old.n_bytes;
    c->counts->is_old = true;
    return 1;
}

static int tokenize_files(struct corpus *c, const struct tokenizer *tokenizer)
{
    struct token_part part = { .meta = { .vocab_size = tokenizer_vocab_size(tokenizer),
                                         .end_of_text = c->options->end_of_text } };
    int rc = 0;

    c->counts->n_found = c->files->n;
    c->counts->n_ignored = c->files->n_ignored;
    c->counts->n_all_file_bytes = all_bytes(c->files);
    tokenizer_hash_text(tokenizer, part.meta.tokenizer);
    if (c->options->n_parts)
        rc = begin_part(c, &part);
    return rc != 0 ? min_int(rc, 0) : write_corpus(c, tokenizer, &part);
}

int corpus_tokenize(const struct tokenizer *tokenizer, const struct corpus_options *options,
                    struct corpus_counts *counts, struct err *err)
{
    struct corpus *c = calloc(1, sizeof *c);
    struct row_files found = { 0 };
    int rc = 0;

    if (!c)
        return err_set(err, ERR_DEVICE, "out of host memory");
    *c = (struct corpus){
        .options = options, .counts = counts, .files = options->files, .err = err
    };
    *counts = (struct corpus_counts){ 0 };
    if (!c->files) {
        rc = row_files_find(&found, options->inputs, options->n_inputs, err);
        c->files = &found;
    }
    if (rc == 0)
        rc = tokenize_files(c, tokenizer);
    row_files_release(&found);
    free(c);
    return rc;
}
