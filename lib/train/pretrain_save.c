/*
 * pretrain_save.c - what a run leaves behind: its checkpoints
 *
 * Replicas are compared before a checkpoint is made of them. Under zero 1 they can be compared only
 * within a step that is known to be saved at its end: a save on a signal, or at an early stop, is
 * of shards that no other rank has, and of weights that may last have been compared steps ago.
 *
 * A disk may be full for a while, and an hour of many machines is worth more than a checkpoint: a
 * run that has one goes on without the next. Where there is none, or none will follow, it is an
 * error. An old one that cannot be removed is none: it is said, and tried again with the next save.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "ckpt/store.h"
#include "launch/excluded.h"
#include "train/pretrain_impl.h"
#include "train/recheck.h"

/* Of checkpoints that were removed by hand others take the place. */
static void forget_missing(struct pretrain *p)
{
    char path[PATH_BYTES];
    struct err ignored;

    for (int i = p->best.n - 1; i >= 0; i--) {
        int64_t step = p->best.list[i].step;

        if (step != p->saved_step && !pretrain_checkpoint_path(p, path, step, &ignored) &&
            !file_exists(path))
            best_forget(&p->best, step);
    }
}

static void clean(struct pretrain *p)
{
    char path[PATH_BYTES];
    int64_t held[2 + N_BEST_MAX];
    struct store_kept kept = { .n_newest = p->job->checkpoint.keep,
                               .old_step = pretrain_rewind_bound(p),
                               .held = held,
                               .n_held = upload_holds(p->upload, held) };
    struct err err;

    if (!p->is_first)
        return;
    forget_missing(p);
    for (int i = 0; i < p->best.n; i++)
        held[kept.n_held++] = p->best.list[i].step;
    if (pretrain_path(p, path, "checkpoints", &err) < 0 || store_clean_but(path, &kept, &err) < 0)
        log_warn("old checkpoints: %s: it is not removed for now", err.text);
}

static int compare(struct pretrain *p, int64_t step, struct err *err)
{
    if (replicas_compare(p->replicas, step, &p->agreed, err) == 0)
        return 0;
    if (p->agreed)
        pretrain_report_event(p, "diverged", err->text);
    return -1;
}

int pretrain_compare(struct pretrain *p, struct err *err)
{
    int64_t step = trainer_step_number(p->trainer);

    /* Shards have no replicas, and weights are gathered from them again in every step. */
    if (p->compared_step == step || p->job->parallel.zero > 0)
        return 0;
    p->compared_step = step;
    return compare(p, step, err);
}

/*
 * A restart on the same host would most likely meet the same error, so it is excluded, where there
 * are others and where the job restarts. Called by rank 0.
 */
static void exclude(const struct pretrain *p, const struct recheck_finding *finding,
                    const struct err *why)
{
    struct err err;

    if (!p->is_first || finding->rank < 0 || !finding->has_others || !p->job->restarts)
        return;
    if (excluded_add(p->job->output, finding->host, why->text, &err) < 0)
        log_warn("%s is not excluded: %s", finding->host, err.text);
}

static int convict(struct pretrain *p, int status, const struct recheck_finding *finding,
                   const struct err *why)
{
    if (!finding->is_found)
        return status;
    p->agreed = 1;
    exclude(p, finding, why);
    pretrain_report_event(p, "recheck", why->text);
    return -1;
}

int pretrain_recheck_update(struct pretrain *p, struct err *err)
{
    struct recheck_finding finding;
    int status = recheck_update(p->recheck, &finding, err);

    return status < 0 ? convict(p, status, &finding, err) : 0;
}

static int recheck(struct pretrain *p, struct err *err)
{
    struct recheck_finding finding;
    int status = recheck_gradients(p->recheck, &finding, err);

    return status < 0 ? convict(p, status, &finding, err) : 0;
}

int pretrain_gate(void *context, struct err *err)
{
    struct pretrain *p = context;
    const struct job *job = p->job;
    int64_t step = trainer_step_number(p->trainer) + 1;
    int due = is_due(job->train.compare_every, step) || is_due(job->checkpoint.every_steps, step) ||
              pretrain_local_is_due(p, step) || p->owes_save || step == job->train.steps;

    if (recheck(p, err) < 0)
        return -1;
    return job->parallel.zero > 0 && due ? compare(p, step, err) : 0;
}

/* All ranks know that there is no checkpoint of `step`, each with its own words. Where the run's
 * folder was moved or deleted beneath it, it is saved again, in a new one. */
static int lose(struct pretrain *p, int64_t step, int is_last, const struct err *why,
                struct err *err)
{
    char last[96] = "there is no checkpoint";
    int is_saved_again = pretrain_keep_folder(p, err);

    if (is_saved_again)
        return is_saved_again < 0 ? -1 : 0;
    best_forget(&p->best, step);
    p->saved_step = p->whole_step;
    if (p->whole_step >= 0)
        snprintf(last, sizeof last, "the last checkpoint is of step %" PRId64, p->whole_step);
    /* What was written of it takes room. */
    clean(p);
    pretrain_report_event(p, "save failed", why->text);
    p->agreed = is_last || p->whole_step < 0;
    if (!p->agreed) {
        log_error("step %" PRId64 " is not saved: %s; %s, training continues", step, why->text,
                  last);
        return 0;
    }
    /* Of an error that all ranks return only rank 0's is shown. */
    if (!p->is_first)
        log_error("%s", why->text);
    return err_set(err, why->code, "step %" PRId64 " is not saved: %s; %s", step, why->text, last);
}

