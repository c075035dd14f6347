/*
 * pretrain_local.c - local checkpoints of a run: when they are made, what becomes of them
 *
 * They are made between those of the run folder by the same machinery, one save at a time in all.
 * One that fails is a warning: what they save is time alone.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "train/local_tier.h"
#include "train/pretrain_impl.h"

int pretrain_local_is_due(const struct pretrain *p, int64_t step)
{
    return p->local && is_due(p->job->checkpoint.local_every_steps, step) &&
           !is_due(p->job->checkpoint.every_steps, step) && step != p->job->train.steps;
}

/* Known to all ranks, each with its own words. */
static void lose(struct pretrain *p, int64_t step, const struct err *why)
{
    p->local_step = -1;
    local_tier_drop(p->local);
    log_warn("step %" PRId64 " is not saved locally: %s; training continues", step, why->text);
    pretrain_report_event(p, "local save failed", why->text);
}

int pretrain_local_save(struct pretrain *p, struct err *err)
{
    int64_t step = trainer_step_number(p->trainer);
    struct err why = { .code = ERR_FAILED, .text = "another rank could not make its folder" };
    struct str extra = { 0 };
    char folder[PATH_BYTES];

    if (trainer_save_pending(p->trainer) || p->owes_save) {
        log_info("step %" PRId64 " is not saved locally: another checkpoint is still being written",
                 step);
        pretrain_report_event(p, "local save left out", "another checkpoint is being written");
        return 0;
    }
    if (pretrain_compare(p, err) < 0)
        return -1;
    int64_t failed = local_tier_prepare(p->local, &why) < 0 ||
                     local_tier_path(p->local, step, folder, sizeof folder, &why) < 0;
    if (trainer_agree(p->trainer, &failed, err) < 0)
        return -1;
    if (failed) {
        lose(p, step, &why);
        return 0;
    }
    p->local_step = step;
    pretrain_describe(p, &extra);
    int status = trainer_save_local(p->trainer, folder, str_text(&extra), err);
    str_release(&extra);
    return status;
}

void pretrain_local_ended(struct pretrain *p, const struct err *why)
{
    if (why) {
        lose(p, p->local_step, why);
        return;
    }
    local_tier_keep(p->local, p->local_step);
    p->local_step = -1;
}

void pretrain_local_go_on(struct pretrain *p, int64_t step)
{
    p->local_step = -1;
    if (p->local)
        local_tier_go_on(p->local, step);
}

void pretrain_local_close(struct pretrain *p, int is_done)
{
    if (p->local && is_done)
        local_tier_remove(p->local);
    local_tier_close(p->local);
    p->local = NULL;
}
