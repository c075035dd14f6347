/*
 * data_tokenize.c - lmtrain data tokenize: text to tokens, all of it or a part
 */
#include "data_tokenize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "cmd.h"
#include "data/rows/hf_dataset.h"
#include "data/stream/corpus.h"
#include "data/stream/token_part.h"
#include "report/progress_line.h"
#include "tokenizer/tokenizer.h"

void data_add_quoted(struct str *out, const char *text, size_t n_bytes)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t length;

    str_add_char(out, '"');
    for (size_t at = 0; at < n_bytes; at += length) {
        int valid = str_utf8_length(bytes + at, n_bytes - at);

        length = valid ? (size_t)valid : 1;
        if (!valid)
            str_add(out, "\\ufffd");
        else if (bytes[at] == '"' || bytes[at] == '\\')
            str_printf(out, "\\%c", bytes[at]);
        else if (bytes[at] == '\n')
            str_add(out, "\\n");
        else if (bytes[at] < 0x20 || bytes[at] == 0x7f)
            str_printf(out, "\\u%04x", bytes[at]);
        else if (bytes[at] == 0xc2 && bytes[at + 1] < 0xa0)
            str_printf(out, "\\u%04x", bytes[at + 1]);
        else
            str_add_bytes(out, text + at, length);
    }
    str_add_char(out, '"');
}

static void show_progress(void *context, const struct corpus_counts *counts)
{
    struct progress_line *line = context;
    char share[32] = "", left[PROGRESS_LEFT_BYTES], inputs[48], tokens[48], number[32], speed[64];
    double seconds = clock_seconds() - line->begin, all = (double)counts->n_all_file_bytes;
    double done = (double)counts->n_file_bytes;

    if (!progress_line_is_due(line))
        return;
    if (all > 0)
        snprintf(share, sizeof share, "tokenized %.0f %%", 100 * fmin(done / all, 1));
    progress_line_left(line, done, all, left);
    snprintf(inputs, sizeof inputs, "%d/%d inputs", counts->n_inputs, counts->n_found);
    snprintf(tokens, sizeof tokens, "%s tokens",
             str_count(number, sizeof number, counts->n_tokens));
    snprintf(speed, sizeof speed, "%.2f M tokens/s, %.1f MB/s",
             (double)counts->n_tokens / seconds * 1e-6, (double)counts->n_bytes / seconds * 1e-6);
    progress_line_show(line, (const char *const[]){ share, left, inputs, tokens, speed }, 5);
}

static void print_counts(const struct tokenize_request *q, const struct corpus_counts *counts,
                         double seconds, struct str *out)
{
    double rate = (double)counts->n_tokens / (seconds > 0 ? seconds : 1e-9);
    char tokens[32], documents[32], bytes[32], duration[32];

    if (counts->is_old && !q->json) {
        str_printf(out, "%s.bin, .idx: complete already (%s token%s in %s document%s)\n", q->prefix,
                   str_count(tokens, sizeof tokens, counts->n_tokens), str_s(counts->n_tokens),
                   str_count(documents, sizeof documents, counts->n_documents),
                   str_s(counts->n_documents));
        return;
    }
    if (q->json) {
        str_add(out, "{\"prefix\": ");
        data_add_quoted(out, q->prefix, strlen(q->prefix));
        str_printf(out,
                   ", \"inputs\": %d, \"documents\": %lld, \"empty\": %lld, \"tokens\": %lld, "
                   "\"bytes\": %lld, \"seconds\": %.3f, \"tokens_per_s\": %.0f, "
                   "\"complete_already\": %s}\n",
                   counts->n_inputs, (long long)counts->n_documents, (long long)counts->n_empty,
                   (long long)counts->n_tokens, (long long)counts->n_bytes, seconds, rate,
                   counts->is_old ? "true" : "false");
        return;
    }
    str_printf(out, "%s.bin, .idx: %s token%s in %s document%s, from %s of text", q->prefix,
               str_count(tokens, sizeof tokens, counts->n_tokens), str_s(counts->n_tokens),
               str_count(documents, sizeof documents, counts->n_documents),
               str_s(counts->n_documents),
               str_bytes(bytes, sizeof bytes, (uint64_t)counts->n_bytes));
    if (counts->n_tokens > 0)
        str_printf(out, " (%.2f bytes a token)",
                   (double)counts->n_bytes / (double)counts->n_tokens);
    str_printf(out, "; %s, %.2f M tokens/s, %.1f MB/s\n",
               str_duration(duration, sizeof duration, seconds), rate * 1e-6,
               (double)counts->n_bytes / (seconds > 0 ? seconds : 1e-9) * 1e-6);
    if (counts->n_empty > 0)
        str_printf(out, "left out: %s empty document%s\n",
                   str_count(documents, sizeof documents, counts->n_empty), str_s(counts->n_empty));
}

/* The name of a file or folder without the endings of rows and text, in arena; "tokens" of
 * others. */
