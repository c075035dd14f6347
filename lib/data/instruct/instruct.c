/*
 * instruct.c - all rows of all files to one file of samples
 *
 * The caller's thread reads rows into batches of about a MiB, threads make samples of them, and the
 * caller writes them in the order of the rows. PREFIX.json is written last: without it, or with
 * another key in it, all rows are processed again.
 */
#include "data/instruct/instruct.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/file.h"
#include "data/instruct/instruct_impl.h"
#include "data/instruct/samples.h"
#include "data/rows/json_value.h"
#include "data/rows/rows.h"
#include "data/stream/ordered_pool.h"

#define FORMAT_VERSION 2 /* of what is made: with another, old files are made again */
#define BATCH_BYTES ((size_t)1 << 20)
#define BATCH_ROWS 1024
#define BATCH_WARNINGS 16 /* bad rows of a batch that are named; the rest is counted */
#define STATE_BYTES_MAX ((size_t)1 << 20)

/* Rows, and the samples made of them: what one thread works on at a time. */
struct instruct_batch {
    struct str text; /* of all its rows */
    struct batch_row {
        const char *path; /* borrowed */
        enum row_kind kind;
        int64_t number;
        size_t start, n_bytes;
    } rows[BATCH_ROWS];
    int n_rows;
    struct instruct_samples samples;
    struct instruct_report counts;
    struct str warnings; /* each with a 0 byte behind it */
    bool failed;
    struct err err;
};

struct instruct_preparation {
    const struct instruct_options *options;
    const char *prefix;
    struct tokenizer *tokenizer;
    struct row_files files;
    struct indexed_writer writer;
    struct ordered_pool *ordered;
    struct instruct_batch *batch; /* being filled, or NULL */
    bool failed;                  /* in writing: nothing more is written */
    struct instruct_report *report;
    struct err *err;
};

/* ---- in the threads ---- */

static void name_row(struct err *err, const struct batch_row *row)
{
    if (row->number == 0)
        err_add(err, "%s", row->path);
    else if (rows_format_of(row->path) == ROWS_PARQUET)
        err_add(err, "%s: row %lld", row->path, (long long)row->number);
    else
        err_add(err, "%s:%lld", row->path, (long long)row->number);
}

static void work(void *batch_of, void *worker)
{
    struct instruct_batch *batch = batch_of;
    struct instruct_maker *maker = worker;

    for (int i = 0; i < batch->n_rows && !batch->failed; i++) {
        const struct batch_row *from = &batch->rows[i];
        struct row row = { from->kind, str_text(&batch->text) + from->start, from->n_bytes,
                           from->number };
        struct err err = { 0 };

        if (instruct_make(maker, &row, &batch->samples, &batch->counts, &err) == 0)
            continue;
        name_row(&err, from);
        if (err.code != ERR_DATA || maker->options->bad_rows == INSTRUCT_BAD_REFUSE) {
            batch->failed = true;
            batch->err = err;
        } else if (++batch->counts.n_bad <= BATCH_WARNINGS) {
            str_add(&batch->warnings, err.text);
            str_add_char(&batch->warnings, '\0');
        }
    }
}

static int start_worker(void *worker, void *context, struct err *err)
{
    const struct instruct_preparation *p = context;

    return instruct_maker_open(worker, p->options, p->tokenizer, err);
}

static void release_worker(void *worker)
{
    instruct_maker_close(worker);
}

static void release_job(void *batch_of)
{
    struct instruct_batch *batch = batch_of;

    str_release(&batch->text);
    str_release(&batch->warnings);
    instruct_samples_release(&batch->samples);
}

/* ---- writing ---- */

static void add_counts(struct instruct_report *sum, const struct instruct_report *counts)
{
    sum->n_samples += counts->n_samples;
    sum->n_tokens += counts->n_tokens;
    sum->n_learned += counts->n_learned;
    sum->n_cut += counts->n_cut;
    sum->n_dropped += counts->n_dropped;
    sum->n_split += counts->n_split;
    sum->n_bad += counts->n_bad;
    sum->n_blank += counts->n_blank;
    sum->n_rewritten += counts->n_rewritten;
}

static void warn_of(const struct instruct_preparation *p, const struct instruct_batch *batch)
{
    const char *text = str_text(&batch->warnings), *end = text + batch->warnings.length;

    for (; p->options->warn && text < end; text += strlen(text) + 1)
        p->options->warn(p->options->context, text);
}

