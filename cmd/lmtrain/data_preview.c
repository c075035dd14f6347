/*
 * data_preview.c - what training would learn of instruction data, and what rows files have
 */
#include "data_preview.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "ckpt/store.h"
#include "cmd.h"
#include "config/sequence_lengths.h"
#include "data/instruct/instruct.h"
#include "data/instruct/samples.h"
#include "data/rows/json_value.h"
#include "data/rows/rows.h"
#include "data/stream/loader.h"
#include "tokenizer/tokenizer.h"
#include "train/instruct_job.h"
#include "tuned.h"

#define LEARNED_COLOUR "\033[32m"
#define MASKED_COLOUR "\033[2m"
#define PLAIN_COLOUR "\033[0m"
#define LEARNED_BEGIN "\xe2\x9f\xa6" /* brackets that hardly stand in data */
#define LEARNED_END "\xe2\x9f\xa7"
#define WARNINGS_MAX 10
#define LENGTH_BINS 32

struct previewing {
    const struct preview_request *q;
    struct arena arena;
    const char *folder; /* for samples, and the tokenizer of a job that adds tokens */
    struct job job;     /* of a job file, else all 0 */
    bool has_job;
    struct instruct_options options;
    struct instruct_report report;
    struct tokenizer *tokenizer;
    struct samples samples;
    int n_warnings;
    struct str *out;
    struct err *err;
};

/* ---- options to instruct_options ---- */

/* The first of a table's is the default. */
static int value_of(const struct choice *choices, const char *word)
{
    return word ? choice_find(choices, word)->value : choices->value;
}

static int take_columns(struct previewing *p)
{
    const struct option_list *list = &p->q->columns;
    struct instruct_column *columns = arena_array(&p->arena, struct instruct_column, list->n);

    for (int i = 0; i < list->n; i++) {
        const char *equals = strchr(list->items[i], '=');

        if (!equals || equals == list->items[i] || !equals[1])
            return err_set(p->err, ERR_CONFIG,
                           "--columns is '%s', not FIELD=COLUMN (hint: instruction=question)",
                           list->items[i]);
        columns[i].field =
            arena_strndup(&p->arena, list->items[i], (size_t)(equals - list->items[i]));
        columns[i].column = equals + 1;
    }
    p->options.columns = columns;
    p->options.n_columns = list->n;
    return 0;
}

/* A file of rows may be JSON too, as a job that lmtrain config --json printed: it has a model. */
static bool is_json_job(const char *path)
{
    struct err ignored;
    size_t n_bytes;
    char *text;

    if (!str_ends_with(path, ".json") ||
        file_read(path, 1 << 20, ERR_DATA, &text, &n_bytes, &ignored))
        return false;
    cJSON *json = cJSON_ParseWithLength(text, n_bytes);
    int is = cJSON_HasObjectItem(json, "model") && cJSON_HasObjectItem(json, "data");
    cJSON_Delete(json);
    free(text);
    return is;
}

static bool is_job(const char *path)
{
    return str_ends_with(path, ".yaml") || str_ends_with(path, ".yml") || is_json_job(path);
}

/* What the job says instead. */
static int refuse_row_options(const struct preview_request *q, struct err *err)
{
    const struct {
        bool is_given;
        const char *option, *key;
    } rows[] = {
        { !!q->chat, "template", "data.template" },
        { !!q->format, "format", "data.format" },
        { !!q->mask, "mask", "data.mask" },
        { !!q->too_long, "too-long", "data.too_long" },
        { !!q->system, "system", "data.system" },
        { q->columns.n > 0, "columns", "data.columns" },
        { q->seq_len > 0, "seq-len", "data.seq_len" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].is_given)
            return err_set(err, ERR_CONFIG,
                           "data preview: --%s is for files of rows; a job sets it by a key (hint: "
                           "--set %s=VALUE)",
                           rows[i].option, rows[i].key);
    return 0;
}

/* As lmtrain finetune reads it, or lora where the job has adapters. */
static int read_job(struct previewing *p, const char *path)
{
    const struct option_list *list = &p->q->sets;
    const char **sets = arena_array(&p->arena, const char *, list->n + 1);
    struct err as_it_is;

    for (int i = 0; i < list->n; i++)
        sets[i] = list->items[i];
    sets[list->n] = "kind=finetune";
    if (job_read(&p->job, path, sets, list->n, &p->arena, &as_it_is) == 0 &&
        p->job.kind != JOB_PRETRAIN)
        return 0;
    return job_read(&p->job, path, sets, list->n + 1, &p->arena, p->err);
}

