/*
 * resume.c - where a run begins: at step 0, or at the last step of its output or of another run
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/store.h"
#include "train/local_tier.h"
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
    cJSON_AddNumberToObject(extra, "n_unlogged", (double)p->unlogged.n);
    cJSON_AddNumberToObject(extra, "unlogged_loss", p->unlogged.sum);
    cJSON_AddBoolToObject(extra, "stopped", p->stopped);
    cJSON_AddBoolToObject(extra, "owes_evaluation", pretrain_owes_evaluation(p));
    if (p->job->checkpoint.keep_best) {
        struct str best = { 0 };

        best_print(&p->best, p->job->checkpoint.metric, &best);
        cJSON_AddRawToObject(extra, "best", str_text(&best));
        str_release(&best);
    }
    struct str spikes = { 0 };
    spikes_print(&p->spikes, &spikes);
    if (p->spikes.n)
        cJSON_AddRawToObject(extra, "spikes", str_text(&spikes));
    str_release(&spikes);
    if (p->local_step >= 0)
        cJSON_AddStringToObject(extra, "local", local_tier_identity(p->local));
    if (p->origin) {
        cJSON *origin = cJSON_AddObjectToObject(extra, "origin");

        cJSON_AddStringToObject(origin, "folder", p->origin);
        cJSON_AddNumberToObject(origin, "step", (double)p->origin_step);
    }
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

static int find_newest(struct pretrain *p, int64_t before, int64_t *step, struct err *err)
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

/* What this run began with, which its first process noted. */
static void restore_origin(struct pretrain *p)
{
    const char *text = trainer_restored_extra(p->trainer);
    cJSON *extra = text ? cJSON_Parse(text) : NULL;
    const cJSON *origin = cJSON_GetObjectItemCaseSensitive(extra, "origin");
    const cJSON *folder = cJSON_GetObjectItemCaseSensitive(origin, "folder");
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(origin, "step");

    if (cJSON_IsString(folder) && cJSON_IsNumber(step)) {
        p->origin = arena_strdup(&p->arena, folder->valuestring);
        p->origin_step = (int64_t)step->valuedouble;
    }
    cJSON_Delete(extra);
}

static void note_origin(struct pretrain *p, const char *folder)
{
    char *path = realpath(folder, NULL);

    p->origin = arena_strdup(&p->arena, path ? path : folder);
    p->origin_step = trainer_step_number(p->trainer);
    free(path);
}

static void restore_spikes(struct pretrain *p, const cJSON *extra)
{
    char *text = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(extra, "spikes"));

    spikes_read(&p->spikes, text ? text : "[]");
    free(text);
}

static void restore_best(struct pretrain *p, const cJSON *extra)
{
    char *text = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(extra, "best"));
    struct best_checkpoints found;

    best_read(&found, p->job->checkpoint.metric, text ? text : "");
    p->best.n = 0;
    for (int i = 0; i < found.n; i++)
        best_note(&p->best, p->job->checkpoint.keep_best, found.list[i].step, found.list[i].loss);
    free(text);
}

/* 0 where an earlier version did not write it. */
static double number_of(const cJSON *extra, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(extra, key);

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

void pretrain_restore_state(struct pretrain *p)
{
    const char *text = trainer_restored_extra(p->trainer);
    cJSON *extra = text ? cJSON_Parse(text) : NULL;
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(extra, "best_eval");
    const cJSON *worse = cJSON_GetObjectItemCaseSensitive(extra, "n_worse");
    const cJSON *skipped = cJSON_GetObjectItemCaseSensitive(extra, "n_skipped_in_a_row");

    p->best_eval = cJSON_IsNumber(best) ? best->valuedouble : INFINITY;
    p->n_worse = cJSON_IsNumber(worse) ? worse->valueint : 0;
    p->n_skipped_in_a_row = cJSON_IsNumber(skipped) ? skipped->valueint : 0;
    p->unlogged = (struct loss_window){ (int64_t)number_of(extra, "n_unlogged"),
                                        number_of(extra, "unlogged_loss") };
    p->stopped = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(extra, "stopped"));
    p->owes_evaluation = trainer_has_held_out(p->trainer) &&
                         cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(extra, "owes_evaluation"));
    restore_spikes(p, extra);
    restore_best(p, extra);
    p->evaluated_step = p->owes_evaluation ? -1 : trainer_step_number(p->trainer);
    cJSON_Delete(extra);
}

typedef int (*restore_fn)(struct trainer *t, const char *folder,
                          struct numerics_differences *differences, struct err *err);

static int restore(struct pretrain *p, const char *folder, restore_fn restore_trainer,
                   struct numerics_differences *differences, struct err *err)
{
    if (restore_trainer(p->trainer, folder, differences, err) < 0)
        return -1;
    int64_t step = trainer_step_number(p->trainer);
    pretrain_restore_state(p);
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

/* And why not from local checkpoints, if there are any. */
static void say_resumed(const struct pretrain *p, const char *folder)
{
    const char *lack = p->local ? local_tier_lack(p->local) : "";

    log_info("%s%sresuming from %s, step %" PRId64, lack, *lack ? ": " : "", folder,
             trainer_step_number(p->trainer));
}

int64_t pretrain_agree_restored(struct pretrain *p, int status, struct err *err)
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

static void forget(struct numerics_differences *differences)
{
    str_clear(&differences->logged);
    str_clear(&differences->accepted);
}

/*
 * From the newest local checkpoint after step `after`, if there is one: returns its step; -1: there
 * is none that all ranks can read; -2: with err, an error.
 */
static int64_t restore_local(struct pretrain *p, int64_t after,
                             struct numerics_differences *differences, struct err *err)
{
    char folder[PATH_BYTES];
    int64_t step = INT64_MAX;