/* 1, or 0 if there is no batch, or -1. */
static int write_oldest(struct instruct_preparation *p)
{
    struct instruct_batch *batch = ordered_pool_take(p->ordered);
    int64_t start = 0;

    if (!batch)
        return 0;
    warn_of(p, batch);
    if (batch->failed) {
        *p->err = batch->err;
        return -1;
    }
    for (int i = 0; i < batch->samples.n; start = batch->samples.ends[i++])
        if (samples_writer_add(&p->writer, batch->samples.ids.ids + start,
                               batch->samples.learned + start, batch->samples.ends[i] - start,
                               p->err) < 0)
            return -1;
    add_counts(p->report, &batch->counts);
    if (p->options->progress)
        p->options->progress(p->options->context, p->report->n_rows, p->report->n_tokens);
    return 1;
}

/* The oldest batch's samples: 1, or 0 if there is none, or -1 with the first failure's error. */
static int write_batch(struct instruct_preparation *p)
{
    int rc = p->failed ? -1 : write_oldest(p);

    p->failed = rc < 0;
    return rc;
}

static int write_all(struct instruct_preparation *p)
{
    int rc;

    if (p->batch)
        ordered_pool_submit(p->ordered);
    p->batch = NULL;
    while ((rc = write_batch(p)) > 0)
        ;
    return rc;
}

/* ---- reading ---- */

static void clear_batch(struct instruct_batch *batch)
{
    str_clear(&batch->text);
    str_clear(&batch->warnings);
    instruct_samples_clear(&batch->samples);
    batch->counts = (struct instruct_report){ 0 };
    batch->n_rows = 0;
}

/* The batch that takes the next row; NULL on failure. */
static struct instruct_batch *open_batch(struct instruct_preparation *p)
{
    if (p->batch && (p->batch->text.length >= BATCH_BYTES || p->batch->n_rows == BATCH_ROWS)) {
        ordered_pool_submit(p->ordered);
        p->batch = NULL;
    }
    while (!p->batch) {
        p->batch = ordered_pool_next(p->ordered);
        if (p->batch)
            clear_batch(p->batch);
        else if (write_batch(p) < 0)
            return NULL;
    }
    return p->batch;
}

static int add_row(struct instruct_preparation *p, const char *path, const struct row *row)
{
    struct instruct_batch *batch = open_batch(p);

    if (!batch)
        return -1;
    batch->rows[batch->n_rows++] =
        (struct batch_row){ path, row->kind, row->number, batch->text.length, row->n_bytes };
    str_add_bytes(&batch->text, row->text, row->n_bytes);
    str_add_char(&batch->text, '\0');
    p->report->n_rows++;
    return 0;
}

static bool is_enough(const struct instruct_preparation *p)
{
    return p->options->max_rows > 0 && p->report->n_rows >= p->options->max_rows;
}

static int read_file(struct instruct_preparation *p, const char *path)
{
    struct rows *rows;
    struct row row;
    int rc;

    if (rows_open(&rows, path, ROWS_AUTO, NULL, p->err) < 0)
        return -1;
    while (!is_enough(p) && (rc = rows_next(rows, &row, p->err)) != 0) {
        rc = rc > 0 ? add_row(p, path, &row) : -1;
        if (rc < 0) {
            rows_close(rows);
            return -1;
        }
    }
    p->report->n_files++;
    rows_close(rows);
    return 0;
}

/* What was read before an error may have one of its own, which comes first. */
static int read_all(struct instruct_preparation *p)
{
    int rc = 0;

    for (int i = 0; i < p->files.n && rc == 0 && !is_enough(p); i++)
        rc = read_file(p, p->files.paths[i]);
    if (rc == 0)
        return write_all(p);
    struct err err = *p->err;
    if (write_all(p) == 0)
        *p->err = err;
    return -1;
}

/* ---- whether it is there already ---- */

static void hash_text(XXH64_hash_t *hash, const char *text)
{
    *hash = text ? XXH64(text, strlen(text) + 1, *hash) : XXH64("", 0, *hash + 1);
}

/* Contents, of what changes what is made. */
static void hash_file(XXH64_hash_t *hash, const char *folder, const char *name)
{
    struct str path = { 0 };
    struct file_map map;
    struct err err;

    str_printf(&path, "%s%s%s", folder, *name ? "/" : "", name);
    if (!file_is_folder(str_text(&path)) && file_exists(str_text(&path)) &&
        file_map_open(&map, str_text(&path), &err) == 0) {
        *hash = XXH64(map.data, map.data ? map.n_bytes : 0, *hash + 1);
        file_map_close(&map);
    }
    str_release(&path);
}