/* A model's folder is also a run or a checkpoint, which carries its tokenizer. */
static const char *given_tokenizer(struct previewing *p)
{
    const char *path = p->q->tokenizer;
    struct err ignored;

    if (!path || !file_is_folder(path) || tokenizer_is_in(path))
        return path;
    const char *newest = store_newest(path, &p->arena, &ignored);
    const char *own = newest ? arena_printf(&p->arena, "%s/" STORE_CARRIED, newest) : path;

    return tokenizer_is_in(own) ? own : path;
}

static int take_job(struct previewing *p, const char *path)
{
    if (refuse_row_options(p->q, p->err) < 0 || read_job(p, path) < 0)
        return -1;
    p->has_job = true;
    p->job.output = p->folder;
    if (p->q->tokenizer)
        p->job.data.tokenizer = given_tokenizer(p);
    for (int i = 0; i < p->job.data.n_train; i++)
        if (file_exists(arena_printf(&p->arena, "%s.idx", p->job.data.train[i].path)))
            return err_set(p->err, ERR_CONFIG,
                           "data preview: data.train is %s, a token file, not rows (hint: lmtrain "
                           "data inspect)",
                           p->job.data.train[i].path);
    if (tuned_tokenizer(&p->job, &p->arena, p->err) < 0)
        return -1;
    return instruct_of_job(&p->options, &p->job, &p->arena, p->err);
}

static void warn(void *context, const char *text)
{
    struct previewing *p = context;

    if (p->n_warnings++ < WARNINGS_MAX)
        fprintf(stderr, "lmtrain: skipped: %s\n", text);
}

static int take_options(struct previewing *p, const struct option_arguments *inputs)
{
    const struct preview_request *q = p->q;

    p->options = (struct instruct_options){
        .inputs = inputs->items,
        .n_inputs = inputs->n,
        .format = (enum instruct_format)value_of(instruct_format_choices, q->format),
        .tokenizer = given_tokenizer(p),
        .chat = q->chat,
        .system = q->system,
        .mask = (enum instruct_mask)value_of(instruct_mask_choices, q->mask),
        .too_long = (enum instruct_too_long)value_of(instruct_too_long_choices, q->too_long),
        .max_tokens = q->seq_len ? q->seq_len : 2048,
    };
    if (take_columns(p) < 0)
        return -1;
    if (inputs->n == 1 && is_job(inputs->items[0]) && take_job(p, inputs->items[0]) < 0)
        return -1;
    if (q->sets.n && !p->has_job)
        return err_set(
            p->err, ERR_CONFIG,
            "data preview: --set overrides a field of a job, but %s is not a job (hint: JOB.yaml)",
            inputs->items[0]);
    if (!p->options.tokenizer)
        return err_set(p->err, ERR_CONFIG,
                       "data preview: --tokenizer is missing (hint: the model's folder, or a "
                       "JOB.yaml instead of files)");
    p->options.bad_rows = INSTRUCT_BAD_SKIP; /* to see what else there is; they are counted */
    p->options.max_rows = q->max_rows;
    p->options.n_threads = q->n_threads;
    p->options.warn = warn;
    p->options.context = p;
    return 0;
}

/* ---- samples ---- */

/* Ids of one kind as text that a terminal may be shown. */
static void add_run(struct previewing *p, const int32_t *ids, int64_t n, bool is_learned,
                    bool colour)
{
    struct str text = { 0 };

    tokenizer_decode(p->tokenizer, ids, n, &text);
    if (text.length)
        str_make_printable(text.data);
    if (colour)
        str_add(p->out, is_learned ? LEARNED_COLOUR : MASKED_COLOUR);
    else if (is_learned)
        str_add(p->out, LEARNED_BEGIN);
    str_add(p->out, str_text(&text));
    if (colour)
        str_add(p->out, PLAIN_COLOUR);
    else if (is_learned)
        str_add(p->out, LEARNED_END);
    str_release(&text);
}

static void show_text(struct previewing *p, int64_t sample, const int32_t *ids,
                      const uint8_t *learned, int64_t n)
{
    int64_t n_learned = 0;
    char number[32];

    for (int64_t i = 1; i < n; i++)
        n_learned += learned[i];
    str_printf(p->out, "sample %lld: %s token%s, ", (long long)sample + 1,
               str_count(number, sizeof number, n), str_s(n));
    str_printf(p->out, "%s of them with loss\n", str_count(number, sizeof number, n_learned));
    for (int64_t start = 0, end; start < n; start = end) {
        for (end = start; end < n && learned[end] == learned[start]; end++)
            ;
        add_run(p, ids + start, end - start, learned[start], p->q->colour);
    }
    str_add(p->out, "\n\n");
}

