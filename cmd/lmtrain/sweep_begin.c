/*
 * sweep_begin.c - a sweep's folder: begun by a job, or gone on with, if the job is still the same
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "base/yaml.h"
#include "sweep/space.h"
#include "sweep_run.h"
#include "train/run_lock.h"

#define LINE_BYTES 512
#define SAVE_SECONDS 120 /* that a trial of a killed sweep has to save */
#define N_CHECKED 20     /* trials whose jobs are read before any starts */

/* ---- the job as it was ---- */

/* A job like this one but for what a sweep may change when it goes on. */
static void describe_base(const struct job *job, struct str *out)
{
    struct job copy = *job;

    memset(&copy.sweep, 0, sizeof copy.sweep);
    copy.sweep.eta = 2;
    copy.sweep.parallel = copy.sweep.min_trials = copy.sweep.retries = 1;
    copy.sweep.metric = "eval.loss";
    job_print_absolute(&copy, out);
}

/* The first line in which two texts differ, without blanks at its beginning; into buffers. */
static bool first_difference(const char *a, const char *b, char *line_a, char *line_b, size_t size)
{
    while (*a && *b) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");

        if (n != m || memcmp(a, b, n) != 0) {
            snprintf(line_a, size, "%.*s", (int)n, a);
            snprintf(line_b, size, "%.*s", (int)m, b);
            return true;
        }
        a += n + (a[n] == '\n');
        b += m + (b[m] == '\n');
    }
    return false;
}

/* What the sweep began with is what the job says now. */
static int check_base(const struct sweep_session *s, const char *now, struct err *err)
{
    const char *path = arena_printf(s->arena, "%s/job.yaml", s->output);
    char ours[LINE_BYTES], theirs[LINE_BYTES], *text;
    size_t n_bytes;

    if (!file_exists(path))
        return file_write(path, now, strlen(now), err);
    if (file_read(path, YAML_MAX_BYTES, ERR_DATA, &text, &n_bytes, err) < 0)
        return -1;
    bool differs = first_difference(now, text, ours, theirs, sizeof ours);
    free(text);
    if (!differs)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "%s: the sweep in %s began with another job: \"%s\", now \"%s\" (hint: a "
                   "different output folder)",
                   s->job.source, s->output, theirs + strspn(theirs, " "),
                   ours + strspn(ours, " "));
}

static int refuse_other(const struct sweep_session *s, const char *key, const char *was,
                        const char *now, struct err *err)
{
    return err_set(err, ERR_CONFIG,
                   "%s: sweep.%s is now %s, but the sweep in %s began with %s (hint: a different "
                   "output folder)",
                   s->job.source, key, now, s->output, was);
}

static int refuse_other_number(const struct sweep_session *s, const char *key, int64_t was,
                               int64_t now, struct err *err)
{
    return refuse_other(s, key, arena_printf(s->arena, "%" PRId64, was),
                        arena_printf(s->arena, "%" PRId64, now), err);
}

/* The header of the history against that of the job as it is now. */
static int check_header(const struct sweep_session *s, const struct history_header *now,
                        struct err *err)
{
    const struct history_header *was = &s->history.header;
    const struct choice *tables[] = { sweep_search_choices, sweep_goal_choices,
                                      sweep_stop_choices };
    const char *const keys[] = { "search", "goal", "stop" };
    const int were[] = { (int)was->search, (int)was->goal, (int)was->stop };
    const int are[] = { (int)now->search, (int)now->goal, (int)now->stop };

    for (int i = 0; i < 3; i++)
        if (were[i] != are[i])
            return refuse_other(s, keys[i], choice_word(tables[i], were[i]),
                                choice_word(tables[i], are[i]), err);
    if (strcmp(was->metric, now->metric) != 0)
        return refuse_other(s, "metric", was->metric, now->metric, err);
    if (strcmp(was->parameters, now->parameters) != 0)
        return refuse_other(s, "parameters", was->parameters, now->parameters, err);
    if (was->seed != now->seed)
        return refuse_other_number(s, "seed", (int64_t)was->seed, (int64_t)now->seed, err);
    if (was->eta != now->eta)
        return refuse_other_number(s, "eta", was->eta, now->eta, err);
    if (was->min_trials != now->min_trials)
        return refuse_other_number(s, "min_trials", was->min_trials, now->min_trials, err);
    if (was->is_asynchronous != now->is_asynchronous)
        return refuse_other(s, "asynchronous", was->is_asynchronous ? "true" : "false",
                            now->is_asynchronous ? "true" : "false", err);
    if (was->n_rungs != now->n_rungs || was->rungs[0] != now->rungs[0])
        return refuse_other_number(s, "min_steps", was->rungs[0], now->rungs[0], err);
    if (now->n_trials < was->n_trials ||
        (now->n_trials > was->n_trials && was->stop != SWEEP_STOP_NONE))
        return err_set(err, ERR_CONFIG,
                       "%s: sweep.trials is now %d, but the sweep in %s has %d, and %s (hint: "
                       "%d, or a different output folder)",
                       s->job.source, now->n_trials, s->output, was->n_trials,
                       now->n_trials < was->n_trials
                           ? "none are taken back"
                           : "what sweep.stop decided depends on how many there are",
                       was->n_trials);
    return 0;
}

