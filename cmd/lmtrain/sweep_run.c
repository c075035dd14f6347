/*
 * sweep_run.c - the loop of a sweep: tasks from the judge to processes, and their results to the
 * history, then to the judge
 *
 * The order is what makes a kill harmless at any moment. A start is written before the process is
 * there, a value once the trial has saved it; decisions follow from these, and are written after
 * them. What a kill left under way starts again, from the trial's newest checkpoint.
 */
#include "sweep_run.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "launch/stop.h"

#define DEATHS_MAX 2       /* in a row without progress, until a slot gets no more trials */
#define ABORTED_STATUS 134 /* of a rank that says why itself: CHECK */
#define TRIES_MAX 3        /* of a task whose process ends without progress */
#define LINE_BYTES 512

/* ---- messages ---- */

/* Above the live table. */
static void say(void *context, enum log_level level, const char *line)
{
    struct sweep_session *s = context;

    sweep_erase(s);
    fprintf(stderr, level >= LOG_WARN ? "lmtrain: %s\n" : "%s\n", line);
    sweep_draw(s);
}

static void say_value(const struct sweep_session *s, const struct history_record *r)
{
    const struct history_header *h = &s->history.header;

    if (h->rungs[h->n_rungs - 1])
        log_info("trial %d: step %" PRId64 " of %" PRId64 ", %s %.5g", r->trial, r->step,
                 h->rungs[h->n_rungs - 1], h->metric, r->value);
    else
        log_info("trial %d: step %" PRId64 ", %s %.5g", r->trial, r->step, h->metric, r->value);
}

/* ---- results ---- */

/* Of a rung whose trials were all decided about: which go on. */
static void say_rung(const struct sweep_session *s, const struct judge_decision *first, int n)
{
    struct str text = { 0 };
    int n_on = 0;

    for (int i = 0; i < n; i++)
        if (first[i].goes_on)
            str_printf(&text, n_on++ ? ", %d" : ": %d", first[i].trial);
    log_info("%s: %d of %d trials go on%s",
             sweep_rung_name(&s->history.header, first->rung, s->arena), n_on, n, str_text(&text));
    str_release(&text);
}

static void say_decisions(const struct sweep_session *s, const struct judge_decision *first, int n)
{
    const struct history_header *h = &s->history.header;

    if (n > 1) {
        say_rung(s, first, n);
        return;
    }
    for (int i = 0; i < n; i++)
        if (first[i].goes_on)
            log_info("trial %d goes on to %s", first[i].trial,
                     sweep_rung_name(h, first[i].rung + 1, s->arena));
        else
            log_info("trial %d is stopped at %s", first[i].trial,
                     sweep_rung_name(h, first[i].rung, s->arena));
}

int sweep_write_decisions(struct sweep_session *s, struct err *err)
{
    int first = s->n_written;

    for (; s->n_written < s->judge.n_decisions; s->n_written++) {
        const struct judge_decision *d = &s->judge.decisions[s->n_written];
        struct history_record r = { .event = d->goes_on ? HISTORY_GO_ON : HISTORY_STOP,
                                    .trial = d->trial,
                                    .rung = d->rung };

        if (history_add(s->history_fd, &r, err) < 0)
            return -1;
    }
    if (s->n_written > first)
        say_decisions(s, &s->judge.decisions[first], s->n_written - first);
    return 0;
}

int sweep_take_value(struct sweep_session *s, const struct history_record *r, struct err *err)
{
    if (history_add(s->history_fd, r, err) < 0)
        return -1;
    say_value(s, r);
    judge_report(&s->judge, r->trial, history_judged(&s->history.header, r->value));
    return sweep_write_decisions(s, err);
}

static int take_failure(struct sweep_session *s, int trial, const char *why, struct err *err)
{
    struct history_record r = {
        .event = HISTORY_FAIL, .trial = trial, .rung = s->judge.trials[trial].rung, .text = why
    };

    if (history_add(s->history_fd, &r, err) < 0)
        return -1;
    log_warn("trial %d failed: %s (%s)", trial, why, history_trial_log(s->output, trial, s->arena));
    s->reasons[trial] = arena_strdup(s->arena, why);
    judge_fail(&s->judge, trial);
    return sweep_write_decisions(s, err);
}

/* ---- trials that died ---- */

static bool any_other(const struct sweep_session *s, const struct sweep_slot *slot)
{
    for (int i = 0; i < s->n_slots; i++)
        if (&s->slots[i] != slot && !s->slots[i].is_lost)
            return true;
    return false;
}

