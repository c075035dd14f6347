/*
 * resume.c - where a run begins: at step 0, or at the last step of its output or of another run
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/store.h"
#include "train/pretrain_impl.h"

int pretrain_checkpoint_path(const struct pretrain *p, char *path, int64_t step, struct err *err)
{
    char name[64];

    snprintf(name, sizeof name, "checkpoints/step-%08" PRId64, step);
    return pretrain_path(p, path, name, err);
}

void pretrain_describe(const struct pretrain *p, struct str *out)
{
    cJSON *extra = cJSON_CreateObject();

    if (isfinite(p->best_eval))
        cJSON_AddNumberToObject(extra, "best_eval", p->best_eval);
    cJSON_AddNumberToObject(extra, "n_worse", p->n_worse);
    cJSON_AddNumberToObject(extra, "n_skipped_in_a_row", p->n_skipped_in_a_row);
    cJSON_AddBoolToObject(extra, "stopped", p->stopped);
    cJSON_AddBoolToObject(extra, "owes_evaluation", pretrain_owes_evaluation(p));
    struct str spikes = { 0 };
    spikes_print(&p->spikes, &spikes);
    if (p->spikes.n)
        cJSON_AddRawToObject(extra, "spikes", str_text(&spikes));
    str_release(&spikes);
    char *text = cJSON_PrintUnformatted(extra);
    CHECK(text);
    str_clear(out);
    str_add(out, text);
    free(text);
    cJSON_Delete(extra);
}

/*
 * On rank 0: the newest before a step. It is an error if all are damaged: a new run would replace
 * them.
 */
static int newest_step(const struct pretrain *p, int64_t before, int64_t *step, struct err *err)
{
    char path[PATH_BYTES];
    struct arena arena = { 0 };
    struct store *store;

    if (pretrain_path(p, path, "checkpoints", err) < 0)
        return -1;
    int n = store_count(path, err);
    if (n <= 0)
        return n;
    const char *newest = store_newest_before(path, before, &arena, err);
    int status = newest ? store_open(&store, newest, err) : -1;
    if (!status) {
        *step = store_step(store);
        store_close(store);
    }
    arena_release(&arena);
    return status;
}

int pretrain_find_newest(struct pretrain *p, int64_t before, int64_t *step, struct err *err)
{
    struct err own = { 0 };

    *step = -1;
    if (p->is_first && newest_step(p, before, step, &own) < 0)
        *step = INT64_MAX;
    if (trainer_agree(p->trainer, step, err) < 0)
        return -1;
    if (*step == INT64_MAX && p->is_first)
        *err = own;
    else if (*step == INT64_MAX)
        err_set(err, ERR_DATA, "rank 0 could not read the checkpoints");
    return *step == INT64_MAX ? -1 : 0;
}

static void restore_spikes(struct pretrain *p, const cJSON *extra)
{
    char *text = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(extra, "spikes"));

    spikes_read(&p->spikes, text ? text : "[]");
    free(text);
}

static void restore_run_state(struct pretrain *p)
{
    const char *text = trainer_restored_extra(p->trainer);
    cJSON *extra = text ? cJSON_Parse(text) : NULL;
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(extra, "best_eval");
    const cJSON *worse = cJSON_GetObjectItemCaseSensitive(extra, "n_worse");
    const cJSON *skipped = cJSON_GetObjectItemCaseSensitive(extra, "n_skipped_in_a_row");

    p->best_eval = cJSON_IsNumber(best) ? best->valuedouble : INFINITY;
    p->n_worse = cJSON_IsNumber(worse) ? worse->valueint : 0;
    p->n_skipped_in_a_row = cJSON_IsNumber(skipped) ? skipped->valueint : 0;
    p->stopped = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(extra, "stopped"));
    p->owes_evaluation = trainer_has_held_out(p->trainer) &&
                         cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(extra, "owes_evaluation"));
    restore_spikes(p, extra);
    p->evaluated_step = p->owes_evaluation ? -1 : trainer_step_number(p->trainer);
    cJSON_Delete(extra);
}

static int restore(struct pretrain *p, const char *folder, struct numerics_differences *differences,
                   struct err *err)
{
    if (trainer_restore(p->trainer, folder, differences, err) < 0)
        return -1;
    int64_t step = trainer_step_number(p->trainer);
    restore_run_state(p);
    int goes_on = step < p->job->train.steps || p->options->may_be_done ||
                  (step == p->job->train.steps && p->owes_evaluation);
    if (!goes_on)
        return err_set(err, ERR_CONFIG,
                       "%s: the run is finished, step %" PRId64 " of %" PRId64
                       " (hint: raise train.steps, or use a different output folder)",
                       folder, step, p->job->train.steps);
    if (p->stopped && !p->options->may_be_done)
        return err_set(
            err, ERR_CONFIG,
            "%s: the run was stopped early at step %" PRId64
            ", because its held-out loss did not improve (hint: use a different output folder)",
            folder, step);
    return 0;
}