static void show_json(struct previewing *p, int64_t sample, const int32_t *ids,
                      const uint8_t *learned, int64_t n)
{
    struct str text = { 0 };

    str_add(p->out, sample > 0 ? ", {\"ids\": [" : "{\"ids\": [");
    for (int64_t i = 0; i < n; i++)
        str_printf(p->out, i > 0 ? ",%d" : "%d", ids[i]);
    str_add(p->out, "], \"learned\": [");
    for (int64_t i = 0; i < n; i++)
        str_printf(p->out, i > 0 ? ",%d" : "%d", learned[i]);
    tokenizer_decode(p->tokenizer, ids, n, &text);
    str_add(p->out, "], \"text\": ");
    json_value_print_utf8(str_text(&text), text.length, p->out);
    str_add_char(p->out, '}');
    str_release(&text);
}

static int show_samples(struct previewing *p)
{
    int64_t n_max = p->options.max_tokens, n_shown = p->q->n_shown;
    int32_t *ids = arena_array(&p->arena, int32_t, n_max);
    uint8_t *learned = arena_array(&p->arena, uint8_t, n_max);

    for (int64_t i = 0; i < p->samples.n && i < n_shown; i++) {
        if (samples_read(&p->samples, i, ids, learned, p->err) < 0)
            return -1;
        (p->q->json ? show_json : show_text)(p, i, ids, learned, samples_length(&p->samples, i));
    }
    return 0;
}

/* ---- statistics ---- */

static void print_lengths(struct previewing *p)
{
    int64_t bins[LENGTH_BINS] = { 0 };
    char low[32], high[32], number[32];

    for (int64_t i = 0; i < p->samples.n; i++) {
        int64_t length = samples_length(&p->samples, i), b = 0;

        while (length >> b)
            b++;
        bins[b]++;
    }
    str_add(p->out, p->q->json ? ", \"lengths\": [" : "  lengths\n");
    for (int b = 1, n = 0; b < LENGTH_BINS; b++) {
        long long from = 1LL << (b - 1);

        if (bins[b] == 0)
            continue;
        if (p->q->json) {
            str_printf(p->out, "%s{\"from\": %lld, \"samples\": %lld}", n++ > 0 ? ", " : "", from,
                       (long long)bins[b]);
            continue;
        }
        int width = (int)(40 * bins[b] / p->samples.n);
        str_printf(p->out, "  %13s..%-13s %9s  %.*s\n", str_count(low, sizeof low, from),
                   str_count(high, sizeof high, 2 * from - 1),
                   str_count(number, sizeof number, bins[b]), width < 1 ? 1 : width,
                   "########################################");
    }
    if (p->q->json)
        str_add_char(p->out, ']');
}

/* How full sequences would be: packed, or padded to the job's lengths. */
static int add_usage(struct previewing *p, const char *prefix, int packing)
{
    struct loader_options options = { .samples = prefix,
                                      .vocab_size = tokenizer_vocab_size(p->tokenizer),
                                      .seq_len = p->options.max_tokens,
                                      .packing = packing,
                                      .global_batch = p->has_job ? p->job.train.global_batch : 32,
                                      .micro_batch = 1,
                                      .dp_size = 1,
                                      .n_epochs = 1 };
    struct loader *loader;
    char number[32];

    if (!packing)
        options.lengths = lengths_without_packing(&p->job.data.lengths, options.seq_len,
                                                  p->has_job ? job_length_unit(&p->job) : 1,
                                                  &options.n_lengths, &p->arena);
    if (p->has_job && p->job.train.micro_batch > 0 &&
        options.global_batch % p->job.train.micro_batch == 0)
        options.micro_batch = p->job.train.micro_batch;
    if (loader_open(&loader, &options, p->err) < 0)
        return -1;
    struct loader_usage u = loader_usage(loader);
    double full = 100.0 * (double)u.n_tokens / (double)u.n_rows;
    loader_close(loader);
    if (p->q->json) {
        str_printf(p->out, ", \"%s\": {\"sequences\": %lld, \"efficiency\": %.4f}",
                   packing ? "packed" : "padded", (long long)u.n_sequences, full / 100);
        return 0;
    }
    str_printf(p->out, "  %s %s sequence%s, %.1f %% full%s",
               packing ? "packed:" : "one each:", str_count(number, sizeof number, u.n_sequences),
               u.n_sequences == 1 ? "" : "s", full,
               packing ? " of sequences of " : " when padded to");
    for (int i = 0; i < options.n_lengths; i++)
        str_printf(p->out, "%s %d", i > 0 ? "," : "", options.lengths[i]);
    if (packing)
        str_printf(p->out, "%d", options.seq_len);
    str_add(p->out, " tokens\n");
    return 0;
}

