/*
 * check_eval.c - what a job says of evaluations, and of the checkpoints that are kept by them
 */
#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "base/str.h"
#include "config/read_impl.h"

/* A name is a part of keys and of TensorBoard's tags. */
static void check_eval_sets(struct job_reader *r)
{
    const struct job_texts *sets = &r->job->eval.sets;

    for (int i = 0; i < sets->n; i++) {
        const char *pair = sets->values[i];
        size_t n = strcspn(pair, "=");
        bool is_name = n > 0 && n <= 64;

        for (size_t k = 0; k < n; k++)
            is_name &= isalnum((unsigned char)pair[k]) || pair[k] == '_' || pair[k] == '-';
        if (!is_name)
            diagnostics_add(&r->mistakes, reader_given(r, "eval.sets"),
                            "eval.sets has a set by the name %.*s (hint: at most 64 letters, "
                            "digits, - and _)",
                            (int)min_i64((int64_t)n, 80), pair);
    }
}

/* The metric's name, as it is written for a set. */
static bool is_metric_of(const char *metric, const char *pair)
{
    size_t n = strcspn(pair, "=");

    return !strncmp(metric, "eval.", 5) && !strncmp(metric + 5, pair, n) &&
           !strcmp(metric + 5 + n, ".loss");
}

static void check_metric(struct job_reader *r)
{
    const struct job *job = r->job;
    bool is_known = !strcmp(job->checkpoint.metric, "eval.loss");
    struct str names = { 0 };

    for (int i = 0; i < job->eval.sets.n; i++) {
        const char *pair = job->eval.sets.values[i];

        is_known |= is_metric_of(job->checkpoint.metric, pair);
        str_printf(&names, " or eval.%.*s.loss", (int)strcspn(pair, "="), pair);
    }
    if (!is_known)
        diagnostics_add(&r->mistakes, reader_given(r, "checkpoint.metric"),
                        "checkpoint.metric is %.100s (hint: eval.loss%.300s)",
                        job->checkpoint.metric, str_text(&names));
    str_release(&names);
}

/* A checkpoint counts only if its step is evaluated. */
static void check_keep_best(struct job_reader *r, int has_data)
{
    const struct job *job = r->job;
    int64_t save = job->checkpoint.every_steps, eval = job->eval.every_steps;

    check_metric(r);
    if (!job->checkpoint.keep_best)
        return;
    if (!has_data || !eval)
        diagnostics_add(&r->mistakes, reader_given(r, "checkpoint.keep_best"),
                        "checkpoint.keep_best is given, but there are no evaluations (hint: give "
                        "eval.every_steps, and eval.data, eval.sets or eval.split)");
    else if (save && save % eval != 0 && eval % save != 0)
        diagnostics_add(&r->mistakes, reader_given(r, "checkpoint.keep_best"),
                        "checkpoint.keep_best needs checkpoints of steps that are evaluated, but "
                        "eval.every_steps is %lld and checkpoint.every_steps %lld (hint: one a "
                        "multiple of the other)",
                        (long long)eval, (long long)save);
}

void reader_check_eval(struct job_reader *r)
{
    const struct job *job = r->job;
    int has_data = job->eval.data || job->eval.split > 0 || job->eval.sets.n;

    if (job->eval.data && job->eval.split > 0)
        diagnostics_add(&r->mistakes, reader_given(r, "eval.split"),
                        "eval.split is given together with eval.data (hint: give one of them)");
    if (job->eval.every_steps > 0 && !has_data)
        diagnostics_add(&r->mistakes, reader_given(r, "eval.every_steps"),
                        "eval.every_steps is given, but there is no data to evaluate on (hint: "
                        "eval.split: 0.01 or "
                        "eval.data)");
    check_eval_sets(r);
    check_keep_best(r, has_data);
    if (job->eval.patience > 0 && job->eval.every_steps == 0)
        diagnostics_add(
            &r->mistakes, reader_given(r, "eval.early_stop.patience"),
            "eval.early_stop is given, but there are no evaluations (hint: give eval.every_steps)");
}
