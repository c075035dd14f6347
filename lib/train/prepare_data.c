/*
 * prepare_data.c - rows to samples, epochs to steps
 */
#include "train/prepare_data.h"

#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "config/sequence_lengths.h"
#include "data/stream/loader.h"
#include "train/instruct_job.h"

struct data_preparation {
    struct job *job;
    const struct prepare_data_hooks *hooks;
    struct arena *arena;
};

static bool is_token_file(struct arena *arena, const char *prefix)
{
    return file_exists(arena_printf(arena, "%s.idx", prefix));
}

/* Of several inputs all are rows, or none is. */
static int reads_rows(const struct data_preparation *p, struct err *err)
{
    const struct job *job = p->job;
    int n_tokens = 0;

    for (int i = 0; i < job->data.n_train; i++)
        n_tokens += is_token_file(p->arena, job->data.train[i].path);
    if (n_tokens && n_tokens < job->data.n_train)
        return err_set(
            err, ERR_CONFIG,
            "data.train has both token files and files of rows (hint: use only one kind)");
    return !n_tokens;
}

static void warn_row(void *context, const char *text)
{
    (void)context;
    log_warn("%s", text);
}

static int make_samples(const struct data_preparation *p, const char *const *inputs, int n_inputs,
                        const char *what, const char **prefix, struct err *err)
{
    struct instruct_options options;
    struct instruct_report report;
    struct str text = { 0 };
    char *path = arena_printf(p->arena, "%s/samples/%s", p->job->output, what);

    if (instruct_of_job(&options, p->job, p->arena, err) < 0)
        return -1;
    options.inputs = inputs;
    options.n_inputs = n_inputs;
    options.n_threads = p->job->threads;
    options.progress = p->hooks ? p->hooks->progress : NULL;
    options.warn = warn_row;
    options.context = p->hooks ? p->hooks->context : NULL;
    if (instruct_prepare(&options, path, &report, err) < 0)
        return err_add(err, "%s",
                       !strcmp(what, "eval")            ? "eval.data"
                       : str_starts_with(what, "eval-") ? "eval.sets"
                                                        : "data.train");
    *prefix = path;
    if (report.is_old || !p->hooks || !p->hooks->report)
        return 0;
    instruct_describe(&report, &text);
    p->hooks->report(p->hooks->context, str_text(&text));
    str_release(&text);
    return 0;
}

/* Weights of which one is not 1 ask for a blend. */
static bool is_weighted(const struct job *job)
{
    for (int i = 0; i < job->data.n_train; i++)
        if (job->data.train[i].weight != 1)
            return true;
    return false;
}

/* All inputs are one file of samples, or each has its own, SAMPLES-i. */
static int make_training(const struct data_preparation *p, struct err *err)
{
    struct job *job = p->job;
    int n = job->data.n_train;
    const char **inputs = arena_array(p->arena, const char *, n), *own;

    for (int i = 0; i < n; i++)
        inputs[i] = job->data.train[i].path;
    job->samples.are_blended = is_weighted(job);
    if (!job->samples.are_blended)
        return make_samples(p, inputs, n, "train", &job->samples.train, err);
    for (int i = 0; i < n; i++)
        if (make_samples(p, &inputs[i], 1, arena_printf(p->arena, "train-%d", i), &own, err) < 0)
            return -1;
    job->samples.train = arena_printf(p->arena, "%s/samples/train", job->output);
    return 0;
}

/* "NAME=PREFIX": the prefix. */
static const char *path_of_set(const struct job *job, int set)
{
    return strchr(job->eval.sets.values[set], '=') + 1;
}

static const char *samples_of_set(const struct job *job, int set, struct arena *arena)
{
    const char *pair = job->eval.sets.values[set];

    return arena_printf(arena, "eval-%.*s", (int)strcspn(pair, "="), pair);
}

static int make_eval_sets(const struct data_preparation *p, struct err *err)
{
    struct job *job = p->job;

    job->samples.eval_sets = arena_array(p->arena, const char *, job->eval.sets.n);
    for (int i = 0; i < job->eval.sets.n; i++) {
        const char *path = path_of_set(job, i);

        job->samples.eval_sets[i] = NULL;
        if (!is_token_file(p->arena, path) &&
            make_samples(p, &path, 1, samples_of_set(job, i, p->arena), &job->samples.eval_sets[i],
                         err) < 0)
            return -1;
    }
    return 0;
}

static int make_all(const struct data_preparation *p, struct err *err)
{
    struct job *job = p->job;

    if (make_training(p, err) < 0 || make_eval_sets(p, err) < 0)
        return -1;
    if (!job->eval.data || is_token_file(p->arena, job->eval.data))
        return 0;
    return make_samples(p, &job->eval.data, 1, "eval", &job->samples.eval, err);
}

