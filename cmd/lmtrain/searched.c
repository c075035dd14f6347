/*
 * searched.c - a search's layout, or that of the run that is resumed
 */
#include "searched.h"

#include <string.h>

#include "base/log.h"
#include "ckpt/store.h"
#include "device/pool.h"
#include "kernels/kernels.h"
#include "plan/step_time.h"
#include "plan_layout.h"
#include "plan_subject.h"
#include "ranks.h"

/* ---- what is passed to the ranks ---- */

static void add_set(struct option_list *sets, const char *text, struct arena *arena)
{
    const char **items = arena_array(arena, const char *, sets->n + 1);

    if (sets->n)
        memcpy(items, sets->items, sizeof *items * (size_t)sets->n);
    items[sets->n++] = text;
    sets->items = items;
}

static void add_number(struct option_list *sets, const char *key, int value, struct arena *arena)
{
    add_set(sets, arena_printf(arena, "%s=%d", key, value), arena);
}

static void add_counts(const char *key, const struct job_counts *counts, struct option_list *sets,
                       struct arena *arena)
{
    struct str text = { 0 };

    if (!counts->n)
        return;
    str_printf(&text, "%s=[", key);
    for (int i = 0; i < counts->n; i++)
        str_printf(&text, i ? ", %d" : "%d", counts->values[i]);
    str_add(&text, "]");
    add_set(sets, arena_printf(arena, "%s", str_text(&text)), arena);
    str_release(&text);
}

static void add_layout(const struct job *job, struct option_list *sets, struct arena *arena)
{
    add_set(sets, "parallel.mode=manual", arena);
    add_number(sets, "parallel.tp", job->parallel.tp, arena);
    add_number(sets, "parallel.pp", job->parallel.pp, arena);
    add_number(sets, "parallel.dp", job->parallel.dp, arena);
    add_number(sets, "parallel.chunks", job->parallel.chunks, arena);
    add_number(sets, "parallel.zero", job->parallel.zero, arena);
    add_number(sets, "parallel.zero_group", job->parallel.zero_group, arena);
    add_number(sets, "parallel.bucket_mb", job->parallel.bucket_mb, arena);
    add_number(sets, "train.micro_batch", job->train.micro_batch, arena);
    add_set(sets,
            arena_printf(arena, "parallel.schedule=%s", pipeline_name(job->parallel.schedule)),
            arena);
    add_set(
        sets,
        arena_printf(arena, "parallel.hold=%s", choice_word(hold_choices, (int)job->parallel.hold)),
        arena);
    add_counts("parallel.stages", &job->parallel.stages, sets, arena);
    add_counts("parallel.replica_micro_batches", &job->parallel.replica_micro_batches, sets, arena);
    if (job->recompute != RECOMPUTE_LIST)
        add_set(sets,
                arena_printf(arena, "recompute=%s",
                             choice_word(recompute_choices, (int)job->recompute)),
                arena);
}

static void add_prediction(const struct job *job, struct option_list *sets, struct arena *arena)
{
    if (!job->searched.cluster)
        return;
    add_set(sets, arena_printf(arena, "searched.cluster=%s", job->searched.cluster), arena);
    add_set(sets, arena_printf(arena, "searched.predicted_ms=%.3f", job->searched.predicted_ms),
            arena);
}

/* ---- the run that is resumed ---- */

/* Its layout, if the run is there and has as many ranks. */
static bool take_from_run(struct job *job, int n_ranks, struct arena *arena)
{
    const char *path = arena_printf(arena, "%s/job.yaml", job->output);
    struct err ignored;
    struct job run;

    if (store_count(arena_printf(arena, "%s/checkpoints", job->output), &ignored) <= 0 ||
        job_read(&run, path, NULL, 0, arena, &ignored) || search_is_wanted(&run) ||
        run.parallel.tp * run.parallel.pp * run.parallel.dp != n_ranks)
        return false;
    struct layout layout = { .tp = run.parallel.tp,
                             .pp = run.parallel.pp,
                             .dp = run.parallel.dp,
                             .chunks = run.parallel.chunks,
                             .schedule = run.parallel.schedule,
                             .zero = run.parallel.zero,
                             .zero_group = run.parallel.zero_group,
                             .bucket_mb = run.parallel.bucket_mb,
                             .micro_batch = run.train.micro_batch,
                             .recompute = run.recompute,
                             .hold = run.parallel.hold,
                             .stages = run.parallel.stages.values,
                             .counts = run.parallel.replica_micro_batches.values };
    search_apply(job, &layout);
    job->parallel.mode = PARALLEL_MANUAL;
    job->searched.cluster = run.searched.cluster;
    job->searched.predicted_ms = run.searched.predicted_ms;
    return true;
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

int searched_layout(struct job *job, int n_ranks, bool to_replan, struct option_list *sets,
                    struct arena *arena, struct err *err)
{
    struct plan_reading reading = { .n_top = 5 };
    struct plan_subject *subject = arena_array(arena, struct plan_subject, 1);
    bool is_wanted = search_is_wanted(job);
    struct str text = { 0 };

    if (!is_wanted && (!job->cluster || job->searched.predicted_ms > 0))
        return 0;
    if (is_wanted && !to_replan && take_from_run(job, n_ranks, arena)) {
        add_layout(job, sets, arena);
        add_prediction(job, sets, arena);
        return 0;
    }
    subject->job = *job;
    if (plan_find_layout(subject, &reading, n_ranks, arena, err))
        return -1;
    enum job_device device = job->device;
    *job = subject->job;
    job->device = device;
    predict(subject, job, n_ranks, arena);
    if (is_wanted) {
        plan_print_layout(job, &text);
        str_add(&text, ", recompute ");
        plan_print_recompute(job, &text);
        if (ranks_expected() == 0)
            log_info("layout: %s: the best of %d (lmtrain plan shows the others), %.1f ms a step "
                     "predicted on %s",
                     str_text(&text), subject->search.n_layouts, job->searched.predicted_ms,
                     subject->cluster.name);
        str_release(&text);
        add_layout(job, sets, arena);
    }
    add_prediction(job, sets, arena);
    return 0;
}
