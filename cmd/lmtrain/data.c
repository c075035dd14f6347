/*
 * data.c - lmtrain data: text to tokens, and a look at what came of it
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/interrupt.h"
#include "cmd.h"
#include "data/stream/dataset_stats.h"
#include "data/stream/token_meta.h"
#include "data_preview.h"
#include "data_tokenize.h"
#include "tokenizer/tokenizer.h"

#define SHOWN_TOKENS 24

struct data_request {
    const char *tokenizer; /* of inspect */
    bool json;
    int n_shown;
    struct tokenize_request tokenize;
    struct token_merge_request merge;
    struct preview_request preview; /* of preview and rows */
};

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
        data_add_quoted(out, str_text(&text), tokenizer_whole_length(str_text(&text), text.length));
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
    data_add_quoted(out, indexed->prefix, strlen(indexed->prefix));
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

static struct options options_of_tokenize(struct data_request *q, struct option *table)
{
    return tokenize_options(&q->tokenize, table);
}

static struct options options_of_merge(struct data_request *q, struct option *table)
{
    return merge_options(&q->merge, table);
}

static struct options options_of_preview(struct data_request *q, struct option *table)
{
    return preview_options(&q->preview, table);
}

static struct options options_of_rows(struct data_request *q, struct option *table)
{
    return rows_options(&q->preview, table);
}

static int run_tokenize(const struct data_request *q, const struct option_arguments *inputs,
                        struct str *out, struct err *err)
{
    return tokenize(&q->tokenize, inputs, out, err);
}

static int run_merge(const struct data_request *q, const struct option_arguments *inputs,
                     struct str *out, struct err *err)
{
    return merge_tokens(&q->merge, inputs, out, err);
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
    { "tokenize", options_of_tokenize, run_tokenize,
      "PREFIX.bin.partial is removed; the same command starts from the beginning" },
    { "merge", options_of_merge, run_merge,
      "the parts are unchanged; the same command starts over" },
    { "inspect", inspect_options, inspect, "nothing was changed" },
    { "preview", options_of_preview, run_preview, "no file is left" },
    { "rows", options_of_rows, run_rows, "nothing was changed" },
};

#define N_SUBCOMMANDS (int)(sizeof subcommands / sizeof *subcommands)

static int run(int member, int argc, char **argv)
{
    const struct data_command *command = &subcommands[member];
    struct data_request q = { .n_shown = 3,
                              .tokenize = TOKENIZE_DEFAULTS,
                              .preview = PREVIEW_DEFAULTS };
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
    static const struct cmd_family family = {
        "data", "tokenize, merge, inspect, preview or rows", N_SUBCOMMANDS, member_name, add_help,
        run
    };

    return cmd_run_family(&family, argc, argv);
}