static const char *name_of(const char *input, struct arena *arena)
{
    static const char *const endings[] = { ".gz",    ".xz",  ".zst", ".txt",    ".json",
                                           ".jsonl", ".csv", ".tsv", ".parquet" };
    char *path = arena_strdup(arena, input);
    size_t length = strlen(path);

    while (length > 0 && path[length - 1] == '/')
        path[--length] = '\0';
    const char *slash = strrchr(path, '/');
    char *name = path + (slash ? slash + 1 - path : 0);

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (str_ends_with(name, endings[i]))
            name[strlen(name) - strlen(endings[i])] = '\0';
    return !*name || name[0] == '.' || name[0] == '-' || strpbrk(name, "*?[") ? "tokens" : name;
}

const char *data_find_prefix(const char *given, const char *name, struct arena *arena)
{
    size_t length = strlen(given);

    if (file_is_folder(given) || str_ends_with(given, "/"))
        return arena_printf(arena, str_ends_with(given, "/") ? "%s%s" : "%s/%s", given, name);
    if (length > 4 && given[length - 5] != '/' &&
        (str_ends_with(given, ".bin") || str_ends_with(given, ".idx")))
        return arena_strndup(arena, given, length - 4);
    return given;
}

/* ---- parts ---- */

/* A variable of Slurm's; -1 if it is none or no number. */
static int64_t slurm_number(const char *name)
{
    const char *text = getenv(name);
    int64_t value;

    return text && str_to_i64(text, &value) == 0 && value >= 0 ? value : -1;
}

static int part_of_slurm(int *part, int *n_parts, struct err *err)
{
    int64_t id = slurm_number("SLURM_ARRAY_TASK_ID"), first = slurm_number("SLURM_ARRAY_TASK_MIN");
    int64_t n = slurm_number("SLURM_ARRAY_TASK_COUNT"),
            step = slurm_number("SLURM_ARRAY_TASK_STEP");

    if (id < 0 || first < 0 || n < 0)
        return err_set(err, ERR_CONFIG,
                       "--part auto needs SLURM_ARRAY_TASK_ID, _MIN and _COUNT, which are not set "
                       "(hint: sbatch --array=1-N, or --part I/N)");
    step = step > 0 ? step : 1;
    if (n < 1 || n > TOKEN_PARTS_MAX || id < first || (id - first) % step != 0 ||
        (id - first) / step >= n)
        return err_set(err, ERR_CONFIG,
                       "--part auto: task %lld of an array of %lld from %lld on has no place in it "
                       "(hint: sbatch --array=1-N, without gaps)",
                       (long long)id, (long long)n, (long long)first);
    *part = (int)((id - first) / step) + 1;
    *n_parts = (int)n;
    return 0;
}

int data_parse_part(const char *text, int *part, int *n_parts, struct err *err)
{
    const char *slash = strchr(text, '/');
    char number[16];
    int64_t i = 0, n = 0;

    if (!strcmp(text, "auto"))
        return part_of_slurm(part, n_parts, err);
    snprintf(number, sizeof number, "%.*s", slash ? (int)(slash - text) : 0, text);
    if (!slash || slash - text >= (int)sizeof number || str_to_i64(number, &i) < 0 ||
        str_to_i64(slash + 1, &n) < 0 || n < 1 || n > TOKEN_PARTS_MAX || i < 1 || i > n)
        return err_set(err, ERR_CONFIG,
                       "--part is %.40s, not I/N with I from 1 to N, N at most %d, or auto (hint: "
                       "--part 1/8 to --part 8/8, then lmtrain data merge)",
                       text, TOKEN_PARTS_MAX);
    *part = (int)i;
    *n_parts = (int)n;
    return 0;
}

/* files: of --hf-dataset, or NULL. */
static int tokenize_to(const struct tokenize_request *q, const struct option_arguments *inputs,
                       const struct row_files *files, int part, int n_parts, struct str *out,
                       struct err *err)
{
    struct progress_line progress;
    struct corpus_options options = {
        .inputs = inputs->items,
        .n_inputs = inputs->n,
        .column = q->column,
        .prefix = q->prefix,
        .end_of_text = -1,
        .n_threads = q->n_threads,
        .progress = show_progress,
        .context = &progress,
        .files = files,
        .part = part,
        .n_parts = n_parts,
    };
    struct tokenizer *tokenizer;
    struct corpus_counts counts;

    while (strcmp(rows_format_names[options.format], q->format) != 0)
        options.format++;
    if (tokenizer_open(&tokenizer, q->tokenizer, err) < 0)
        return -1;
    int rc = -1;
    file_share(FILE_UMASK);
    progress_line_begin(&progress, 2); /* the speed is that of tokenizing, without reading tables */
    if (!q->no_eod)
        options.end_of_text = tokenizer_end_of_text(tokenizer);
    if (!q->no_eod && options.end_of_text < 0)
        err_set(err, ERR_DATA, "%s has no end-of-text token (hint: --no-eod)", q->tokenizer);
    else
        rc = corpus_tokenize(tokenizer, &options, &counts, err);
    progress_line_end(&progress);
    if (rc == 0 && counts.n_tokens == 0 && !n_parts)
        fputs("lmtrain: warn: the input has no text, so the token file is empty and cannot be "
              "trained on\n",
              stderr);
    if (rc == 0)
        print_counts(q, &counts, clock_seconds() - progress.begin, out);
    tokenizer_close(tokenizer);
    return rc;
}

