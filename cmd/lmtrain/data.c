/*
 * data.c - lmtrain data: text to tokens, and a look at what came of it
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "cmd.h"
#include "data/stream/corpus.h"
#include "data/stream/dataset_stats.h"
#include "data/stream/token_meta.h"
#include "data_preview.h"
#include "report/progress_line.h"
#include "tokenizer/tokenizer.h"

#define SHOWN_TOKENS 24

struct data_request {
    const char *tokenizer, *prefix, *column, *format;
    bool no_eod, json;
    int n_shown, n_threads;
    struct preview_request preview; /* of preview and rows */
};

/* Text as a JSON string: nothing in it can harm a terminal or a reader. */
static void add_quoted(struct str *out, const char *text, size_t n_bytes)
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

static void print_counts(const struct data_request *q, const struct corpus_counts *counts,
                         double seconds, struct str *out)
{
    double rate = (double)counts->n_tokens / (seconds > 0 ? seconds : 1e-9);
    char tokens[32], documents[32], bytes[32], duration[32];

    if (q->json) {
        str_add(out, "{\"prefix\": ");
        add_quoted(out, q->prefix, strlen(q->prefix));
        str_printf(out,
                   ", \"inputs\": %d, \"documents\": %lld, \"empty\": %lld, \"tokens\": %lld, "
                   "\"bytes\": %lld, \"seconds\": %.3f, \"tokens_per_s\": %.0f}\n",
                   counts->n_inputs, (long long)counts->n_documents, (long long)counts->n_empty,
                   (long long)counts->n_tokens, (long long)counts->n_bytes, seconds, rate);
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

/*
 * The prefix that --out means: with .bin or .idx it is that file's; in a folder, which ends in a
 * slash or is there, it is called like the one input, or tokens. Returns 0, or -1 and ERR_CONFIG.
 */
static int find_prefix(struct data_request *q, const struct option_arguments *inputs,
                       struct arena *arena, struct err *err)
{
    const char *given = q->prefix;
    size_t length = strlen(given);

    if (length == 0)
        return err_set(err, ERR_CONFIG,
                       "data tokenize: --out is empty, not a PREFIX (hint: --out "
                       "data/NAME writes data/NAME.bin and data/NAME.idx)");
    if (file_is_folder(given) || given[length - 1] == '/') {
        const char *name = inputs->n == 1 ? name_of(inputs->items[0], arena) : "tokens";

        q->prefix = arena_printf(arena, given[length - 1] == '/' ? "%s%s" : "%s/%s", given, name);
    } else if (length > 4 && given[length - 5] != '/' &&
               (str_ends_with(given, ".bin") || str_ends_with(given, ".idx"))) {
        q->prefix = arena_strndup(arena, given, length - 4);
    }
    return 0;
}

static int tokenize_to(const struct data_request *q, const struct option_arguments *inputs,
                       struct str *out, struct err *err)
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
    if (rc == 0 && counts.n_tokens == 0)
        fputs("lmtrain: warn: the input has no text, so the token file is empty and cannot be "
              "trained on\n",
              stderr);
    if (rc == 0)
        print_counts(q, &counts, clock_seconds() - progress.begin, out);
    tokenizer_close(tokenizer);
    return rc;
}

static int tokenize(const struct data_request *given, const struct option_arguments *inputs,
                    struct str *out, struct err *err)
{
    struct data_request q = *given;
    struct arena arena = { 0 };
    int rc;

    if (!q.tokenizer)
        return err_set(
            err, ERR_CONFIG,
            "data tokenize: --tokenizer is missing (hint: --tokenizer DIR, a folder with "
            "tokenizer.json)");
    if (!q.prefix)
        return err_set(err, ERR_CONFIG,
                       "data tokenize: --out is missing (hint: --out PREFIX, for PREFIX.bin and "
                       "PREFIX.idx)");
    rc = find_prefix(&q, inputs, &arena, err);
    if (rc == 0)
        rc = tokenize_to(&q, inputs, out, err);
    arena_release(&arena);
    return rc;
}

/* ---- inspect ---- */

/* The first tokens of a document, decoded if there is a tokenizer. */
static int show_document(const struct data_request *q, const struct indexed *indexed,
                         const struct tokenizer *tokenizer, int64_t document, struct str *out,
                         struct err *err)
{
    int64_t start = indexed_document_start(indexed, document);
    int64_t length = indexed_document_start(indexed, document + 1) - start;
    int64_t n = length < SHOWN_TOKENS ? length : SHOWN_TOKENS;
    int32_t tokens[SHOWN_TOKENS];
    struct str text = { 0 };

    if (indexed_read(indexed, start, n, INT32_MAX, tokens, err) < 0)
        return -1;
    str_printf(out,
               q->json ? "%s{\"document\": %lld, \"length\": %lld, \"tokens\": ["
                       : "%sdocument %lld, %lld token%s: ",
               q->json && document > 0 ? ", " : "", (long long)document, (long long)length,
               str_s(length));
    if (tokenizer)
        tokenizer_decode(tokenizer, tokens, n, &text);
    for (int64_t i = 0; i < n && (q->json || !tokenizer); i++)
        str_printf(out, i > 0 ? ", %d" : "%d", tokens[i]);
    if (q->json)
        str_add(out, "]");
    if (q->json && tokenizer)
        str_add(out, ", \"text\": ");
    if (tokenizer)
        add_quoted(out, str_text(&text), tokenizer_whole_length(str_text(&text), text.length));
    str_add(out, q->json ? "}" : n < length ? " ...\n" : "\n");
    str_release(&text);
    return 0;
}

/* meta: NULL if nothing is known. */
static void print_meta(const struct token_meta *meta, struct str *out)
{
    char number[32];

    if (!meta) {
        str_add(out, "  tokenizer   unknown: there is no .json of lmtrain data tokenize\n");
        return;
    }
    str_printf(out, "  tokenizer   %s, of %s tokens", meta->tokenizer,
               str_count(number, sizeof number, meta->vocab_size));
    if (meta->end_of_text >= 0)
        str_printf(out, ", documents end with %d", meta->end_of_text);
    str_add_char(out, '\n');
}

static void print_census(const struct indexed *indexed, const struct dataset_stats *census,
                         const struct token_meta *meta, int end_of_text, struct str *out)
{
    char number[32], bytes[32], low[32], high[32];

    str_printf(out, "%s\n", indexed->prefix);
    str_printf(
        out, "  tokens      %s (%s, %s)\n", str_count(number, sizeof number, indexed->n_tokens),
        indexed_type_name(indexed->type), str_bytes(bytes, sizeof bytes, indexed->bin.n_bytes));
    print_meta(meta, out);
    str_printf(out, "  documents   %s", str_count(number, sizeof number, indexed->n_documents));
    str_printf(out, " of %s", str_count(low, sizeof low, census->shortest));
    str_printf(out, " to %s token%s\n", str_count(high, sizeof high, census->longest),
               str_s(census->longest));
    if (end_of_text >= 0)
        str_printf(out, "  ended       %s of them end with the end-of-text token %d\n",
                   str_count(number, sizeof number, census->n_ended), end_of_text);
    if (indexed->n_sequences != indexed->n_documents)
        str_printf(out, "  sequences   %s\n",
                   str_count(number, sizeof number, indexed->n_sequences));
    str_printf(out, "  ids         up to %d\n  lengths\n", census->greatest_token);
    for (int b = 0; b < DATASET_STATS_BINS; b++) {
        int64_t n = census->n_by_length[b], from = b > 0 ? (int64_t)1 << (b - 1) : 0;

        if (n == 0)
            continue;
        int width = (int)(40 * n / indexed->n_documents);
        str_printf(out, "  %13s..%-13s %9s  %.*s\n", str_count(low, sizeof low, from),
                   str_count(high, sizeof high, b > 0 ? from * 2 - 1 : 0),
                   str_count(number, sizeof number, n), width < 1 ? 1 : width,
                   "########################################");
    }
}

static void print_census_json(const struct indexed *indexed, const struct dataset_stats *census,
                              const struct token_meta *meta, int end_of_text, struct str *out)
{
    str_add(out, "{\"prefix\": ");
    add_quoted(out, indexed->prefix, strlen(indexed->prefix));
    str_printf(out,
               ", \"type\": \"%s\", \"tokens\": %lld, \"documents\": %lld, \"sequences\": %lld, "
               "\"shortest\": %lld, \"longest\": %lld, \"greatest_token\": %d, ",
               indexed_type_name(indexed->type), (long long)indexed->n_tokens,
               (long long)indexed->n_documents, (long long)indexed->n_sequences,
               (long long)census->shortest, (long long)census->longest, census->greatest_token);
    if (meta)
        str_printf(out, "\"tokenizer\": \"%s\", \"vocab_size\": %d, ", meta->tokenizer,
                   meta->vocab_size);
    if (end_of_text >= 0)
        str_printf(out, "\"ended\": %lld, ", (long long)census->n_ended);
    str_add(out, "\"lengths\": [");
    for (int b = 0, n = 0; b < DATASET_STATS_BINS; b++)
        if (census->n_by_length[b] > 0)
            str_printf(out, "%s{\"from\": %lld, \"documents\": %lld}", n++ > 0 ? ", " : "",
                       b > 0 ? 1LL << (b - 1) : 0, (long long)census->n_by_length[b]);
    str_add(out, "], \"first\": [");
}

static int inspect_file(const struct data_request *q, const struct indexed *indexed,
                        const struct tokenizer *tokenizer, struct str *out, struct err *err)
{
    int vocab_size = tokenizer ? tokenizer_vocab_size(tokenizer) : INT32_MAX;
    int end_of_text = tokenizer ? tokenizer_end_of_text(tokenizer) : -1;
    struct dataset_stats census;
    struct token_meta meta;
    int found = token_meta_read(indexed->prefix, &meta, err);

    if (found < 0 || dataset_stats_take(&census, indexed, vocab_size, end_of_text, err) < 0)
        return -1;
    if (q->json)
        print_census_json(indexed, &census, found ? &meta : NULL, end_of_text, out);
    else
        print_census(indexed, &census, found ? &meta : NULL, end_of_text, out);
    for (int64_t d = 0; d < indexed->n_documents && d < q->n_shown; d++)
        if (show_document(q, indexed, tokenizer, d, out, err) < 0)
            return -1;
    if (q->json)
        str_add(out, "]}\n");
    return 0;
}

static int inspect(const struct data_request *q, const struct option_arguments *inputs,
                   struct str *out, struct err *err)
{
    struct tokenizer *tokenizer = NULL;
    struct indexed indexed;
    char hash[TOKENIZER_HASH_BYTES] = "";

    if (q->tokenizer && tokenizer_open(&tokenizer, q->tokenizer, err) < 0)
        return -1;
    if (tokenizer)
        tokenizer_hash_text(tokenizer, hash);
    int rc = token_meta_compare(inputs->items[0], hash, q->tokenizer,
                                "no --tokenizer, or the other", err);
    if (rc == 0)
        rc = indexed_open(&indexed, inputs->items[0], err);
    if (rc == 0) {
        rc = inspect_file(q, &indexed, tokenizer, out, err);
        indexed_close(&indexed);
    }
    tokenizer_close(tokenizer);
    return rc;
}

/* ---- the command ---- */

#define OPTIONS_MAX 16

/* The options of a subcommand, in table, which set fields of q. */
static struct options tokenize_options(struct data_request *q, struct option *table)
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
        option_flag("json", &q->json, "print the result as JSON"),
    };

    memcpy(table, items, sizeof items);
    return (struct options){
        .command = "lmtrain data tokenize",
        .arguments = "--tokenizer DIR --out PREFIX IN...",
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
        .min_arguments = 1,
        .max_arguments = INT32_MAX,
    };
}

