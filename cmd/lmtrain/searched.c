/*
 * searched.c - a search's layout, or that of the run that is resumed
 */
#include "searched.h"

#include <string.h>

#include "base/log.h"
#include "ckpt/store.h"
#include "cmd.h"
#include "device/pool.h"
#include "kernels/kernels.h"
#include "plan/step_time.h"
#include "plan_layout.h"
#include "plan_sizes.h"
#include "plan_subject.h"
#include "ranks.h"

/* ---- what is passed to the ranks ---- */

static void add_layout(const struct job *job, struct option_list *sets, struct arena *arena)
{
    struct str value = { 0 };

    cmd_add_set(sets, "parallel.mode=manual", arena);
    for (int key = 0; key < N_LAYOUT_KEYS; key++) {
        str_clear(&value);
        layout_print_value(job, (enum layout_key)key, &value);
        cmd_add_set(
            sets,
            arena_printf(arena, "%s=%s", layout_field((enum layout_key)key), str_text(&value)),
            arena);
    }
    if (job->parallel.gradient_sum_given)
        cmd_add_set(
            sets,
            arena_printf(arena, "parallel.gradient_sum=%s",
                         choice_word(gradient_sum_choices, (int)job->parallel.gradient_sum)),
            arena);
    str_release(&value);
}

/* The list, and its largest, which is train.micro_batch. */
static void add_sizes(const struct job *job, struct option_list *sets, struct arena *arena)
{
    const struct job_counts *sizes = &job->parallel.micro_batches;
    struct str list = { 0 };

    for (int i = 0; i < sizes->n; i++)
        str_printf(&list, i ? ", %d" : "%d", sizes->values[i]);
    cmd_add_set(sets, arena_printf(arena, "parallel.micro_batches=[%s]", str_text(&list)), arena);
    cmd_add_set(sets, arena_printf(arena, "train.micro_batch=%d", job->train.micro_batch), arena);
    str_release(&list);
}

static void add_prediction(const struct job *job, struct option_list *sets, struct arena *arena)
{
    if (!job->searched.cluster)
        return;
    cmd_add_set(sets, arena_printf(arena, "searched.cluster=%s", job->searched.cluster), arena);
    cmd_add_set(sets, arena_printf(arena, "searched.predicted_ms=%.3f", job->searched.predicted_ms),
                arena);
}

/* ---- the run that is resumed ---- */

/* Whether the run is there, with a layout. */
static bool read_run(struct job *run, const struct job *job, struct arena *arena)
{
    const char *path = arena_printf(arena, "%s/job.yaml", job->output);
    struct err ignored;

    return store_count(arena_printf(arena, "%s/checkpoints", job->output), &ignored) > 0 &&
           !job_read(run, path, NULL, 0, arena, &ignored) && !search_is_wanted(run);
}

/* Its layout, if the run has as many ranks, or may leave the others idle. */
static bool take_from_run(struct job *job, int *n_ranks, struct arena *arena)
{
    struct job run;

    if (!read_run(&run, job, arena))
        return false;
    const struct layout layout = layout_of_job(&run);
    int n = layout_n_ranks(&layout);
    if (n > *n_ranks || (n < *n_ranks && !job->search.allow_idle))
        return false;
    layout_apply(job, &layout);
    *n_ranks = n;
    job->ranks = job->ranks ? n : 0;
    job->recompute_ops = run.recompute_ops;
    job->parallel.mode = PARALLEL_MANUAL;
    job->searched.cluster = run.searched.cluster;
    job->searched.predicted_ms = run.searched.predicted_ms;
    return true;
}

/* The sizes of its micro-batches, if they make up the batch. */
static bool take_sizes_from_run(struct job *job, int n_ranks, struct arena *arena)
{
    int others = job->parallel.tp * job->parallel.pp * job->parallel.cp, sum = 0;
    struct job run;

    if (!read_run(&run, job, arena) || !run.parallel.micro_batches.n)
        return false;
    for (int i = 0; i < run.parallel.micro_batches.n; i++)
        sum += run.parallel.micro_batches.values[i];
    if (n_ranks % others || (int64_t)sum * (n_ranks / others) != job->train.global_batch)
        return false;
    job->parallel.micro_batches = run.parallel.micro_batches;
    job->parallel.micro_batches_auto = 0;
    job->train.micro_batch = run.train.micro_batch;
    return true;
}

