/*
 * corpus.c - reading inputs, tokenizing, writing
 */
#include "data/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "data/indexed_writer.h"
#include "data/jsonl.h"

#define TEXT_BYTES_MAX ((size_t)8 << 30)
#define LINE_BYTES_MAX ((size_t)256 << 20)

struct corpus {
    const struct tokenizer *tokenizer;
    const struct corpus_options *options;
    struct tokenizer_cache *cache;
    struct indexed_writer writer;
    struct token_list ids;
    struct corpus_counts *counts;
    struct err *err;
};

static int add_document(struct corpus *c, const char *text, size_t n_bytes)
{
    if (n_bytes == 0) {
        c->counts->n_empty++;
        return 0;
    }
    c->ids.n = 0;
    if (tokenizer_encode_cached(c->tokenizer, c->cache, text, n_bytes, &c->ids, c->err) < 0)
        return -1;
    if (c->ids.n == 0) { /* SentencePiece makes nothing of white space alone */
        c->counts->n_empty++;
        return 0;
    }
    int32_t end_of_text = c->options->end_of_text;
    if (end_of_text >= 0 && token_list_add(&c->ids, end_of_text, c->err) < 0)
        return -1;
    if (indexed_writer_add(&c->writer, c->ids.ids, c->ids.n, c->err) < 0)
        return -1;
    c->counts->n_documents++;
    c->counts->n_bytes += (int64_t)n_bytes;
    c->counts->n_tokens = c->writer.n_tokens;
    if (c->options->progress)
        c->options->progress(c->options->context, c->counts);
    return 0;
}

static int read_text(struct corpus *c, const char *path)
{
    const char *from = strcmp(path, "-") == 0 ? "/dev/stdin" : path;
    size_t n_bytes;
    char *text;

    if (file_read(from, TEXT_BYTES_MAX, ERR_DATA, &text, &n_bytes, c->err) < 0)
        return -1;
    int rc = add_document(c, text, n_bytes);
    free(text);
    return rc < 0 ? err_add(c->err, "%s", path) : 0;
}

/* One line; a blank one is passed over. */
static int read_line(struct corpus *c, const char *line, size_t n_bytes, struct str *text)
{
    if (strspn(line, " \t\r\n") == n_bytes)
        return 0;
    str_clear(text);
    if (jsonl_text(line, n_bytes, c->options->column, text, c->err) < 0)
        return -1;
    return add_document(c, str_text(text), text->length);
}

struct line {
    char *text; /* ends with 0 */
    size_t n_bytes, capacity;
};

/*
 * The next line, its end included: 1, or 0 at the end of the file, or -1. getline() would take a
 * line of any length, and its running out of memory looks like the end of the file.
 */
static int next_line(FILE *file, struct line *line, struct err *err)
{
    int c = 0;

    line->n_bytes = 0;
    while (c != '\n' && (c = getc_unlocked(file)) != EOF) {
        if (line->n_bytes == LINE_BYTES_MAX)
            return err_set(err, ERR_DATA, "the line is longer than %zu bytes", LINE_BYTES_MAX);
        if (line->n_bytes + 1 >= line->capacity) {
            size_t capacity = line->capacity ? 2 * line->capacity : 4096;
            char *grown = realloc(line->text, capacity);

            if (!grown)
                return err_set(err, ERR_DEVICE, "out of host memory");
            line->text = grown;
            line->capacity = capacity;
        }
        line->text[line->n_bytes++] = (char)c;
    }
    if (c == EOF && ferror(file))
        return err_set_errno(err, ERR_DATA, "cannot be read");
    if (line->n_bytes)
        line->text[line->n_bytes] = '\0';
    return line->n_bytes > 0;
}

static int read_jsonl(struct corpus *c, const char *path)
{
    int is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "re");
    struct str text = { 0 };
    struct line line = { 0 };
    int64_t number = 0;
    int rc;

    if (!file)
        return err_set_errno(c->err, ERR_DATA, "%s", path);
    do {
        number++;
        rc = next_line(file, &line, c->err);
        if (rc == 1 && read_line(c, line.text, line.n_bytes, &text) < 0)
            rc = -1;
    } while (rc == 1);
    if (rc < 0)
        err_add(c->err, "%s:%lld", path, (long long)number);
    free(line.text);
    str_release(&text);
    if (!is_stdin)
        fclose(file);
    return rc;
}

static int read_input(struct corpus *c, const char *path)
{
    enum corpus_format format = c->options->format;

    if (format == CORPUS_AUTO) {
        int is_json = str_ends_with(path, ".jsonl") || str_ends_with(path, ".json");

        format = is_json ? CORPUS_JSONL : CORPUS_TEXT;
    }
    return format == CORPUS_JSONL ? read_jsonl(c, path) : read_text(c, path);
}

int corpus_tokenize(const struct tokenizer *tokenizer, const struct corpus_options *options,
                    struct corpus_counts *counts, struct err *err)
{
    struct corpus c = { .tokenizer = tokenizer, .options = options, .counts = counts, .err = err };
    int rc = 0;

    *counts = (struct corpus_counts){ 0 };
    if (indexed_writer_open(&c.writer, options->prefix, tokenizer_vocab_size(tokenizer), err) < 0)
        return -1;
    c.cache = tokenizer_cache_create();
    for (int i = 0; i < options->n_inputs && rc == 0; i++) {
        rc = read_input(&c, options->inputs[i]);
        counts->n_inputs += rc == 0;
    }
    if (rc == 0)
        rc = indexed_writer_finish(&c.writer, err);
    indexed_writer_abandon(&c.writer);
    tokenizer_cache_destroy(c.cache);
    token_list_release(&c.ids);
    return rc;
}