static void say_resumed(const struct pretrain *p, const char *folder)
{
    log_info("resuming from %s, step %" PRId64, folder, trainer_step_number(p->trainer));
}

/* What came of it on all ranks: 0, or the worst code, which is a failure of every rank then. */
static int64_t agree(struct pretrain *p, int status, struct err *err)
{
    int64_t worst = status < 0 ? (int64_t)err->code : 0;

    if (trainer_agree(p->trainer, &worst, err) < 0)
        return ERR_PEER;
    if (worst && status == 0)
        err_set(err, (enum err_code)worst, "another rank could not resume from the checkpoint");
    return worst;
}

/* Later ones could not be read, and the run will save their steps again. */
static void set_newer_aside(const struct pretrain *p, int64_t step)
{
    char path[PATH_BYTES];
    struct err err;

    if (p->is_first &&
        (pretrain_path(p, path, "checkpoints", &err) < 0 || store_set_aside(path, step, &err) < 0))
        log_warn("%s", err.text);
}

/*
 * The newest of this output; where any rank finds it damaged (of which a manifest and sizes say
 * nothing), all go back to the one before.
 */
static int restore_newest(struct pretrain *p, int64_t step,
                          struct numerics_differences *differences, struct err *err)
{
    char folder[PATH_BYTES];

    for (;;) {
        int status = pretrain_checkpoint_path(p, folder, step, err);
        struct err ignored;
        int64_t older;

        str_clear(&differences->logged);
        str_clear(&differences->accepted);
        if (!status)
            status = restore(p, folder, differences, err);
        int64_t worst = agree(p, status, err);
        if (!worst)
            break;
        if (worst != ERR_DATA || pretrain_find_newest(p, step, &older, &ignored) < 0 || older < 0)
            return -1;
        if (status < 0)
            log_warn("%s", err->text);
        if (p->is_first)
            log_warn("%s cannot be read: falling back to step %" PRId64, folder, older);
        step = older;
    }
    p->saved_step = step;
    set_newer_aside(p, step);
    say_resumed(p, folder);
    return 0;
}

int pretrain_return_to(struct pretrain *p, int64_t step, int64_t first, int64_t n, struct err *err)
{
    char folder[PATH_BYTES];
    struct err own = { 0 };
    int status = pretrain_checkpoint_path(p, folder, step, &own);

    if (!status)
        status = trainer_return_to(p->trainer, folder, first, n, &own);
    int64_t worst = agree(p, status, &own);
    if (worst) {
        *err = own;
        p->agreed = worst != ERR_PEER;
        return -1;
    }
    restore_run_state(p);
    p->saved_step = p->whole_step = step;
    p->compared_step = -1;
    set_newer_aside(p, step);
    if (!p->is_first)
        return 0;
    if (pretrain_report_reopen(p, err) < 0)
        return -1;
    pretrain_monitor_returned(p);
    return 0;
}

static int begin(struct pretrain *p, struct err *err)
{
    if (trainer_begin(p->trainer, err) < 0)
        return -1;
    if (p->job->train.init)
        log_info("starting with the weights of %s", p->job->train.init);
    else
        log_info("starting with random weights, train.seed %" PRIu64, (uint64_t)p->job->train.seed);
    return 0;
}

/* --resume DIR; else what the output folder holds. */
static int resume(struct pretrain *p, struct numerics_differences *differences, struct err *err)
{
    const char *wanted = p->options->resume;
    struct arena arena = { 0 };
    int64_t step;

    if (pretrain_find_newest(p, INT64_MAX, &step, err) < 0)
        return -1;
    if (!strcmp(wanted, "auto") && step < 0)
        return begin(p, err);
    if (!strcmp(wanted, "none")) {
        if (step < 0)
            return begin(p, err);
        return err_set(err, ERR_CONFIG,
                       "--resume none, but %s holds a run at step %" PRId64
                       " (hint: use a different output folder, or remove that folder)",
                       p->job->output, step);
    }
    if (!strcmp(wanted, "auto"))
        return restore_newest(p, step, differences, err);
    if (step >= 0)
        return err_set(err, ERR_CONFIG,
                       "--resume %s, but %s already holds another run, at step %" PRId64
                       " (hint: use a different output folder)",
                       wanted, p->job->output, step);
    const char *newest = store_newest(wanted, &arena, err);
    int status = newest ? restore(p, newest, differences, err) : -1;
    if (!status)
        say_resumed(p, newest);
    arena_release(&arena);
    return status;
}

int pretrain_resume(struct pretrain *p, struct numerics_differences *differences, struct err *err)
{
    struct err own = { 0 };
    int64_t failed = resume(p, differences, &own) < 0 ? (int64_t)own.code : 0;
    int64_t worst = failed;

    if (trainer_agree(p->trainer, &worst, err) < 0)
        return -1;
    if (!worst)
        return 0;
    p->agreed = 1;
    if (failed)
        *err = own;
    else
        err_set(err, (enum err_code)worst, "another rank could not resume from the checkpoint");
    return -1;
}
