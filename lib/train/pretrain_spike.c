/*
 * pretrain_spike.c - what a run does about spikes: report, refuse the update, go back
 *
 * A run that goes back restores the newest checkpoint before the batches that it leaves out, so
 * that what is trained in the end does not depend on when checkpoints were made: up to those
 * batches its steps are repeated bit for bit. The gap is kept by the trainer, with all checkpoints
 * from then on; a resume from an older one meets the same spike and goes back in the same way.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "base/num.h"
#include "train/pretrain_impl.h"

bool pretrain_refuse(void *context, double loss, double grad_norm)
{
    const struct pretrain *p = context;
    double z[N_SPIKE_MEASURES];

    return spikes_find(&p->spikes, (double[]){ [SPIKE_LOSS] = loss, [SPIKE_NORM] = grad_norm }, z);
}

/* The newest checkpoint of at most step `first`, from which all that is left out lies ahead; else
 * the newest before the spike, from which on it is left out. *step is -1 if there is none. */
static int find_checkpoint(struct pretrain *p, int64_t spike, int64_t *first, int64_t *step,
                           struct err *err)
{
    if (pretrain_find_newest(p, *first + 1, step, err) < 0)
        return -1;
    if (*step >= 0)
        return 0;
    if (pretrain_find_newest(p, spike + 1, step, err) < 0)
        return -1;
    *first = max_i64(*first, *step);
    return 0;
}

/* text: what was found. Returns 1, 0 if there is nothing to go back to, or -1. */
static int go_back(struct pretrain *p, int64_t spike, const char *text, struct err *err)
{
    int margin = p->job->train.spike_margin, n_gaps = trainer_n_gaps(p->trainer);
    int64_t first = max_i64(0, spike - margin), step;
    char what[256];
    struct err why;

    if (n_gaps >= p->job->train.spike_rewinds) {
        p->agreed = 1;
        return err_set(
            err, ERR_FAILED,
            "step %" PRId64 ": %s, after the run has gone back %d time%s, "
            "train.spike_rewinds (hint: a lower optimizer.lr, a closer look at the data)",
            spike + 1, text, n_gaps, n_gaps == 1 ? "" : "s");
    }
    if (trainer_save_finish(p->trainer, &why) < 0 && why.code == ERR_PEER) {
        *err = why;
        return -1;
    }
    if (find_checkpoint(p, spike, &first, &step, err) < 0)
        return -1;
    if (step < 0) {
        log_info("step %" PRId64 ": there is no checkpoint to go back to", spike + 1);
        return 0;
    }
    upload_cancel_after(p->upload, step);
    if (pretrain_return_to(p, step, first, spike + margin + 1 - first, err) < 0)
        return -1;
    snprintf(what, sizeof what,
             "step %" PRId64 ": %s: back to step %" PRId64 ", without the batches of steps %" PRId64
             " to %" PRId64,
             spike + 1, text, step, first + 1, spike + margin + 1);
    if (p->is_first)
        log_warn("%s", what);
    pretrain_report_event(p, "rewind", what);
    return 1;
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
    if (p->job->train.on_spike == SPIKE_REWOUND) {
        int status = go_back(p, r->step - 1, text, err);

        if (status)
            return status;
    }
    /* What stays on its new level is none any more. */
    if (!r->refused)
        spikes_add(&p->spikes, values);
    return 0;
}
