/*
 * config.c - lmtrain config: a job as lmtrain understands it
 */
#include <string.h>

#include "cmd.h"
#include "config/embedded.h"
#include "config/job.h"
#include "config/man_fields.h"
#include "train/lr.h"

struct config_request {
    const char *explain;
    bool schema, json, man, models, lr;
    struct option_list sets;
    int ranks;
};

static int print_lr(const struct config_request *q, const struct job *job, struct str *out,
                    struct err *err)
{
    if (!job->train.steps)
        return err_set(err, ERR_CONFIG,
                       "lmtrain config --lr: train.steps of %g epochs are known once the data is "
                       "read (hint: --set train.steps=N)",
                       job->train.epochs);
    lr_print(job, q->json, out);
    return 0;
}

/* The job, and as comments what was derived. The number of ranks is the job's or the option's. */
static int print_job(const struct config_request *q, const char *path, struct arena *arena,
                     struct str *out, struct err *err)
{
    struct job job;

    if (job_read(&job, path, q->sets.items, q->sets.n, arena, err))
        return -1;
    job_log_warnings(&job);
    int ranks = q->ranks ? q->ranks : job.ranks;
    if (ranks && !job.parallel.micro_batches_auto && job_derive(&job, ranks, arena, err))
        return -1;
    if (q->lr)
        return print_lr(q, &job, out, err);
    if (q->json) {
        job_print_json(&job, out);
        return 0;
    }
    job_print(&job, out);
    for (int i = 0; i < job.n_notes; i++)
        str_printf(out, i ? "# %s\n" : "\n# %s\n", job.notes[i]);
    if (!job.train.steps)
        str_printf(out,
                   "# train.steps = auto: as many as %g epoch%s need, known once the data is read; "
                   "so is optimizer.warmup_steps\n",
                   job.train.epochs, job.train.epochs == 1 ? " takes" : "s take");
    struct err gap;
    if (job_check_built(&job, &gap))
        str_printf(out, "# %s\n", gap.text);
    return 0;
}

static int list_models(struct str *out)
{
    static const char folder[] = "configs/models/";

    for (int i = 0; i < n_embedded_files; i++) {
        const struct embedded_file *file = &embedded_files[i];
        const char *text = file->text + strspn(file->text, "# ");

        if (!str_starts_with(file->path, folder))
            continue;
        const char *name = file->path + strlen(folder);
        str_printf(out, "%-14.*s %.*s\n", (int)(strlen(name) - strlen(".yaml")), name,
                   (int)strcspn(text, "\n"), text);
    }
    return 0;
}

static int answer(const struct config_request *q, const struct option_arguments *arguments,
                  struct arena *arena, struct str *out, struct err *err)
{
    int n = !!q->explain + q->schema + q->man + q->models + arguments->n;

    if (n != 1)
        return err_set(err, ERR_CONFIG,
                       "lmtrain config: give one of JOB.yaml, --schema, --explain KEY, --models");
    if (q->lr && !arguments->n)
        return err_set(err, ERR_CONFIG, "lmtrain config: --lr without JOB.yaml");
    if (q->explain)
        return job_explain(!strcmp(q->explain, "all") ? "" : q->explain, out, err);
    if (q->models)
        return list_models(out);
    if (q->schema)
        job_schema(out);
    else if (q->man)
        job_manual(out);
    else
        return print_job(q, arguments->items[0], arena, out, err);
    return 0;
}

int cmd_config(int argc, char **argv)
{
    struct config_request q = { 0 };
    const struct option table[] = {
        cmd_option_set(&q.sets),
        option_int("ranks", &q.ranks, "N", 1, 1000000,
                   "resolve the job for N ranks; overrides ranks of the job"),
        option_flag("json", &q.json, "print the job as JSON, without the notes"),
        option_flag("lr", &q.lr,
                    "print the learning rate over the steps of the job instead; with --json: a "
                    "list of {step, lr}"),
        option_text("explain", &q.explain, "KEY",
                    "explain a field or all fields of a group; all: every field"),
        option_flag("schema", &q.schema, "print a JSON Schema of job files, for editors"),
        option_flag("models", &q.models, "list the built-in models"),
    };
    const struct options options = {
        .command = "lmtrain config",
        .arguments = "[JOB.yaml]",
        .summary =
            "Print a job with the value of every field, and how derived values were computed",
        .details = "Exit status: 0, or 2 if the job or the command line is wrong.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
        .max_arguments = 1,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct str out = { 0 };
    struct err err;

    /* For the maintainers: how man/lmtrain-job.5 is made. */
    if (argc == 2 && !strcmp(argv[1], "--man")) {
        q.man = true;
        argc = 1;
    }
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);
    if (status < 0)
        status = answer(&q, &arguments, &arena, &out, &err) ? cmd_fail(&err) : cmd_print(&out);
    str_release(&out);
    arena_release(&arena);
    return status;
}