/* Rank 0 frees space and creates the folders before other ranks write to them. */
static int prepare(struct pretrain *p, struct err *why)
{
    char parent[PATH_BYTES];

    if (!p->is_first)
        return 0;
    if (pretrain_path(p, parent, "checkpoints", why) < 0 || file_make_folder(parent, why) < 0)
        return -1;
    clean(p);
    return 0;
}

/* The file system has not taken the one before yet. After a local one it is made up for: these are
 * more frequent, and could push out all others. */
static void leave_out(struct pretrain *p, int64_t step)
{
    char text[96];

    p->owes_save = p->local_step >= 0;
    if (p->owes_save)
        snprintf(text, sizeof text,
                 "the local checkpoint of step %" PRId64 " is still being written", p->local_step);
    else
        snprintf(text, sizeof text, "the checkpoint of step %" PRId64 " is still being written",
                 p->saved_step);
    log_info("step %" PRId64 " is not saved%s: %s", step, p->owes_save ? " yet" : "", text);
    pretrain_report_event(p, "save left out", text);
}

static int save(struct pretrain *p, int is_last, struct err *err)
{
    char folder[PATH_BYTES];
    int64_t step = trainer_step_number(p->trainer);
    double begin = clock_seconds();
    struct str extra = { 0 };
    struct err why = { .code = ERR_FAILED, .text = "rank 0 could not create its folder" };

    if (p->saved_step == step)
        return 0;
    if (!is_last && trainer_save_pending(p->trainer)) {
        leave_out(p, step);
        return 0;
    }
    p->owes_save = 0;
    if (pretrain_compare(p, err) < 0 || pretrain_checkpoint_path(p, folder, step, err) < 0)
        return -1;
    int64_t failed = prepare(p, &why) < 0;
    if (trainer_agree(p->trainer, &failed, err) < 0)
        return -1;
    if (failed)
        return lose(p, step, is_last, &why, err);
    p->saved_step = step;
    pretrain_describe(p, &extra);
    int status = trainer_save(p->trainer, folder, str_text(&extra), err);
    str_release(&extra);
    pretrain_monitor_blocked(p, clock_seconds() - begin);
    return status;
}

int pretrain_save(struct pretrain *p, struct err *err)
{
    return save(p, 0, err);
}

/* The checkpoint begun last is whole. */
static void note_whole(struct pretrain *p)
{
    char folder[PATH_BYTES];
    struct err ignored;
    int is_new = p->whole_step != p->saved_step;

    p->whole_step = p->saved_step;
    if (!is_new || !p->is_first || p->whole_step < 0 ||
        pretrain_checkpoint_path(p, folder, p->whole_step, &ignored) < 0)
        return;
    pretrain_report_event_at(p, p->whole_step, "saved", "the checkpoint is whole");
    pretrain_upload_whole(p);
    pretrain_hooks_saved(p, folder);
    if (p->options->on_saved)
        p->options->on_saved(p->options->context, folder);
}

int pretrain_saved(struct pretrain *p, struct err *err)
{
    struct err why;

    int is_lost = trainer_save_failed(p->trainer, &why);
    if (p->local_step >= 0) {
        if (is_lost || !trainer_save_pending(p->trainer))
            pretrain_local_ended(p, is_lost ? &why : NULL);
        return 0;
    }
    if (is_lost)
        return lose(p, p->saved_step, 0, &why, err);
    if (!trainer_save_pending(p->trainer))
        note_whole(p);
    return 0;
}

static int end_local(struct pretrain *p, struct err *err)
{
    int status = trainer_save_finish(p->trainer, err);

    if (status < 0 && err->code == ERR_PEER)
        return -1;
    pretrain_local_ended(p, status < 0 ? err : NULL);
    return 0;
}

/* That it fails matters little, as another one follows. */
int pretrain_end_earlier(struct pretrain *p, struct err *err)
{
    if (p->local_step >= 0)
        return end_local(p, err);
    if (!trainer_save_pending(p->trainer) || p->saved_step == trainer_step_number(p->trainer))
        return 0;
    if (trainer_save_finish(p->trainer, err) == 0) {
        note_whole(p);
        return 0;
    }
    if (err->code == ERR_PEER)
        return -1;
    best_forget(&p->best, p->saved_step);
    log_error("step %" PRId64 " is not saved: %s", p->saved_step, err->text);
    pretrain_report_event(p, "save failed", err->text);
    p->saved_step = p->whole_step;
    return 0;
}

int pretrain_save_last(struct pretrain *p, struct err *err)
{
    struct err why;

    if (pretrain_end_earlier(p, err) < 0 || save(p, 1, err) < 0)
        return -1;
    if (trainer_save_finish(p->trainer, &why) < 0) {
        if (why.code != ERR_PEER) /* if it does not fail, that is begun which is to end */
            return lose(p, p->saved_step, 1, &why, err) < 0 ? -1 : pretrain_save_last(p, err);
        *err = why;
        return -1;
    }
    note_whole(p);
    clean(p);
    return 0;
}

void pretrain_clean(struct pretrain *p)
{
    if (p->job->checkpoint.keep_best)
        clean(p);
}

int pretrain_save_anew(struct pretrain *p, struct err *err)
{
    struct err why;

    if (p->local_step >= 0 && end_local(p, err) < 0)
        return -1;
    if (trainer_save_finish(p->trainer, &why) < 0 && why.code == ERR_PEER) {
        *err = why;
        return -1;
    }
    p->saved_step = p->whole_step = -1;
    p->best.n = 0;
    return save(p, 0, err);
}