static void print_report(struct previewing *p)
{
    const struct instruct_report *r = &p->report;

    if (!p->q->json) {
        instruct_describe(r, p->out);
        return;
    }
    str_printf(p->out,
               "\"files\": %lld, \"rows\": %lld, \"samples\": %lld, \"tokens\": %lld, "
               "\"learned\": %lld, \"cut\": %lld, \"dropped\": %lld, \"split\": %lld, "
               "\"bad\": %lld, \"blank\": %lld, \"rewritten_answers\": %lld, "
               "\"ignored_files\": %lld",
               (long long)r->n_files, (long long)r->n_rows, (long long)r->n_samples,
               (long long)r->n_tokens, (long long)r->n_learned, (long long)r->n_cut,
               (long long)r->n_dropped, (long long)r->n_split, (long long)r->n_bad,
               (long long)r->n_blank, (long long)r->n_rewritten, (long long)r->n_ignored);
}

static int show_all(struct previewing *p, const char *prefix)
{
    if (p->n_warnings > WARNINGS_MAX)
        fprintf(stderr, "lmtrain: and %lld more\n", (long long)(p->report.n_bad - WARNINGS_MAX));
    str_add(p->out, p->q->json ? "{\"first\": [" : "");
    if (show_samples(p) < 0)
        return -1;
    str_add(p->out, p->q->json ? "], " : "");
    print_report(p);
    if (add_usage(p, prefix, 1) < 0 || add_usage(p, prefix, 0) < 0)
        return -1;
    print_lengths(p);
    str_add(p->out, p->q->json ? "}\n" : "");
    return 0;
}

static int preview_rows(struct previewing *p)
{
    const char *prefix = arena_printf(&p->arena, "%s/samples", p->folder);

    if (instruct_prepare(&p->options, prefix, &p->report, p->err) < 0)
        return -1;
    if (tokenizer_open(&p->tokenizer, p->options.tokenizer, p->err) < 0)
        return -1;
    int rc = samples_open(&p->samples, prefix, tokenizer_vocab_size(p->tokenizer), p->err);
    if (rc == 0)
        rc = show_all(p, prefix);
    samples_close(&p->samples);
    tokenizer_close(p->tokenizer);
    return rc;
}

int preview(const struct preview_request *request, const struct option_arguments *inputs,
            struct str *out, struct err *err)
{
    struct preview_request q = *request;
    struct previewing p = { .q = &q, .out = out, .err = err };
    struct err ignored;

    q.colour = !q.json && (q.colour || (isatty(STDOUT_FILENO) && !getenv("NO_COLOR")));
    p.folder = cmd_scratch_folder(&p.arena, err);
    int rc = p.folder ? take_options(&p, inputs) : -1;
    if (rc == 0)
        rc = preview_rows(&p);
    if (p.folder)
        cmd_remove_scratch(p.folder, &ignored);
    arena_release(&p.arena);
    return rc;
}

/* ---- rows ---- */

static void add_row(const struct row *row, const char *path, struct str *out)
{
    if (row->kind == ROW_JSON) {
        str_add_utf8(out, row->text, row->n_bytes);
    } else if (row->kind == ROW_TEXT) {
        json_value_print_utf8(row->text, row->n_bytes, out);
    } else {
        fprintf(stderr, "lmtrain: %s:%lld: %s\n", path, (long long)row->number, row->text);
        return;
    }
    str_add_char(out, '\n');
}

static int show_file(const struct preview_request *q, const char *path, int64_t *n, struct str *out,
                     struct err *err)
{
    struct rows *rows;
    struct row row;
    int rc = 0;

    if (rows_open(&rows, path, ROWS_AUTO, q->column, err) < 0)
        return -1;
    while ((q->max_rows == 0 || *n < q->max_rows) && (rc = rows_next(rows, &row, err)) > 0) {
        ++*n;
        add_row(&row, path, out);
        if (out->length > 1 << 20) { /* they may be many */
            if (cmd_print(out))
                rc = err_set(err, ERR_FAILED, "standard output can't be written");
            str_clear(out);
        }
        if (rc < 0)
            break;
    }
    rows_close(rows);
    return rc < 0 ? -1 : 0;
}

