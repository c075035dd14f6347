/*
 * pretrain_upload.c - the uploads of a run's checkpoints: what the log and metrics tell of them
 *
 * That one fails changes nothing of the run, nor of its exit status.
 */
#include <stdio.h>

#include "base/log.h"
#include "base/num.h"
#include "train/pretrain_impl.h"
#include "train/signals.h"

static const double signal_seconds = 5; /* what a run waits that is ended early */
static const double grace_seconds = 5;

static void add(struct pretrain *p)
{
    char folder[PATH_BYTES];
    struct err ignored;

    if (p->upload && p->whole_step >= 0 &&
        pretrain_checkpoint_path(p, folder, p->whole_step, &ignored) == 0)
        upload_add(p->upload, folder, p->whole_step);
}

int pretrain_upload_open(struct pretrain *p, struct err *err)
{
    struct upload_options options = { .command = p->job->checkpoint.upload,
                                      .seconds = p->job->checkpoint.upload_seconds,
                                      .grace_seconds = grace_seconds };

    if (!p->is_first || !options.command || !*options.command)
        return 0;
    options.log = arena_printf(&p->arena, "%s/log/upload.log", p->job->output);
    return upload_create(&p->upload, &options, err);
}

void pretrain_upload_whole(struct pretrain *p)
{
    p->upload_is_owed = p->upload && p->whole_step == trainer_step_number(p->trainer) &&
                        pretrain_owes_evaluation(p);
    if (!p->upload_is_owed)
        add(p);
}

void pretrain_upload_owed(struct pretrain *p)
{
    if (p->upload_is_owed)
        add(p);
    p->upload_is_owed = false;
}

void pretrain_upload_report(struct pretrain *p)
{
    struct upload_report report;

    while (upload_take_report(p->upload, &report)) {
        if (report.is_done)
            log_info("%s", report.text);
        else
            log_warn("%s", report.text);
        pretrain_report_event(p, report.is_done ? "uploaded" : "not uploaded", report.text);
    }
}

/* A run whose end is waited for is no hang, and a signal ends the waiting. */
static bool may_wait(void *context)
{
    struct pretrain *p = context;

    progress_beat(p->progress);
    return !p->upload_is_last || !signals_pending();
}

void pretrain_upload_close(struct pretrain *p, int is_done)
{
    int64_t steps[2];
    char wait[32];
    double seconds = p->job->checkpoint.upload_wait;

    if (!p->upload)
        return;
    pretrain_upload_owed(p);
    if (!is_done && seconds > signal_seconds)
        seconds = signal_seconds;
    if (upload_holds(p->upload, steps))
        log_info("uploading the checkpoint of step %lld: the run waits for at most %s",
                 (long long)steps[0], str_duration(wait, sizeof wait, seconds));
    progress_phase(p->progress, "uploading a checkpoint");
    p->upload_is_last = is_done;
    upload_finish(p->upload, seconds, may_wait, p);
    pretrain_upload_report(p);
    upload_destroy(p->upload);
    p->upload = NULL;
}
