/*
 * pretrain_hooks.c - which events of a run its hooks get (hooks.h). Rank 0 alone
 *
 * The event of a step or an evaluation is its line of metrics.jsonl.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "progress/progress.h"
#include "train/hooks.h"
#include "train/pretrain_impl.h"
#include "train/signals.h"

static const double signal_seconds = 5; /* what a run waits that is ended early */
static const double grace_seconds = 5;

int pretrain_hooks_open(struct pretrain *p, struct err *err)
{
    const struct job *job = p->job;
    char *run = p->is_first ? realpath(job->output, NULL) : NULL;
    struct hooks_options options = { .commands = { [HOOK_STEP] = job->hooks.on_step,
                                                   [HOOK_EVAL] = job->hooks.on_eval,
                                                   [HOOK_SAVE] = job->hooks.on_save,
                                                   [HOOK_END] = job->hooks.on_end },
                                     .run = run ? run : job->output,
                                     .seconds = job->hooks.seconds,
                                     .grace_seconds = grace_seconds };
    int status = 0;

    if (p->is_first) {
        options.log = arena_printf(&p->arena, "%s/log/hooks.log", job->output);
        status = hooks_create(&p->hooks, &options, err);
    }
    free(run);
    return status;
}

void pretrain_hooks_line(struct pretrain *p, enum hook_kind kind)
{
    if (!p->hooks)
        return;
    const char *line = metrics_line(p->metrics);
    size_t n = strlen(line);
    char *members = strndup(line + 1, n > 2 ? n - 3 : 0); /* without {, } and the line's end */

    CHECK(members);
    hooks_put(p->hooks, kind, members);
    free(members);
}

void pretrain_hooks_saved(struct pretrain *p, const char *folder)
{
    struct str members = { 0 };
    char *path = p->hooks ? realpath(folder, NULL) : NULL;

    if (!p->hooks)
        return;
    str_printf(&members, "\"step\":%lld,\"checkpoint\":", (long long)p->whole_step);
    json_add_string(&members, path ? path : folder);
    hooks_put(p->hooks, HOOK_SAVE, str_text(&members));
    str_release(&members);
    free(path);
}

/* A run whose end is waited for is no hang, and a signal ends the waiting. */
static bool may_wait(void *context)
{
    struct pretrain *p = context;

    progress_beat(p->progress);
    return !p->upload_is_last || !signals_pending();
}

void pretrain_hooks_close(struct pretrain *p, const struct err *why)
{
    struct str members = { 0 };
    double seconds = p->job->hooks.seconds;

    if (!p->hooks)
        return;
    str_printf(&members, "\"step\":%lld,\"status\":\"%s\",\"exit_status\":%d,\"text\":",
               p->trainer ? (long long)trainer_step_number(p->trainer) : 0LL,
               !why                       ? "done"
               : why->code == ERR_REQUEUE ? "saved"
                                          : "failed",
               why ? (int)why->code : 0);
    json_add_string(&members, why ? why->text : "");
    hooks_put(p->hooks, HOOK_END, str_text(&members));
    str_release(&members);
    p->upload_is_last = !why;
    progress_phase(p->progress, "running hooks.on_end");
    hooks_close(p->hooks, why && seconds > signal_seconds ? signal_seconds : seconds, may_wait, p);
    p->hooks = NULL;
}