static void hash_options(XXH64_hash_t *hash, const struct instruct_options *o)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer.model",
                                         "tokenizer_config.json", "special_tokens_map.json",
                                         "chat_template.jinja" };
    int64_t numbers[] = { FORMAT_VERSION, o->format,   o->mask,       o->too_long,
                          o->bad_rows,    o->max_rows, o->max_tokens, o->n_columns };

    *hash = XXH64(numbers, sizeof numbers, *hash);
    for (int i = 0; i < o->n_columns; i++) {
        hash_text(hash, o->columns[i].field);
        hash_text(hash, o->columns[i].column);
    }
    hash_text(hash, o->system);
    hash_text(hash, o->chat);
    if (o->chat)
        hash_file(hash, o->chat, "");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        hash_file(hash, o->tokenizer, names[i]);
    hash_file(hash, o->tokenizer, "");
}

static uint64_t compute_key(const struct instruct_preparation *p)
{
    XXH64_hash_t hash = 0;

    hash_options(&hash, p->options);
    for (int i = 0; i < p->files.n; i++) {
        struct stat st = { 0 };

        hash_text(&hash, p->files.paths[i]);
        if (stat(p->files.paths[i], &st) == 0) {
            int64_t what[] = { (int64_t)st.st_size, (int64_t)st.st_mtim.tv_sec,
                               (int64_t)st.st_mtim.tv_nsec };
            hash = XXH64(what, sizeof what, hash);
        }
    }
    return hash;
}

/* The counts by name, for PREFIX.json and back. */
static int64_t *count_at(struct instruct_report *r, int i, const char **name)
{
    const struct {
        const char *name;
        int64_t *count;
    } counts[] = {
        { "files", &r->n_files },   { "ignored", &r->n_ignored },
        { "rows", &r->n_rows },     { "samples", &r->n_samples },
        { "tokens", &r->n_tokens }, { "learned", &r->n_learned },
        { "cut", &r->n_cut },       { "dropped", &r->n_dropped },
        { "split", &r->n_split },   { "bad", &r->n_bad },
        { "blank", &r->n_blank },   { "rewritten", &r->n_rewritten },
    };

    if (i >= (int)(sizeof counts / sizeof *counts))
        return NULL;
    *name = counts[i].name;
    return counts[i].count;
}

static int write_state(const struct instruct_preparation *p, uint64_t key)
{
    struct str text = { 0 }, path = { 0 };
    const char *name;
    int64_t *count;

    str_printf(&text, "{\"key\":\"%016llx\"", (unsigned long long)key);
    for (int i = 0; (count = count_at(p->report, i, &name)); i++)
        str_printf(&text, ",\"%s\":%lld", name, (long long)*count);
    str_add(&text, "}\n");
    str_printf(&path, "%s.json", p->prefix);
    int rc = file_write(str_text(&path), str_text(&text), text.length, p->err);
    str_release(&text);
    str_release(&path);
    return rc;
}

static int parse_state(const char *text, size_t n_bytes, uint64_t key,
                       struct instruct_report *report)
{
    struct arena arena = { 0 };
    struct json_value *state;
    struct err err;
    const char *name;
    char hex[24];
    int64_t *count;
    bool is_same = false;

    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)key);
    if (json_value_parse(&state, text, n_bytes, &arena, &err) == 0) {
        const struct json_value *old = json_value_get(state, "key");

        is_same = old && old->kind == JSON_STRING && !strcmp(old->text, hex);
        for (int i = 0; is_same && (count = count_at(report, i, &name)); i++) {
            const struct json_value *number = json_value_get(state, name);

            is_same = number && number->kind == JSON_NUMBER && str_to_i64(number->text, count) == 0;
        }
    }
    arena_release(&arena);
    return is_same;
}

/* Whether PREFIX.* are what would be made; *report then says what was. */
static bool is_there(struct instruct_preparation *p, uint64_t key)
{
    struct instruct_report report = { .is_old = true };
    struct samples samples;
    struct str path = { 0 };
    struct err err;
    char *text;
    size_t n_bytes;
    bool is_same = false;

    str_printf(&path, "%s.json", p->prefix);
    if (file_exists(str_text(&path)) &&
        file_read(str_text(&path), STATE_BYTES_MAX, ERR_DATA, &text, &n_bytes, &err) == 0) {
        is_same = parse_state(text, n_bytes, key, &report);
        free(text);
    }
    str_release(&path);
    if (!is_same || samples_open(&samples, p->prefix, tokenizer_vocab_size(p->tokenizer), &err) < 0)
        return false;
    is_same = samples.n == report.n_samples && samples.tokens.n_tokens == report.n_tokens;
    samples_close(&samples);
    if (is_same)
        *p->report = report;
    return is_same;
}

/* ---- all of it ---- */

static int check_options(const struct instruct_options *o, struct err *err)
{
    CHECK(o->tokenizer);
    CHECK(o->max_tokens >= 1);
    for (int i = 0; i < o->n_columns; i++)
        if (!conversation_is_field(o->columns[i].field)) {
            int n = 0;
            while (conversation_fields[n])
                n++;
            const char *near = str_nearest(o->columns[i].field, conversation_fields, n);
            return err_set(err, ERR_CONFIG, "data.columns: there is no field '%s'%s%s%s",
                           o->columns[i].field, near ? " (hint: " : "", near ? near : "",
                           near ? ")" : "");
        }
    return 0;
}

