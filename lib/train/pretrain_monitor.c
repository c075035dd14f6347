/*
 * pretrain_monitor.c - how a run fares: goodput, stragglers, the file for Prometheus. Rank 0 alone
 *
 * Goodput is the share of the wall time since the run's first start that went into steps whose
 * result still counts. What metrics.jsonl keeps at a restart are the lines of steps that count and
 * the starts of all processes, so both numbers survive any death.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "launch/excluded.h"
#include "report/prometheus.h"
#include "train/pretrain_impl.h"

#define WRITE_SECONDS 5.0 /* between two files for Prometheus */

static double unix_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- goodput ---- */

void pretrain_monitor_open(struct pretrain *p)
{
    struct run_account *account = &p->account;
    struct metrics_history history = metrics_history(p->metrics);
    char text[256], pause[64] = "";

    account->begun_at = history.begun_at > 0 ? history.begun_at : unix_seconds();
    account->useful_s = history.useful_s;
    account->n_starts = history.n_starts + 1;
    account->n_pauses = history.n_pauses;
    account->paused_s = history.paused_s;
    account->written_at = -INFINITY;
    if (history.paused_at > 0) {
        account->n_pauses++;
        account->paused_s += fmax(0, unix_seconds() - history.paused_at);
        snprintf(pause, sizeof pause, ", paused at step %" PRId64, history.pause_step);
    }
    snprintf(text, sizeof text, "start %" PRId64 " of the run%s: %d rank%s, the first on %s",
             account->n_starts, pause, p->options->engine->rank.world_size,
             str_s(p->options->engine->rank.world_size), launch_host());
    pretrain_report_event(p, *pause ? "resumed" : "started", text);
}

int64_t pretrain_n_restarts(const struct pretrain *p)
{
    return p->account.n_starts - 1 - p->account.n_pauses;
}

/* What a step's gate waited for are saves, and comparisons of replicas. */
void pretrain_monitor_step(struct pretrain *p, const struct trainer_result *r, double seconds)
{
    double gate = trainer_gate_seconds(p->trainer);

    p->account.useful_s += r->skipped ? 0 : seconds - gate;
    p->account.blocked_s += gate;
}

void pretrain_monitor_blocked(struct pretrain *p, double seconds)
{
    p->account.blocked_s += seconds;
}

void pretrain_monitor_returned(struct pretrain *p)
{
    p->account.useful_s = metrics_history(p->metrics).useful_s;
    p->learning = (struct learning){ .is_flat_told = p->learning.is_flat_told,
                                     .is_rise_told = p->learning.is_rise_told };
}

double pretrain_monitor_elapsed(const struct pretrain *p)
{
    return unix_seconds() - p->account.begun_at;
}

void pretrain_monitor_say(const struct pretrain *p)
{
    const struct run_account *account = &p->account;
    double whole = pretrain_monitor_elapsed(p) - account->paused_s;
    int64_t n_restarts = pretrain_n_restarts(p);
    char useful[32], all[32], pauses[64] = "";

    if (account->n_pauses)
        snprintf(pauses, sizeof pauses, " without %" PRId64 " pause%s", account->n_pauses,
                 account->n_pauses == 1 ? "" : "s");
    log_info("goodput %.1f %%: %s of %s since the first start%s in steps that count; %" PRId64
             " restart%s",
             whole > 0 ? 100 * fmin(account->useful_s / whole, 1) : 0,
             str_duration(useful, sizeof useful, account->useful_s),
             str_duration(all, sizeof all, whole), pauses, n_restarts, n_restarts == 1 ? "" : "s");
}

/* ---- stragglers ---- */

static void describe(const double seconds[N_STRAGGLER_CLASSES], char *text, size_t size)
{
    size_t used = 0;

    *text = '\0';
    for (int class = 0; class < N_STRAGGLER_CLASSES && used < size; class ++)
        used += (size_t)snprintf(text + used, size - used, "%s%s %.3g ms", class ? ", " : "",
                                 straggler_class_name((enum straggler_class) class),
                                 1e3 * seconds[class]);
}