/* Inputs come from the command line or from a description of a dataset, and from one of them. */
static int check_inputs(const struct tokenize_request *q, const struct option_arguments *inputs,
                        struct err *err)
{
    if (!q->tokenizer)
        return err_set(
            err, ERR_CONFIG,
            "data tokenize: --tokenizer is missing (hint: --tokenizer DIR, a folder with "
            "tokenizer.json)");
    if (!q->prefix || !*q->prefix)
        return err_set(err, ERR_CONFIG,
                       "data tokenize: --out is %s (hint: --out PREFIX, such as data/NAME for "
                       "data/NAME.bin and data/NAME.idx)",
                       q->prefix ? "empty, not a PREFIX" : "missing");
    if (q->hf_dataset && inputs->n > 0)
        return err_set(err, ERR_CONFIG, "%s and --hf-dataset %s are both given (hint: one of them)",
                       inputs->items[0], q->hf_dataset);
    if (!q->hf_dataset && inputs->n == 0)
        return err_set(err, ERR_CONFIG,
                       "data tokenize: IN is missing (hint: files, folders, a glob, -, or "
                       "--hf-dataset FILE)");
    return 0;
}

int tokenize(const struct tokenize_request *given, const struct option_arguments *inputs,
             struct str *out, struct err *err)
{
    struct tokenize_request q = *given;
    struct row_files files = { 0 };
    struct arena arena = { 0 };
    int part = 0, n_parts = 0, rc = check_inputs(&q, inputs, err);

    if (rc == 0 && q.part)
        rc = data_parse_part(q.part, &part, &n_parts, err);
    if (rc == 0)
        rc = fault_init(0, 0, err);
    if (rc == 0 && q.hf_dataset)
        rc = hf_dataset_find(&files, q.hf_dataset, err);
    if (rc == 0) {
        const char *name =
            q.hf_dataset || inputs->n != 1 ? "tokens" : name_of(inputs->items[0], &arena);

        q.prefix = data_find_prefix(q.prefix, name, &arena);
        if (n_parts)
            q.prefix = token_part_prefix(&arena, q.prefix, part, n_parts);
        rc = tokenize_to(&q, inputs, q.hf_dataset ? &files : NULL, part, n_parts, out, err);
    }
    row_files_release(&files);
    arena_release(&arena);
    return rc;
}

struct options tokenize_options(struct tokenize_request *q, struct option *table)
{
    const struct option items[] = {
        option_text("tokenizer", &q->tokenizer, "DIR",
                    "folder with tokenizer.json or tokenizer.model, or that file"),
        option_text("out", &q->prefix, "PREFIX",
                    "write PREFIX.bin, PREFIX.idx and PREFIX.json (which names the tokenizer); if "
                    "PREFIX is a folder (DIR/), files are named after the input, or tokens if "
                    "there are several inputs"),
        option_text("column", &q->column, "NAME", "column that holds the text (default: text)"),
        option_choice(
            "format", &q->format, "FORMAT", rows_format_names,
            "format of IN; auto: from the file name's extension, else text (default: auto)"),
        option_int("threads", &q->n_threads, "N", 1, 256,
                   "number of threads (default: one per core); the output does not depend on it"),
        option_int("workers", &q->n_threads, "N", 1, 256, "synonym of --threads"),
        option_flag("no-eod", &q->no_eod, "do not append an end-of-text token to each document"),
        option_text(
            "part", &q->part, "I/N",
            "only part I (from 1) of N parts of equal size, as PREFIX.part-I-of-N.*, unless "
            "it exists already; auto: by this task of a Slurm array; lmtrain data merge "
            "PREFIX makes PREFIX of all of them"),
        option_text("hf-dataset", &q->hf_dataset, "FILE",
                    "in place of IN: JSON with the arguments of datasets.load_dataset (path, name, "
                    "split, data_files, ...) for a local folder"),
        option_text("hf-datasets-params", &q->hf_dataset, "FILE", "synonym of --hf-dataset"),
        option_flag("json", &q->json, "print the result as JSON"),
    };

    memcpy(table, items, sizeof items);
    return (struct options){
        .command = "lmtrain data tokenize",
        .arguments = "--tokenizer DIR --out PREFIX IN... | --hf-dataset FILE",
        .summary =
            "Tokenize text files and rows into a token file, byte for byte as megatron-core does",
        .details =
            "A text file is one document; each row of JSON, JSONL, CSV or parquet is one document. "
            "IN is a "
            "file, a folder, a glob or - for standard input.\nExit status: 0, 1 if the output "
            "can't be written, 2 for usage, 3 for bad "
            "input.\n",
        .table = table,
        .n_options = sizeof items / sizeof *items,
        .min_arguments = 0,
        .max_arguments = INT32_MAX,
    };
}