/* Lines of trials that the history does not have yet. */
static int write_trials(struct sweep_session *s, struct err *err)
{
    for (int i = s->history.n_settings; i < s->history.header.n_trials; i++) {
        struct sweep_row row;

        space_settings(&s->job, i, &row, s->arena);
        s->history.settings[i] = history_settings(&row, s->arena);
        if (history_add_trial(s->history_fd, i, s->history.settings[i], err) < 0)
            return -1;
        s->history.n_settings = i + 1;
    }
    return 0;
}

static int begin(struct sweep_session *s, const struct history_header *header, const char *path,
                 struct err *err)
{
    s->history = (struct history){ .header = *header };
    s->history.settings = arena_array(s->arena, const char *, SWEEP_TRIALS_MAX);
    s->history_fd = history_open(path, 0, err);
    if (s->history_fd < 0 || history_add_header(s->history_fd, header, err) < 0)
        return -1;
    return write_trials(s, err);
}

static bool any_running(const struct judge *judge)
{
    for (int i = 0; i < judge->rules.n_trials; i++)
        if (judge->trials[i].state == JUDGE_RUNNING)
            return true;
    return false;
}

int sweep_await_trial(const struct sweep_session *s, int trial, struct err *err)
{
    const char *folder = history_trial_folder(s->output, trial, s->arena);
    const char *log = history_trial_log(s->output, trial, s->arena);
    const struct timespec pause = { 0, 20000000 };
    double end = clock_seconds() + SAVE_SECONDS;

    while (lock_is_held(log) || run_lock_is_held(folder)) {
        if (clock_seconds() > end)
            return err_set(err, ERR_CONFIG,
                           "%s is in use by another job, which the sweep did not start or "
                           "which does not end (hint: %s/lock names its process)",
                           folder, folder);
        nanosleep(&pause, NULL);
    }
    return 0;
}

static int await_trials(const struct sweep_session *s, struct err *err)
{
    for (int i = 0; i < s->judge.rules.n_trials; i++)
        if (s->judge.trials[i].state == JUDGE_RUNNING && sweep_await_trial(s, i, err) < 0)
            return -1;
    return 0;
}

static int go_on(struct sweep_session *s, const struct history_header *header, const char *path,
                 struct err *err)
{
    struct history_record more = { .event = HISTORY_MORE, .trial = header->n_trials };
    struct history_record resume = { .event = HISTORY_RESUME };

    if (check_header(s, header, err) < 0)
        return -1;
    s->history_fd = history_open(path, s->history.n_bytes, err);
    if (s->history_fd < 0)
        return -1;
    if (header->n_trials > s->history.header.n_trials) {
        if (history_add(s->history_fd, &more, err) < 0)
            return -1;
        s->history.header.n_trials = header->n_trials;
    }
    if (write_trials(s, err) < 0 ||
        history_replay(&s->history, &s->judge, &s->n_written, s->arena, err) < 0 ||
        sweep_write_decisions(s, err) < 0)
        return -1;
    if (s->is_joint)
        return 0;
    if (any_running(&s->judge)) {
        if (await_trials(s, err) < 0)
            return -1;
        judge_interrupt(&s->judge);
        if (history_add(s->history_fd, &resume, err) < 0)
            return -1;
    }
    if (!judge_is_over(&s->judge))
        log_info("the sweep in %s continues", s->output);
    return 0;
}

/* What the history says of trials that failed or died. */
static void recall_failures(struct sweep_session *s)
{
    int n = s->judge.rules.n_trials;

    s->reasons = arena_array(s->arena, const char *, n);
    s->n_retries = arena_array(s->arena, int, n);
    s->retries = arena_array(s->arena, int, n);
    for (int i = 0; i < s->history.n_records; i++) {
        const struct history_record *r = &s->history.records[i];

        if (r->event == HISTORY_FAIL)
            s->reasons[r->trial] = r->text;
        else if (r->event == HISTORY_RETRY && s->is_joint)
            s->n_retries[r->trial]++;
    }
}