    for (;;) {
        if (local_tier_find(p->local, step, after, &step, err) < 0)
            return -2;
        if (step < 0)
            return -1;
        int status = local_tier_path(p->local, step, folder, sizeof folder, err);
        forget(differences);
        if (!status)
            status = restore(p, folder, trainer_restore_local, differences, err);
        int64_t worst = pretrain_agree_restored(p, status, err);
        if (!worst)
            return step;
        if (worst != ERR_DATA)
            return -2;
        if (status < 0)
            log_warn("%s", err->text);
    }
}

/* From the checkpoint of the run folder of that step: returns as pretrain_agree_restored; *is_own:
 * this rank could not. */
static int64_t restore_shared(struct pretrain *p, int64_t step,
                              struct numerics_differences *differences, bool *is_own,
                              struct err *err)
{
    char folder[PATH_BYTES];
    int status = pretrain_checkpoint_path(p, folder, step, err);

    forget(differences);
    if (!status)
        status = restore(p, folder, trainer_restore, differences, err);
    *is_own = status < 0;
    int64_t worst = pretrain_agree_restored(p, status, err);
    if (!worst)
        say_resumed(p, folder);
    return worst;
}

static void say_local(const struct pretrain *p, int64_t step)
{
    int n = local_tier_n_hosts(p->local);

    if (*local_tier_lack(p->local))
        log_info("%s", local_tier_lack(p->local));
    log_info("resuming from the local checkpoints of step %" PRId64 " (%s on %d host%s)", step,
             local_tier_base(p->local), n, str_s(n));
}

/*
 * The newest of this output, step -1: it has none; where any rank finds it damaged (of which a
 * manifest and sizes say nothing), all go back to the one before. Local ones are tried first.
 * Returns 1 if there is none of either kind.
 */
static int restore_newest(struct pretrain *p, int64_t step,
                          struct numerics_differences *differences, struct err *err)
{
    for (;;) {
        struct err ignored;
        int64_t older, worst;
        bool is_own;
        int64_t local = p->local ? restore_local(p, step, differences, err) : -1;

        p->saved_step = step;
        if (local >= 0) {
            say_local(p, local);
            p->resumed_local = local;
            restore_origin(p);
            return 0;
        }
        if (local < -1 || step < 0)
            return local < -1 ? -1 : 1;
        worst = restore_shared(p, step, differences, &is_own, err);
        if (!worst)
            break;
        if (worst != ERR_DATA || find_newest(p, step, &older, &ignored) < 0 || older < 0)
            return -1;
        if (is_own)
            log_warn("%s", err->text);
        if (p->is_first)
            log_warn("%s/checkpoints/step-%08" PRId64
                     " cannot be read: falling back to step %" PRId64,
                     p->job->output, step, older);
        step = older;
    }
    restore_origin(p);
    set_newer_aside(p, step);
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

static int open_local(struct pretrain *p, bool is_new, struct err *err)
{
    return local_tier_open(&p->local, p->trainer, p->options->engine->rank.local_rank, is_new, err);
}

/* --resume DIR; else what the output folder holds. */
static int resume(struct pretrain *p, struct numerics_differences *differences, struct err *err)
{
    const char *wanted = p->options->resume;
    struct arena arena = { 0 };
    int64_t step;

    if (find_newest(p, INT64_MAX, &step, err) < 0)
        return -1;
    if (!strcmp(wanted, "none")) {
        if (step < 0)
            return begin(p, err);
        return err_set(err, ERR_CONFIG,
                       "--resume none, but %s holds a run at step %" PRId64
                       " (hint: use a different output folder, or remove that folder)",
                       p->job->output, step);
    }
    if (!strcmp(wanted, "auto")) {
        int status = open_local(p, false, err);

        if (!status)
            status = restore_newest(p, step, differences, err);
        return status > 0 ? begin(p, err) : status;
    }
    if (step >= 0)
        return err_set(err, ERR_CONFIG,
                       "--resume %s, but %s already holds another run, at step %" PRId64
                       " (hint: use a different output folder)",
                       wanted, p->job->output, step);
    const char *newest = store_newest(wanted, &arena, err);
    int status = newest ? restore(p, newest, trainer_restore, differences, err) : -1;
    if (!status) {
        note_origin(p, newest);
        say_resumed(p, newest);
    }
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
    if (!worst) {
        /* Local ones of before are of another run, unless this one went on by itself. */
        if (!p->local && open_local(p, true, err) < 0)
            return -1;
        pretrain_local_go_on(p, p->resumed_local);
        return 0;
    }
    p->agreed = 1;
    if (failed)
        *err = own;
    else
        err_set(err, (enum err_code)worst, "another rank could not resume from the checkpoint");
    return -1;
}