/* Nothing where there is no run yet. */
static int keep_numerics(struct job *job, struct arena *arena, struct err *err)
{
    struct job run;

    if (!read_run(&run, job, arena))
        return 0;
    if (run.parallel.replica_micro_batches.n)
        return err_set(err, ERR_CONFIG,
                       "%s: search.keep_numerics is true, but the run in %s has "
                       "parallel.replica_micro_batches, which are of one layout (hint: without "
                       "--replan, on %d ranks)",
                       job->source, job->output,
                       run.parallel.tp * run.parallel.pp * run.parallel.dp);
    layout_keep_numerics(job, &run, arena);
    return 0;
}

/* ---- predictions ---- */

/* Of the job as it would run here; what cannot be predicted is not compared. */
static void predict(struct plan_subject *subject, struct job *job, int n_ranks, struct arena *arena)
{
    struct job resolved = *job;
    struct pool *pool = NULL;
    struct kernels *kernels = NULL;
    struct plan plan = { .job = &resolved };
    struct step_time time;
    struct err err;

    resolved.rates = &subject->cluster;
    int status = job_resolve(&resolved, n_ranks, arena, &err);

    if (!status)
        status = pool_create(&pool, 1, NULL, &err);
    if (!status)
        status = cluster_is_cpu(&subject->cluster) ? kernels_cpu_create(&kernels, pool, NULL, &err)
                                                   : kernels_gpu_sizes_create(&kernels, &err);
    if (!status)
        status = plan_open_with(&plan, &resolved, kernels, &err);
    if (!status)
        status = step_time_predict(&time, &plan, &subject->cluster, arena, &err);
    if (status) {
        log_info("the time of a step is not predicted: %s", err.text);
    } else {
        job->searched.cluster = subject->cluster.name;
        job->searched.predicted_ms = (double)time.ns / 1e6;
    }
    plan_close(&plan);
    kernels_destroy(kernels);
    pool_destroy(pool);
}

/* A job for devices that lmtrain has no code for can be planned, not run. */
static int check_devices(const struct job *job, struct arena *arena, struct err *err)
{
    struct cluster cluster;

    if (!job->cluster)
        return 0;
    if (cluster_read(&cluster, job->cluster, arena, err))
        return -1;
    const struct device_spec *device = cluster_planning_only(&cluster);
    if (device)
        return err_set(err, ERR_CONFIG,
                       "%s: cluster is %s, whose device %s is for planning only: lmtrain cannot "
                       "run on it (hint: lmtrain plan; to run here, remove the key cluster)",
                       job->source, job->cluster, device->name);
    return 0;
}

static void tell_sizes(const struct plan_subject *subject)
{
    struct str text = { 0 };

    plan_print_sizes(&subject->sizes, &text);
    if (ranks_expected() == 0)
        log_info("%.*s", (int)text.length - 1, str_text(&text));
    str_release(&text);
}

int searched_layout(struct job *job, int *n_ranks, bool to_replan, struct option_list *sets,
                    struct arena *arena, struct err *err)
{
    struct plan_reading reading = { .n_top = 5 };
    struct plan_subject *subject = arena_array(arena, struct plan_subject, 1);
    bool is_wanted = search_is_wanted(job), are_sizes_wanted = job->parallel.micro_batches_auto;
    struct str text = { 0 };

    if (check_devices(job, arena, err))
        return -1;
    if (are_sizes_wanted && !to_replan && take_sizes_from_run(job, *n_ranks, arena)) {
        add_sizes(job, sets, arena);
        are_sizes_wanted = false;
    }
    if (!is_wanted && !are_sizes_wanted && (!job->cluster || job->searched.predicted_ms > 0))
        return 0;
    if (is_wanted && !to_replan && take_from_run(job, n_ranks, arena)) {
        add_layout(job, sets, arena);
        add_prediction(job, sets, arena);
        return 0;
    }
    if (is_wanted && job->search.keep_numerics && keep_numerics(job, arena, err))
        return -1;
    subject->job = *job;
    if (plan_find_layout(subject, &reading, n_ranks, arena, err))
        return -1;
    enum job_device device = job->device;
    *job = subject->job;
    job->device = device;
    predict(subject, job, *n_ranks, arena);
    if (is_wanted) {
        plan_print_layout(job, &text);
        str_add(&text, ", recompute ");
        plan_print_recompute(job, &text);
        if (ranks_expected() == 0 && subject->ranks_note)
            log_info("%s", subject->ranks_note);
        if (ranks_expected() == 0)
            log_info("layout: %s: the best of %d (lmtrain plan shows the others), %.1f ms a step "
                     "predicted on %s",
                     str_text(&text), subject->search.n_layouts, job->searched.predicted_ms,
                     subject->cluster.name);
        str_release(&text);
        add_layout(job, sets, arena);
    }
    if (are_sizes_wanted) {
        add_sizes(job, sets, arena);
        tell_sizes(subject);
    }
    add_prediction(job, sets, arena);
    return 0;
}