void pretrain_monitor_straggler(void *context, const struct straggler_finding *f, const char *host)
{
    struct pretrain *p = context;
    char text[512], own[128], peers[128], note[96] = "";

    if (f->is_over) {
        snprintf(text, sizeof text,
                 "rank %d (%s) is no straggler any more: %.2f times as long as its %d peer%s",
                 f->rank, host, f->ratio, f->n_peers, str_s(f->n_peers));
        log_info("step %" PRId64 ": %s", trainer_step_number(p->trainer), text);
    } else {
        describe(f->own, own, sizeof own);
        describe(f->peers, peers, sizeof peers);
        snprintf(text, sizeof text,
                 "rank %d (%s) is a straggler: for %" PRId64
                 " steps %.2f times as long as its %d peer%s, most of it in %s; a step takes it "
                 "%s, and them %s",
                 f->rank, host, f->n_steps, f->ratio, f->n_peers, str_s(f->n_peers),
                 straggler_class_name(f->class), own, peers);
        log_warn("step %" PRId64 ": %s", trainer_step_number(p->trainer), text);
        snprintf(note, sizeof note, "rank %d (%s) x%.2f", f->rank, host, f->ratio);
    }
    pretrain_report_event(p, f->is_over ? "straggler over" : "straggler", text);
    if (*note || !rank_watch_n_stragglers(p->watch))
        terminal_note(p->terminal, note);
}

/* ---- the file ---- */

static void describe_run(const struct pretrain *p, bool is_running, struct prometheus_run *run)
{
    const struct run_account *account = &p->account;
    const struct metrics_step *m = &account->last;
    struct straggler_finding slowest;
    const char *host;

    *run = (struct prometheus_run){ .run = p->job->output,
                                    .is_running = is_running,
                                    .step = trainer_step_number(p->trainer),
                                    .steps = p->job->train.steps,
                                    .loss = m->loss,
                                    .grad_norm = m->grad_norm,
                                    .lr = m->lr,
                                    .tokens = trainer_tokens(p->trainer),
                                    .tokens_per_s = m->tokens_per_s,
                                    .step_s = m->step_s,
                                    .mfu = m->mfu,
                                    .skipped = trainer_n_skipped(p->trainer),
                                    .restarts = pretrain_n_restarts(p),
                                    .pauses = account->n_pauses,
                                    .run_seconds = pretrain_monitor_elapsed(p) - account->paused_s,
                                    .useful_seconds = account->useful_s,
                                    .save_seconds = trainer_save_seconds(p->trainer),
                                    .save_blocked_seconds = account->blocked_s,
                                    .n_stragglers = rank_watch_n_stragglers(p->watch),
                                    .slowest_rank = -1 };
    if (!rank_watch_slowest(p->watch, &slowest, &host))
        return;
    run->slowest_rank = slowest.rank;
    run->slowest_host = host;
    run->slowest_ratio = slowest.ratio;
}

static void write_file(struct pretrain *p, bool is_running)
{
    struct prometheus_run run;
    struct err err;

    describe_run(p, is_running, &run);
    int status = prometheus_write(p->job->metrics.prometheus, &run, &err);
    if (status < 0 && !p->account.is_unwritten)
        log_warn("metrics.prometheus: %s: training continues without it", err.text);
    p->account.is_unwritten = status < 0;
    p->account.written_at = clock_seconds();
}

void pretrain_monitor_write(struct pretrain *p, const struct metrics_step *step)
{
    p->account.last = *step;
    if (p->job->metrics.prometheus && clock_seconds() - p->account.written_at >= WRITE_SECONDS)
        write_file(p, true);
}

void pretrain_monitor_close(struct pretrain *p)
{
    if (p->metrics && p->job->metrics.prometheus && p->account.n_starts)
        write_file(p, false);
}
