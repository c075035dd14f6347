/*
 * pretrain_spike.c - what a run does about spikes: report, refuse the update, go back
 *
 * What is left out is a function of the job and of the step of the spike alone, never of the
 * checkpoints that happen to be there: these depend on disks and on `keep`. A run that goes back
 * restores the newest one before the first batch that is left out and, if there is none, begins
 * again where it began: up to that batch its steps are repeated bit for bit, from wherever. The gap
 * is kept by the trainer, with all checkpoints from then on; a resume from an older one meets the
 * same spike and goes back in the same way. Later checkpoints, of steps that count no more, are
 * removed: the next time one of them could be taken for one of the steps that do.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "base/num.h"
#include "ckpt/store.h"
#include "train/pretrain_impl.h"

bool pretrain_refuse(void *context, double loss, double grad_norm)
{
    const struct pretrain *p = context;
    double z[N_SPIKE_MEASURES];

    return spikes_find(&p->spikes, (double[]){ [SPIKE_LOSS] = loss, [SPIKE_NORM] = grad_norm }, z);
}

int64_t pretrain_rewind_bound(const struct pretrain *p)
{
    int n_left = p->job->train.spike_rewinds - trainer_n_gaps(p->trainer);

    if (p->job->train.on_spike != SPIKE_REWOUND || n_left <= 0)
        return STORE_NO_OLD;
    /* Each time the next spike may be as early as the first step of the gap before. */
    return trainer_step_number(p->trainer) - (int64_t)n_left * p->job->train.spike_margin;
}

/* On rank 0: the newest checkpoint before a step; -1: none. */
static int newest_before(const struct pretrain *p, int64_t before, int64_t *step, struct err *err)
{
    char path[PATH_BYTES];
    struct arena arena = { 0 };
    struct store *store;
    int status = -1;

    *step = -1;
    if (pretrain_path(p, path, "checkpoints", err) < 0)
        return -1;
    const char *newest = store_newest_before(path, before, &arena, err);
    if (newest)
        status = store_open(&store, newest, err);
    else if (err->code == ERR_DATA)
        status = 0;
    if (newest && !status) {
        *step = store_step(store);
        store_close(store);
    }
    arena_release(&arena);
    return status;
}

/* The same for all ranks. */
static int find_checkpoint(struct pretrain *p, int64_t before, int64_t *step, struct err *err)
{
    struct err own = { .code = ERR_FAILED, .text = "rank 0 could not read the checkpoints" };

    *step = -1;
    if (p->is_first && newest_before(p, before, step, &own) < 0)
        *step = INT64_MAX;
    if (trainer_agree(p->trainer, step, err) < 0)
        return -1;
    if (*step != INT64_MAX)
        return 0;
    *err = own;
    p->agreed = 1;
    return -1;
}

/* The newest checkpoint of at most step `first` that all ranks can read; without any the run begins
 * again, which is step -1. */
static int restore_before(struct pretrain *p, int64_t first, int64_t *step, struct err *err)
{
    char path[PATH_BYTES];

    for (int64_t before = first + 1;; before = *step) {
        const char *folder = p->origin;
        int status = 0;

        if (find_checkpoint(p, before, step, err) < 0)
            return -1;
        if (*step >= 0) {
            folder = path;
            status = pretrain_checkpoint_path(p, path, *step, err);
        }
        if (!status)
            status = trainer_return_to(p->trainer, folder, err);
        int64_t worst = pretrain_agree_restored(p, status, err);
        if (!worst)
            return 0;
        p->agreed = worst != ERR_PEER;
        if (worst != ERR_DATA || *step < 0)
            return -1;
        p->agreed = 0;
        if (status < 0)
            log_warn("%s", err->text);
        if (p->is_first)
            log_warn("%s cannot be read: going back further", folder);
    }
}

/* On rank 0, after a return to `step`: later checkpoints than `first` are of steps that count no
 * more, and those between are damaged. What is renamed is no checkpoint, even if it is not removed
 * yet. */