/* Hosts on which trials only die would let one trial after another fail. */
static void note_death(struct sweep_session *s, struct sweep_slot *slot)
{
    slot->n_deaths = sweep_saved_step(s, slot->trial) > slot->began_at ? 0 : slot->n_deaths + 1;
    if (!slot->name || slot->n_deaths < DEATHS_MAX || !any_other(s, slot))
        return;
    slot->is_lost = true;
    log_warn("%d trials in a row died on %s: it gets no more of them", slot->n_deaths, slot->name);
}

/* The trial waits for a slot, here or elsewhere. */
static int retry(struct sweep_session *s, int trial, const char *why, struct err *err)
{
    struct history_record r = {
        .event = HISTORY_RETRY, .trial = trial, .rung = s->judge.trials[trial].rung, .text = why
    };

    if (history_add(s->history_fd, &r, err) < 0)
        return -1;
    log_warn("trial %d died: %s; it starts again (%d of %d)", trial, why, ++s->n_retries[trial],
             s->job.sweep.retries);
    s->retries[s->n_waiting++] = trial;
    return 0;
}

int sweep_start_waiting(struct sweep_session *s, struct sweep_slot *slot, struct err *err)
{
    slot->trial = s->retries[0];
    slot->n_tries = 0;
    memmove(s->retries, s->retries + 1, sizeof *s->retries * (size_t)--s->n_waiting);
    return sweep_start(s, slot, err) < 0 ? -1 : 1;
}

/* Why a trial ended like this, by what it said last. */
static void explain_end(const struct sweep_session *s, int trial, int status, char *line,
                        size_t size)
{
    char last[LINE_BYTES];

    trial_last_line(history_trial_log(s->output, trial, s->arena), last, sizeof last);
    if (!status)
        snprintf(line, size, "metrics.jsonl has no %s of its last step (hint: sweep.metric)",
                 s->history.header.metric);
    else if (*last && (status < 128 || status == ABORTED_STATUS))
        snprintf(line, size, "%s", last);
    else if (status > 128 && *last)
        snprintf(line, size, "killed by signal %d after \"%s\"", status - 128, last);
    else if (status > 128)
        snprintf(line, size, "killed by signal %d", status - 128);
    else
        snprintf(line, size, "it ended with status %d", status);
}

/* The slot's process ended. One that saved on a signal that was not ours goes on where it is. */
int sweep_take_end(struct sweep_session *s, struct sweep_slot *slot, int status, struct err *err)
{
    struct history_record value;
    char why[2 * LINE_BYTES];
    int trial = slot->trial, found = 0;

    slot->process = 0;
    if (status == 0 || status == ERR_REQUEUE)
        found = sweep_look(s, trial, &value, err);
    if (found) {
        slot->n_deaths = 0;
        return found < 0 ? -1 : sweep_take_value(s, &value, err);
    }
    if (status == ERR_REQUEUE && !s->n_stops) {
        slot->n_tries = sweep_saved_step(s, trial) > slot->began_at ? 0 : slot->n_tries + 1;
        if (slot->n_tries < TRIES_MAX)
            return sweep_start(s, slot, err);
    }
    /* Killed together with us: it is not the trial's failure. */
    if (s->n_stops)
        return 0;
    explain_end(s, trial, status, why, sizeof why);
    /* A host or node that cannot be reached is ERR_FAILED: the trial's only fault is its place. */
    if (trial_died(status) || (slot->name && status == ERR_FAILED)) {
        note_death(s, slot);
        if (s->n_retries[trial] < s->job.sweep.retries)
            return retry(s, trial, why, err);
    }
    return take_failure(s, trial, why, err);
}

/* ---- the loop ---- */

/* Give the slot its next task. Returns 1, 0 if there is none, or -1. */
static int fill_slot(struct sweep_session *s, struct sweep_slot *slot, struct err *err)
{
    if (s->n_waiting)
        return sweep_start_waiting(s, slot, err);
    int trial = judge_next(&s->judge);
    struct history_record r = { .event = HISTORY_START, .trial = trial }, value;

    if (trial < 0)
        return 0;
    r.rung = s->judge.trials[trial].rung;
    if (history_add(s->history_fd, &r, err) < 0 || sweep_write_decisions(s, err) < 0)
        return -1;
    int found = sweep_look(s, trial, &value, err);
    if (found)
        return found < 0 || sweep_take_value(s, &value, err) < 0 ? -1 : 1;
    slot->trial = trial;
    slot->n_tries = 0;
    if (sweep_start(s, slot, err) < 0)
        return -1;
    return 1;
}

static int fill_slots(struct sweep_session *s, struct err *err)
{
    for (int i = 0; i < s->n_slots && !s->n_stops; i++)
        while (!s->slots[i].process && !s->slots[i].is_lost) {
            int status = fill_slot(s, &s->slots[i], err);

            if (status < 0)
                return -1;
            if (!status)
                break;
        }
    return 0;
}