int prepare_data_lock(const struct job *job, struct arena *arena, struct err *err)
{
    char *folder = arena_printf(arena, "%s/samples", job->output);

    if (file_make_folders(folder, err) < 0)
        return -1;
    int fd = file_open_write(arena_printf(arena, "%s/lock", folder), O_WRONLY | O_CREAT, err);
    if (fd >= 0 && flock(fd, LOCK_EX) < 0)
        log_warn("%s/lock cannot be locked", folder);
    return fd;
}

/* The same files by several processes at a time would be neither's. */
static int make_locked(const struct data_preparation *p, struct err *err)
{
    int fd = prepare_data_lock(p->job, p->arena, err);

    if (fd < 0)
        return -1;
    int status = make_all(p, err);
    close(fd);
    return status;
}

/* Steps that the epochs take, from the loader that will read them. */
static int count_steps(const struct data_preparation *p, struct err *err)
{
    struct job *job = p->job;
    int n_lengths = 0, dp = max_int(1, job->parallel.dp_given ? job->parallel.dp : 1);
    const int *lengths = job->samples.train ? lengths_of_job(job, &n_lengths, p->arena) : NULL;
    /* The steps are the same whatever a micro-batch has; the padding is not. */
    int is_even = !job->parallel.micro_batches.n && !job->parallel.micro_batches_auto &&
                  job->train.global_batch % (job->train.micro_batch * dp) == 0;
    struct loader_dataset *datasets =
        arena_array(p->arena, struct loader_dataset, job->data.n_train);
    struct loader_options options = { .datasets = datasets,
                                      .n_datasets = job->data.n_train,
                                      .samples = job->samples.train,
                                      .blends_samples = job->samples.are_blended,
                                      .packing = job->data.packing,
                                      .vocab_size = job->model.vocab_size,
                                      .seq_len = job->data.seq_len,
                                      .global_batch = job->train.global_batch,
                                      .lengths = lengths,
                                      .n_lengths = n_lengths,
                                      .micro_batch = is_even ? job->train.micro_batch * dp
                                                             : job->train.global_batch,
                                      .dp_size = 1,
                                      .seed = job->train.seed,
                                      .split = job->eval.split,
                                      .n_steps = 1,
                                      .n_epochs = job->samples.train ? job->train.epochs : 0 };
    struct loader *loader;

    for (int i = 0; i < job->data.n_train; i++)
        datasets[i] = (struct loader_dataset){ job->data.train[i].path, job->data.train[i].weight };
    if (loader_open(&loader, &options, err) < 0)
        return -1;
    struct loader_usage usage = loader_usage(loader);
    int64_t steps = job->samples.train
                        ? loader_n_steps(loader)
                        : (int64_t)ceil(job->train.epochs * (double)loader_n_samples(loader) /
                                        job->train.global_batch);
    loader_close(loader);
    if (job->samples.train && p->hooks && p->hooks->report && usage.n_rows)
        p->hooks->report(p->hooks->context,
                         arena_printf(p->arena,
                                      "%lld sample%s in %lld sequence%s of %s%d: %.1f %% of the "
                                      "positions are tokens, %.1f %% have loss\n",
                                      (long long)usage.n_samples, str_s(usage.n_samples),
                                      (long long)usage.n_sequences, str_s(usage.n_sequences),
                                      n_lengths > 1 ? "up to " : "", job->data.seq_len,
                                      100.0 * (double)usage.n_tokens / (double)usage.n_rows,
                                      100.0 * (double)usage.n_learned / (double)usage.n_rows));
    if (!job->train.steps)
        job_set_steps(job, max_i64(1, steps), p->arena);
    if (job->optimizer.warmup_steps > job->train.steps)
        return err_set(err, ERR_CONFIG,
                       "optimizer.warmup_steps is %lld, more than the %lld step%s that the epochs "
                       "need (hint: leave it out)",
                       (long long)job->optimizer.warmup_steps, (long long)job->train.steps,
                       str_s(job->train.steps));
    return 0;
}

int prepare_data(struct job *job, const struct prepare_data_hooks *hooks, struct arena *arena,
                 struct err *err)
{
    struct data_preparation p = { job, hooks, arena };
    int rows = reads_rows(&p, err);

    if (rows < 0 || (rows && make_locked(&p, err) < 0))
        return -1;
    return count_steps(&p, err);
}

void prepare_data_foresee(struct job *job, struct arena *arena)
{
    struct data_preparation p = { .job = job, .arena = arena };
    struct err ignored;

    if (job->kind == JOB_PRETRAIN || reads_rows(&p, &ignored) <= 0)
        return;
    job->samples.train = arena_printf(arena, "%s/samples/train", job->output);
    if (job->eval.data && !is_token_file(arena, job->eval.data))
        job->samples.eval = arena_printf(arena, "%s/samples/eval", job->output);
    job->samples.eval_sets = arena_array(arena, const char *, job->eval.sets.n);
    for (int i = 0; i < job->eval.sets.n; i++)
        job->samples.eval_sets[i] =
            is_token_file(arena, path_of_set(job, i))
                ? NULL
                : arena_printf(arena, "%s/samples/%s", job->output, samples_of_set(job, i, arena));
}