static struct options inspect_options(struct data_request *q, struct option *table)
{
    const struct option items[] = {
        option_text("tokenizer", &q->tokenizer, "DIR",
                    "check ids against this tokenizer's vocabulary, and show the text"),
        option_int("n", &q->n_shown, "N", 0, 1000000,
                   "show the start of the first N documents (default: 3)"),
        option_flag("json", &q->json, "print the result as JSON"),
    };

    memcpy(table, items, sizeof items);
    return (struct options){
        .command = "lmtrain data inspect",
        .arguments = "PREFIX",
        .summary = "Check a whole token file and show its contents",
        .details = "Exit status: 0, 2 for usage, 3 if the file is broken.\n",
        .table = table,
        .n_options = sizeof items / sizeof *items,
        .min_arguments = 1,
        .max_arguments = 1,
    };
}

static struct options options_of_preview(struct data_request *q, struct option *table)
{
    return preview_options(&q->preview, table);
}

static struct options options_of_rows(struct data_request *q, struct option *table)
{
    return rows_options(&q->preview, table);
}

static int run_preview(const struct data_request *q, const struct option_arguments *inputs,
                       struct str *out, struct err *err)
{
    return preview(&q->preview, inputs, out, err);
}

static int run_rows(const struct data_request *q, const struct option_arguments *inputs,
                    struct str *out, struct err *err)
{
    return show_rows(&q->preview, inputs, out, err);
}