static int reap(struct sweep_session *s, struct err *err)
{
    int status;

    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].process && trial_ended(s->slots[i].process, &status) &&
            sweep_take_end(s, &s->slots[i], status, err) < 0)
            return -1;
    return 0;
}

static bool is_busy(const struct sweep_session *s)
{
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].process)
            return true;
    return false;
}

/* To the heads, which pass it on. */
static void signal_trials(const struct sweep_session *s, int number)
{
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].process)
            kill(s->slots[i].process, number);
}

static void list_signals(sigset_t *set)
{
    static const int numbers[] = { SIGTERM, SIGINT, SIGUSR1, SIGCHLD };

    sigemptyset(set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(set, numbers[i]);
    if (!stop_hangup_is_ignored())
        sigaddset(set, SIGHUP);
}

void sweep_block_signals(void)
{
    sigset_t set;

    list_signals(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

/* Until a trial may have ended, a second has passed, or a signal asked to stop. */
void sweep_wait(struct sweep_session *s)
{
    const struct timespec second = { 1, 0 };
    sigset_t set;

    list_signals(&set);
    int number = sigtimedwait(&set, NULL, &second);
    if (number <= 0 || number == SIGCHLD)
        return;
    if (!s->n_stops++)
        log_info("signal %d: the trials save and end; the same command continues (a second signal "
                 "ends them without saving)",
                 number);
    signal_trials(s, s->n_stops > 2 ? SIGKILL : SIGTERM);
}

static int loop(struct sweep_session *s, struct err *err)
{
    for (;;) {
        if (reap(s, err) < 0 || fill_slots(s, err) < 0)
            return -1;
        if (!is_busy(s))
            return 0;
        sweep_draw(s);
        sweep_wait(s);
    }
}

/* ---- ended ---- */

/* How many of the best ones are the ensemble: as many as the job says, of those that finished. */
static int count_ensemble(const struct sweep_session *s, const int *order)
{
    int n = 0;

    while (n < s->judge.rules.n_trials && n < s->job.sweep.ensemble &&
           s->judge.trials[order[n]].state == JUDGE_FINISHED)
        n++;
    return n;
}

/* Whether the history says so already. */
static bool has_ended(const struct sweep_session *s, int n_ensemble)
{
    int n = s->history.n_records;

    return n && s->history.records[n - 1].event == HISTORY_END &&
           s->history.n_ensemble == n_ensemble;
}

int sweep_finish(struct sweep_session *s, bool json, struct err *err)
{
    int *order = arena_array(s->arena, int, s->judge.rules.n_trials);
    struct str out = { 0 };

    judge_rank(&s->judge, order);
    bool has_best = s->judge.trials[order[0]].state == JUDGE_FINISHED;
    int n_ensemble = count_ensemble(s, order);
    if (!has_ended(s, n_ensemble) &&
        history_add_end(s->history_fd, has_best ? order[0] : -1, order, n_ensemble, err) < 0)
        return cmd_fail(err);
    sweep_print(s, json, &out);
    int status = cmd_print(&out);
    str_release(&out);
    if (status || has_best)
        return status;
    err_set(err, ERR_FAILED, "no trial of %d finished", s->judge.rules.n_trials);
    return cmd_fail(err);
}

static int stopped(const struct sweep_session *s, struct err *err)
{
    err_set(err, ERR_REQUEUE, "the sweep in %s is interrupted: the same command continues it",
            s->output);
    return cmd_fail(err);
}

int sweep_run(const struct sweep_request *q, const char *job_file, struct arena *arena)
{
    struct sweep_session s = { .sets = &q->sets, .history_fd = -1, .lock = -1, .arena = arena };
    struct err err;

    sweep_block_signals();
    if (sweep_read_job(&s, q, job_file, &err) < 0 || sweep_prepare(&s, q, job_file, &err) < 0)
        return cmd_fail(&err);
    s.is_live = isatty(STDERR_FILENO);
    log_set_sink(say, &s);
    int status = loop(&s, &err);
    sweep_erase(&s);
    log_set_sink(NULL, NULL);
    /* An error of ours: the trials save, and the same command goes on with them. */
    if (status < 0)
        signal_trials(&s, SIGTERM);
    status = status < 0                              ? cmd_fail(&err)
             : s.n_stops && !judge_is_over(&s.judge) ? stopped(&s, &err)
                                                     : sweep_finish(&s, q->json, &err);
    close(s.history_fd);
    close(s.lock);
    return status;
}