int show_rows(const struct preview_request *q, const struct option_arguments *inputs,
              struct str *out, struct err *err)
{
    struct row_files files;
    int64_t n = 0;
    int rc = row_files_find(&files, inputs->items, inputs->n, err);

    if (rc < 0)
        return -1;
    for (int i = 0; i < files.n && rc == 0; i++)
        rc = show_file(q, files.paths[i], &n, out, err);
    row_files_release(&files);
    return rc;
}

/* ---- options ---- */

#define N_ROW_OPTIONS 8 /* of them */

/* Those that say what rows are and what is learned of them. */
static void add_row_options(struct preview_request *q, struct option *table)
{
    const struct option items[] = {
        option_text(
            "tokenizer", &q->tokenizer, "DIR",
            "model folder, run folder or checkpoint, whose tokenizer and chat template are used"),
        option_text("model", &q->tokenizer, "DIR", "synonym of --tokenizer"),
        option_text("template", &q->chat, "NAME",
                    "chat template: a name (chatml, llama3, ...) or a file of Jinja"),
        option_named("format", &q->format, "FORMAT", instruct_format_choices,
                     "format of the rows; auto: detected from the column names (default: auto)"),
        option_list("columns", &q->columns, "FIELD=COLUMN",
                    "column name of the files for a field of the format; may be repeated"),
        option_text("system", &q->system, "TEXT", "system message of conversations that have none"),
        option_named("mask", &q->mask, "MASK", instruct_mask_choices,
                     "tokens without loss: prompt (all but the answers), history (all but the "
                     "last answer) or none (default: prompt)"),
        option_named(
            "too-long", &q->too_long, "HOW", instruct_too_long_choices,
            "what happens to samples that are too long: cut, drop, split or refuse (default: cut)"),
    };

    _Static_assert(sizeof items / sizeof *items == N_ROW_OPTIONS, "see above");
    memcpy(table, items, sizeof items);
}

struct options preview_options(struct preview_request *q, struct option *table)
{
    const struct option items[] = {
        option_int("seq-len", &q->seq_len, "N", 1, 1 << 24,
                   "maximum number of tokens in a sample (default: 2048)"),
        option_int("n", &q->n_shown, "N", 0, 1000000, "show the first N samples (default: 3)"),
        option_i64("rows", &q->max_rows, "N", 1, 1e15, "read the first N rows only"),
        option_flag(
            "colour", &q->colour,
            "use colours even if the output is not a terminal: tokens with loss green, others dim"),
        option_flag("json", &q->json, "print the result as JSON"),
        cmd_option_set(&q->sets),
    };

    _Static_assert(N_ROW_OPTIONS + sizeof items / sizeof *items == PREVIEW_OPTIONS,
                   "see data_preview.h");
    add_row_options(q, table);
    memcpy(table + N_ROW_OPTIONS, items, sizeof items);
    return (struct options){
        .command = "lmtrain data preview",
        .arguments = "JOB.yaml | --tokenizer DIR IN...",
        .summary =
            "Show the samples that finetuning makes of rows of data, and which tokens have loss",
        .details = "IN is a file, a folder or a glob; JOB.yaml is a job of finetune or lora, which "
                   "sets all of these options. Tokens with loss are green, or enclosed in "
                   "\xe2\x9f\xa6 and \xe2\x9f\xa7 if the output is not a terminal. Bad rows are "
                   "reported and skipped.\nExit status: 0, 2 for usage, 3 for bad input.\n",
        .table = table,
        .n_options = PREVIEW_OPTIONS,
        .min_arguments = 1,
        .max_arguments = INT32_MAX,
    };
}

struct options rows_options(struct preview_request *q, struct option *table)
{
    const struct option items[] = {
        option_text("column", &q->column, "NAME",
                    "print only the strings of this column (CSV, parquet)"),
        option_i64("n", &q->max_rows, "N", 1, 1e15, "print the first N rows (default: all)"),
    };

    memcpy(table, items, sizeof items);
    return (struct options){
        .command = "lmtrain data rows",
        .arguments = "IN...",
        .summary = "Print the rows of files as lines of JSON",
        .details =
            "IN is a file (.json, .jsonl, .csv, .tsv, .parquet, .txt), a folder or a glob. Bad "
            "rows are reported on standard error.\nExit status: 0, 2 for usage, 3 for bad "
            "input.\n",
        .table = table,
        .n_options = sizeof items / sizeof *items,
        .min_arguments = 1,
        .max_arguments = INT32_MAX,
    };
}