static int refuse_nothing(struct instruct_preparation *p)
{
    const struct instruct_report *r = p->report;

    if (r->n_samples > 0)
        return 0;
    if (r->n_rows == 0)
        return err_set(p->err, ERR_DATA,
                       "%s has no rows (hint: one row of JSON per line, such as {\"instruction\": "
                       "..., \"output\": ...})",
                       p->options->inputs[0]);
    return err_set(p->err, ERR_DATA,
                   "%s: its %lld row%s gave no sample (%lld bad, %lld blank, %lld too long)",
                   p->options->inputs[0], (long long)r->n_rows, str_s(r->n_rows),
                   (long long)r->n_bad, (long long)r->n_blank, (long long)r->n_dropped);
}

static int prepare(struct instruct_preparation *p)
{
    struct ordered_pool_options ordered = { .work = work,
                                            .n_threads = p->options->n_threads,
                                            .job_bytes = sizeof(struct instruct_batch),
                                            .worker_bytes = sizeof(struct instruct_maker),
                                            .release_job = release_job,
                                            .start_worker = start_worker,
                                            .release_worker = release_worker,
                                            .context = p };

    if (row_files_find(&p->files, p->options->inputs, p->options->n_inputs, p->err) < 0)
        return -1;
    uint64_t key = compute_key(p);
    if (is_there(p, key))
        return 0;
    *p->report = (struct instruct_report){ .n_ignored = p->files.n_ignored };
    if (samples_writer_open(&p->writer, p->prefix, tokenizer_vocab_size(p->tokenizer), p->err) < 0)
        return -1;
    if (ordered_pool_create(&p->ordered, &ordered, p->err) < 0 || read_all(p) < 0 ||
        refuse_nothing(p) < 0)
        return -1;
    if (indexed_writer_finish(&p->writer, p->err) < 0)
        return -1;
    return write_state(p, key);
}

int instruct_prepare(const struct instruct_options *options, const char *prefix,
                     struct instruct_report *report, struct err *err)
{
    struct instruct_report counts = { 0 };
    struct instruct_preparation p = {
        .options = options, .prefix = prefix, .report = &counts, .err = err
    };

    if (check_options(options, err) < 0 ||
        tokenizer_open(&p.tokenizer, options->tokenizer, err) < 0)
        return -1;
    int rc = prepare(&p);
    ordered_pool_destroy(p.ordered);
    indexed_writer_abandon(&p.writer);
    row_files_release(&p.files);
    tokenizer_close(p.tokenizer);
    if (rc == 0)
        *report = counts;
    return rc;
}

static void add_count(struct str *out, int64_t n, const char *one, const char *many)
{
    char number[32];

    if (n > 0)
        str_printf(out, "  %s %s\n", str_count(number, sizeof number, n), n == 1 ? one : many);
}

void instruct_describe(const struct instruct_report *r, struct str *out)
{
    char samples[32], rows[32], tokens[32];
    double share = r->n_tokens > 0 ? 100.0 * (double)r->n_learned / (double)r->n_tokens : 0;

    str_printf(
        out, "%s sample%s from %s row%s of %lld file%s: %s token%s, %.1f %% of them with loss%s\n",
        str_count(samples, sizeof samples, r->n_samples), r->n_samples == 1 ? "" : "s",
        str_count(rows, sizeof rows, r->n_rows), r->n_rows == 1 ? "" : "s", (long long)r->n_files,
        r->n_files == 1 ? "" : "s", str_count(tokens, sizeof tokens, r->n_tokens),
        str_s(r->n_tokens), share, r->is_old ? " (cached)" : "");
    add_count(out, r->n_cut, "was too long and truncated", "were too long and truncated");
    add_count(out, r->n_dropped, "was too long and dropped", "were too long and dropped");
    add_count(out, r->n_split, "more sample from splitting long texts",
              "more samples from splitting long texts");
    add_count(out, r->n_blank, "had no tokens with loss and was dropped",
              "had no tokens with loss and were dropped");
    add_count(
        out, r->n_rewritten,
        "answer has no loss, because the template renders it differently when more turns follow",
        "answers have no loss, because the template renders them differently when more turns "
        "follow (it removes their thinking; hint: a data.template with {% generation %} blocks, or "
        "one that keeps the thinking)");
    add_count(out, r->n_bad, "bad row was skipped", "bad rows were skipped");
    add_count(out, r->n_ignored, "file of an unknown format was ignored",
              "files of an unknown format were ignored");
}
