/*
 * data_merge.c - lmtrain data merge: parts, or any token files, to one
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "cmd.h"
#include "data/stream/token_merge.h"
#include "data/stream/token_part.h"
#include "data_tokenize.h"
#include "report/progress_line.h"

static void show_progress(void *context, int64_t done_bytes, int64_t all_bytes)
{
    struct progress_line *line = context;
    char left[PROGRESS_LEFT_BYTES], share[32], bytes[32];
    double done = (double)done_bytes, all = fmax((double)all_bytes, 1);

    if (!progress_line_is_due(line))
        return;
    snprintf(share, sizeof share, "copied %.0f %%", 100 * done / all);
    progress_line_left(line, done, all, left);
    str_bytes(bytes, sizeof bytes, (uint64_t)done_bytes);
    progress_line_show(line, (const char *const[]){ share, left, bytes }, 3);
}

static void print_report(const struct token_merge_request *q, const char *prefix,
                         const struct token_merge_report *report, double seconds, struct str *out)
{
    char tokens[32], documents[32], duration[32];

    if (q->json) {
        str_add(out, "{\"prefix\": ");
        data_add_quoted(out, prefix, strlen(prefix));
        str_printf(
            out, ", \"files\": %d, \"documents\": %lld, \"tokens\": %lld, \"seconds\": %.3f}\n",
            report->n_files, (long long)report->n_documents, (long long)report->n_tokens, seconds);
        return;
    }
    str_printf(out, "%s.bin, .idx: %s token%s in %s document%s, from %d token file%s; %s\n", prefix,
               str_count(tokens, sizeof tokens, report->n_tokens), str_s(report->n_tokens),
               str_count(documents, sizeof documents, report->n_documents),
               str_s(report->n_documents), report->n_files, str_s(report->n_files),
               str_duration(duration, sizeof duration, seconds));
}

int merge_tokens(const struct token_merge_request *q, const struct option_arguments *inputs,
                 struct str *out, struct err *err)
{
    struct arena arena = { 0 };
    const char *prefix = data_find_prefix(inputs->items[0], "tokens", &arena), **prefixes;
    struct token_merge_report report;
    struct progress_line progress;
    int n = inputs->n - 1, rc = fault_init(0, 0, err);

    if (rc == 0 && n > 0 && q->n_parts)
        rc = err_set(err, ERR_CONFIG, "--parts %d and %s are both given (hint: one of them)",
                     q->n_parts, inputs->items[1]);
    if (rc == 0 && n == 0) {
        rc = token_merge_find_parts(prefix, q->n_parts, &prefixes, &n, &arena, err);
    } else if (rc == 0) {
        prefixes = arena_array(&arena, const char *, n);
        for (int i = 0; i < n; i++)
            prefixes[i] = data_find_prefix(inputs->items[1 + i], "tokens", &arena);
    }
    if (rc == 0) {
        file_share(FILE_UMASK);
        progress_line_begin(&progress, 2);
        rc = token_merge(prefix, prefixes, n, show_progress, &progress, &report, err);
        progress_line_end(&progress);
    }
    if (rc == 0)
        print_report(q, prefix, &report, clock_seconds() - progress.begin, out);
    arena_release(&arena);
    return rc;
}

struct options merge_options(struct token_merge_request *q, struct option *table)
{
    const struct option items[] = {
        option_int("parts", &q->n_parts, "N", 1, TOKEN_PARTS_MAX,
                   "merge the parts of N (default: as many as PREFIX has)"),
        option_flag("json", &q->json, "print the result as JSON"),
    };

    memcpy(table, items, sizeof items);
    return (struct options){
        .command = "lmtrain data merge",
        .arguments = "PREFIX [IN...]",
        .summary =
            "Merge the parts that data tokenize --part wrote, or other token files, into one",
        .details = "Without IN: PREFIX.part-1-of-N and so on become PREFIX, which is then byte for "
                   "byte what one run without --part writes. IN are prefixes of token files of one "
                   "tokenizer, in the order of the output. Inputs stay.\nExit status: 0, 1 if the "
                   "output can't be written, 2 for usage, 3 if an input is missing, broken or does "
                   "not belong to the others.\n",
        .table = table,
        .n_options = sizeof items / sizeof *items,
        .min_arguments = 1,
        .max_arguments = INT32_MAX,
    };
}