/* The judge, from a history that is there or begins now. */
static int open_history(struct sweep_session *s, const char *job_file, struct err *err)
{
    const char *path = history_path(s->output, s->arena);
    struct history_header header;

    s->history = (struct history){ .n_records = 0 };
    s->n_written = 0;
    history_describe(&header, &s->job, job_file, s->arena);
    if (file_exists(path) && history_read(&s->history, path, s->arena, err) < 0)
        return -1;
    if (s->history.header.n_trials) {
        if (go_on(s, &header, path, err) < 0)
            return -1;
    } else {
        struct judge_rules rules = history_rules(&header);

        if (begin(s, &header, path, err) < 0)
            return -1;
        judge_init(&s->judge, &rules, s->arena);
    }
    recall_failures(s);
    return 0;
}

/* ---- all of it ---- */

/* A job of which no trial can be is better refused now: if none of the first ones can be read. */
static int check_settings(struct sweep_session *s, struct err *err)
{
    int n = min_int(space_n_trials(&s->job), N_CHECKED), n_bad = 0;

    for (int i = 0; i < n; i++) {
        struct arena arena = { 0 };
        struct sweep_row row;
        struct job job;
        struct err why;

        space_settings(&s->job, i, &row, &arena);
        const char **sets = arena_array(&arena, const char *, s->sets->n + row.n + 1);
        int n_sets = 0;
        for (int k = 0; k < s->sets->n; k++)
            sets[n_sets++] = s->sets->items[k];
        sets[n_sets++] = "sweep=null";
        for (int k = 0; k < row.n; k++)
            sets[n_sets++] =
                arena_printf(&arena, "%s=%s", row.settings[k].key, row.settings[k].value);
        if (job_read(&job, s->job.source, sets, n_sets, &arena, &why) < 0 && !n_bad++)
            *err = why;
        arena_release(&arena);
    }
    return n_bad == n ? err_add(err, "trial 0") : 0;
}

int sweep_open(struct sweep_session *s, const char *job_file, struct err *err)
{
    struct str base = { 0 };
    char *text;
    size_t n_bytes;

    describe_base(&s->job, &base);
    int status = check_base(s, str_text(&base), err);
    str_release(&base);
    if (status < 0 || open_history(s, job_file, err) < 0 ||
        file_read(job_file, YAML_MAX_BYTES, ERR_CONFIG, &text, &n_bytes, err) < 0)
        return -1;
    s->trial_job = arena_printf(s->arena, "%s/sweep.yaml", s->output);
    status = file_write(s->trial_job, text, n_bytes, err);
    free(text);
    return status;
}

int sweep_prepare(struct sweep_session *s, const struct sweep_request *q, const char *job_file,
                  struct err *err)
{
    if (check_settings(s, err) < 0 || sweep_divide(s, q->hosts, err) < 0)
        return -1;
    if (file_is_folder(arena_printf(s->arena, "%s/checkpoints", s->output)))
        return err_set(err, ERR_CONFIG,
                       "%s: output %s is the folder of a run, not of a sweep (hint: another one)",
                       s->job.source, s->output);
    s->lock = s->is_joint ? run_lock_shared(s->output, err) : run_lock(s->output, err);
    if (s->lock < 0 || file_make_folder(arena_printf(s->arena, "%s/log", s->output), err) < 0)
        return -1;
    return s->is_joint ? 0 : sweep_open(s, job_file, err);
}

int sweep_read_job(struct sweep_session *s, const struct sweep_request *q, const char *job_file,
                   struct err *err)
{
    struct stat status;

    if (stat(job_file, &status) == 0 && !S_ISREG(status.st_mode))
        return err_set(err, ERR_CONFIG, "%s is not a file, which trials could read again",
                       job_file);
    if (job_read(&s->job, job_file, q->sets.items, q->sets.n, s->arena, err) < 0)
        return -1;
    if (sweep_space_is_empty(&s->job.sweep.space))
        return err_set(err, ERR_CONFIG,
                       "%s: sweep.parameters is missing (hint: sweep: {trials: 8, parameters: "
                       "{optimizer.lr: {log: [1.0e-5, 1.0e-3]}}})",
                       job_file);
    s->output = s->job.output;
    s->n_slots = min_int(s->job.sweep.parallel, space_n_trials(&s->job));
    s->slots = arena_array(s->arena, struct sweep_slot, s->n_slots);
    return 0;
}