static int forget_later(const struct pretrain *p, int64_t step, int64_t first, struct err *err)
{
    char path[PATH_BYTES];
    struct err ignored;
    int64_t newest;

    if (pretrain_path(p, path, "checkpoints", err) < 0)
        return -1;
    if (store_remove_later(path, first, err) < 0) {
        if (newest_before(p, INT64_MAX, &newest, &ignored) < 0 || newest > first)
            return err_add(err, "a checkpoint of steps that count no more");
        log_warn("old checkpoints: %s: it is not removed for now", err->text);
    }
    if (store_set_aside(path, step, err) < 0)
        log_warn("%s", err->text);
    return 0;
}

static int return_to(struct pretrain *p, int64_t first, struct err *err)
{
    struct err own = { .code = ERR_FAILED, .text = "rank 0 could not remove later checkpoints" };
    int64_t step;

    if (restore_before(p, first, &step, err) < 0)
        return -1;
    pretrain_restore_state(p);
    p->saved_step = p->whole_step = step;
    p->compared_step = -1;
    p->owes_save = 0;
    pretrain_local_go_on(p, -1);
    upload_cancel_after(p->upload, step);
    int64_t failed = p->is_first && forget_later(p, step, first, &own) < 0;
    if (trainer_agree(p->trainer, &failed, err) < 0)
        return -1;
    if (failed) {
        *err = own;
        p->agreed = 1;
        return -1;
    }
    if (!p->is_first)
        return 0;
    if (pretrain_report_reopen(p, err) < 0)
        return -1;
    pretrain_monitor_returned(p);
    return 0;
}

static int go_back(struct pretrain *p, int64_t spike, const char *text, struct err *err)
{
    int margin = p->job->train.spike_margin, n_gaps = trainer_n_gaps(p->trainer);
    int64_t first = max_i64(p->origin_step, spike - margin), last = spike + margin;
    char what[384];

    if (n_gaps >= p->job->train.spike_rewinds) {
        p->agreed = 1;
        return err_set(
            err, ERR_FAILED,
            "step %" PRId64 ": %s, after the run has gone back %d time%s, "
            "train.spike_rewinds (hint: a lower optimizer.lr, a closer look at the data)",
            spike + 1, text, n_gaps, n_gaps == 1 ? "" : "s");
    }
    if (pretrain_end_earlier(p, err) < 0 || return_to(p, first, err) < 0)
        return -1;
    trainer_leave_out(p->trainer, first, last + 1 - first);
    snprintf(what, sizeof what,
             "step %" PRId64 ": %s: back to step %" PRId64 ", without the batches of steps %" PRId64
             " to %" PRId64,
             spike + 1, text, trainer_step_number(p->trainer), first + 1, last + 1);
    if (p->is_first)
        log_warn("%s", what);
    pretrain_report_event(p, "rewind", what);
    return 0;
}

int pretrain_heed_spike(struct pretrain *p, const struct trainer_result *r, struct err *err)
{
    double values[N_SPIKE_MEASURES] = { [SPIKE_LOSS] = r->loss, [SPIKE_NORM] = r->grad_norm };
    double z[N_SPIKE_MEASURES];
    char text[160];

    if (r->skipped && !r->refused)
        return 0;
    if (!spikes_find(&p->spikes, values, z)) {
        spikes_add(&p->spikes, values);
        return 0;
    }
    snprintf(text, sizeof text, "a spike: loss %.4g (z %.1f), gradient norm %.4g (z %.1f)", r->loss,
             z[SPIKE_LOSS], r->grad_norm, z[SPIKE_NORM]);
    if (p->is_first && p->job->train.on_spike != SPIKE_REWOUND)
        log_warn("step %" PRId64 ": %s%s", r->step, text,
                 r->refused ? ": the step is skipped" : "");
    pretrain_report_event(p, "spike", text);
    if (p->job->train.on_spike == SPIKE_REWOUND)
        return go_back(p, r->step - 1, text, err) < 0 ? -1 : 1;
    /* What stays on its new level is none any more. */
    if (!r->refused)
        spikes_add(&p->spikes, values);
    return 0;
}