static const struct data_command {
    const char *name;
    struct options (*options)(struct data_request *q, struct option *table);
    int (*run)(const struct data_request *q, const struct option_arguments *inputs, struct str *out,
               struct err *err);
    const char *stop_words; /* at a signal */
} subcommands[] = {
    { "tokenize", tokenize_options, tokenize,
      "PREFIX.bin.partial is removed; the same command starts from the beginning" },
    { "inspect", inspect_options, inspect, "nothing was changed" },
    { "preview", options_of_preview, run_preview, "no file is left" },
    { "rows", options_of_rows, run_rows, "nothing was changed" },
};

#define N_SUBCOMMANDS (int)(sizeof subcommands / sizeof *subcommands)

static int run(int member, int argc, char **argv)
{
    const struct data_command *command = &subcommands[member];
    struct data_request q = {
        .column = "text", .format = "auto", .n_shown = 3, .preview = PREVIEW_DEFAULTS
    };
    struct option table[OPTIONS_MAX];
    struct options options = command->options(&q, table);
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct str out = { 0 };
    struct err err = { 0 };
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    interrupt_catch(command->stop_words);
    if (status < 0)
        status = command->run(&q, &arguments, &out, &err) < 0 ? cmd_fail(&err) : cmd_print(&out);
    str_release(&out);
    arena_release(&arena);
    return status;
}

static const char *member_name(int member)
{
    return subcommands[member].name;
}

static void add_help(int member, struct str *out)
{
    struct data_request q = { 0 };
    struct option table[OPTIONS_MAX];
    struct options options = subcommands[member].options(&q, table);

    options_help(&options, cmd_columns(), out);
}

int cmd_data(int argc, char **argv)
{
    static const struct cmd_family family = { "data",        "tokenize, inspect, preview or rows",
                                              N_SUBCOMMANDS, member_name,
                                              add_help,      run };

    return cmd_run_family(&family, argc, argv);
}
