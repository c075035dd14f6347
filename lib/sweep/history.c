/*
 * history.c - see the header: lines of sweep.jsonl, written and read
 */
#include "sweep/history.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "config/job.h"
#include "report/append.h"
#include "sweep/space.h"

#define HISTORY_BYTES_MAX ((size_t)1 << 30)

static const struct choice events[] = { { "sweep", HISTORY_SWEEP },
                                        { "trial", HISTORY_TRIAL },
                                        { "start", HISTORY_START },
                                        { "value", HISTORY_VALUE },
                                        { "fail", HISTORY_FAIL },
                                        { "retry", HISTORY_RETRY },
                                        { "take_over", HISTORY_TAKE_OVER },
                                        { "go_on", HISTORY_GO_ON },
                                        { "stop", HISTORY_STOP },
                                        { "resume", HISTORY_RESUME },
                                        { "more", HISTORY_MORE },
                                        { "end", HISTORY_END },
                                        { 0 } };

/* ---- names ---- */

const char *history_path(const char *output, struct arena *arena)
{
    return arena_printf(arena, "%s/sweep.jsonl", output);
}

const char *history_trial_folder(const char *output, int trial, struct arena *arena)
{
    return arena_printf(arena, "%s/trial-%03d", output, trial);
}

const char *history_trial_log(const char *output, int trial, struct arena *arena)
{
    return arena_printf(arena, "%s/log/trial-%03d.log", output, trial);
}

/* ---- from a job ---- */

void history_describe(struct history_header *h, const struct job *job, const char *job_file,
                      struct arena *arena)
{
    struct str text = { 0 };

    job_print_value(job, "sweep.parameters", &text);
    *h = (struct history_header){ .command = choice_word(job_kind_choices, (int)job->kind),
                                  .job = job_file,
                                  .metric = job->sweep.metric,
                                  .parameters = arena_strdup(arena, str_text(&text)),
                                  .search = job->sweep.search,
                                  .goal = job->sweep.goal,
                                  .stop = job->sweep.stop,
                                  .seed = job->sweep.seed,
                                  .eta = job->sweep.eta,
                                  .min_trials = job->sweep.min_trials,
                                  .n_trials = space_n_trials(job),
                                  .is_asynchronous = job->sweep.asynchronous };
    h->n_rungs = space_rungs(job, &h->rungs, arena);
    str_release(&text);
}

struct judge_rules history_rules(const struct history_header *h)
{
    return (struct judge_rules){ .stop = h->stop,
                                 .eta = h->eta,
                                 .min_trials = h->min_trials,
                                 .n_rungs = h->n_rungs,
                                 .n_trials = h->n_trials,
                                 .is_asynchronous = h->is_asynchronous };
}

double history_judged(const struct history_header *h, double value)
{
    return h->goal == SWEEP_MAXIMIZE ? -value : value;
}

const char *history_settings(const struct sweep_row *row, struct arena *arena)
{
    struct str text = { 0 };

    str_add_char(&text, '{');
    for (int i = 0; i < row->n; i++) {
        str_add(&text, i ? ", " : "");
        json_add_string(&text, row->settings[i].key);
        str_printf(&text, ": %s", row->settings[i].value);
    }
    str_add_char(&text, '}');
    const char *out = arena_strdup(arena, str_text(&text));
    str_release(&text);
    return out;
}

/* ---- written ---- */

int history_open(const char *path, size_t n_bytes, struct err *err)
{
    int fd = file_open_write(path, O_WRONLY | O_APPEND, err);

    if (fd >= 0 && ftruncate(fd, (off_t)n_bytes) < 0) {
        err_set(err, ERR_FAILED, "%s: cannot be cut to %zu bytes: %m", path, n_bytes);
        close(fd);
        return -1;
    }
    return fd;
}

static void begin_line(struct str *line, enum history_event event)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    str_printf(line, "{\"event\": \"%s\", \"time\": %.3f", choice_word(events, (int)event),
               (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
}

/* Ends and releases it. */
static int write_line(int fd, struct str *line, struct err *err)
{
    str_add(line, "}\n");
    int status = append_whole(fd, "sweep.jsonl", line->data, line->length, err);
    if (!status && fdatasync(fd) < 0)
        status = err_set(err, ERR_FAILED, "sweep.jsonl: %m");
    str_release(line);
    return status;
}

int history_add_header(int fd, const struct history_header *h, struct err *err)
{
    struct str line = { 0 };

    begin_line(&line, HISTORY_SWEEP);
    str_printf(&line, ", \"version\": %d, \"command\": ", SWEEP_HISTORY_VERSION);
    json_add_string(&line, h->command);
    str_add(&line, ", \"job\": ");
    json_add_string(&line, h->job);
    str_printf(&line, ", \"search\": \"%s\", \"seed\": %" PRIu64 ", \"metric\": ",
               choice_word(sweep_search_choices, (int)h->search), h->seed);
    json_add_string(&line, h->metric);
    str_printf(&line,
               ", \"goal\": \"%s\", \"stop\": \"%s\", \"eta\": %d, \"min_trials\": %d, "
               "\"asynchronous\": %s, \"rungs\": [",
               choice_word(sweep_goal_choices, (int)h->goal),
               choice_word(sweep_stop_choices, (int)h->stop), h->eta, h->min_trials,
               h->is_asynchronous ? "true" : "false");
    for (int i = 0; i < h->n_rungs; i++)
        str_printf(&line, "%s%" PRId64, i ? ", " : "", h->rungs[i]);
    str_printf(&line, "], \"trials\": %d, \"parameters\": %s", h->n_trials, h->parameters);
    return write_line(fd, &line, err);
}

int history_add_trial(int fd, int trial, const char *settings, struct err *err)
{
    struct str line = { 0 };

    begin_line(&line, HISTORY_TRIAL);
    str_printf(&line, ", \"trial\": %d, \"settings\": %s", trial, settings);
    return write_line(fd, &line, err);
}

int history_add(int fd, const struct history_record *r, struct err *err)
{
    struct str line = { 0 };

    begin_line(&line, r->event);
    if (r->event == HISTORY_MORE)
        str_printf(&line, ", \"trials\": %d", r->trial);
    else if (r->event != HISTORY_RESUME)
        str_printf(&line, ", \"trial\": %d, \"rung\": %d", r->trial, r->rung);
    if (r->event == HISTORY_VALUE) {
        str_printf(&line, ", \"step\": %" PRId64 ", \"value\": ", r->step);
        if (isfinite(r->value))
            str_printf(&line, "%.9g, \"value_hex\": \"%a\"", r->value, r->value);
        else
            str_add(&line, "null");
    }
    if (r->event == HISTORY_FAIL || r->event == HISTORY_RETRY) {
        str_add(&line, ", \"text\": ");
        json_add_string(&line, r->text);
    }
    return write_line(fd, &line, err);
}

int history_add_end(int fd, int best, const int *ensemble, int n_ensemble, struct err *err)
{
    struct str line = { 0 };

    begin_line(&line, HISTORY_END);
    str_printf(&line, ", \"best\": %d, \"ensemble\": [", best);
    for (int i = 0; i < n_ensemble; i++)
        str_printf(&line, i ? ", %d" : "%d", ensemble[i]);
    str_add_char(&line, ']');
    return write_line(fd, &line, err);
}

/* ---- read ---- */

/* A line, whatever event it is of. */
struct parsed {
    struct history_header header;
    struct history_record record;
    const char *event, *settings;
    const int *ensemble;
    int n_ensemble;
    int64_t version;
    bool has_hex;
};

static double number_of(struct json_reader *r)
{
    struct json_span span = json_scalar(r);
    char text[64];

    snprintf(text, sizeof text, "%.*s", (int)(span.n_bytes < 63 ? span.n_bytes : 63), span.text);
    return text[0] == 'n' ? NAN : strtod(text, NULL);
}

static int choice_of(struct json_reader *r, const struct choice *choices)
{
    const struct choice *found = choice_find(choices, json_string(r));

    if (!found)
        json_fail(r, "not a value that this version knows");
    return found ? found->value : 0;
}

static const char *raw_of(struct json_reader *r, struct arena *arena)
{
    json_peek(r);
    const char *begin = json_skip(r);

    return r->problem ? "" : arena_printf(arena, "%.*s", (int)(r->next - begin), begin);
}

static void read_rungs(struct json_reader *r, struct history_header *h, struct arena *arena)
{
    int64_t *rungs = NULL;
    int capacity = 0;

    for (json_open(r, '['); json_next(r, ']');) {
        rungs = arena_grow(arena, rungs, sizeof *rungs, &capacity, h->n_rungs + 1);
        rungs[h->n_rungs++] = json_count(r, INT64_MAX);
    }
    h->rungs = rungs;
}

static void read_ensemble(struct json_reader *r, struct parsed *p, struct arena *arena)
{
    int *list = NULL, capacity = 0;

    for (json_open(r, '['); json_next(r, ']');) {
        list = arena_grow(arena, list, sizeof *list, &capacity, p->n_ensemble + 1);
        list[p->n_ensemble++] = (int)json_count(r, SWEEP_TRIALS_MAX - 1);
    }
    p->ensemble = list;
}

/* A member of the first line. Returns whether it is one. */
static bool read_header_member(struct json_reader *r, const char *key, struct parsed *p,
                               struct arena *arena)
{
    struct history_header *h = &p->header;

    if (!strcmp(key, "version"))
        p->version = json_count(r, INT32_MAX);
    else if (!strcmp(key, "command"))
        h->command = json_string(r);
    else if (!strcmp(key, "job"))
        h->job = json_string(r);
    else if (!strcmp(key, "metric"))
        h->metric = json_string(r);
    else if (!strcmp(key, "parameters"))
        h->parameters = raw_of(r, arena);
    else if (!strcmp(key, "search"))
        h->search = (enum sweep_search)choice_of(r, sweep_search_choices);
    else if (!strcmp(key, "goal"))
        h->goal = (enum sweep_goal)choice_of(r, sweep_goal_choices);
    else if (!strcmp(key, "stop"))
        h->stop = (enum sweep_stop)choice_of(r, sweep_stop_choices);
    else if (!strcmp(key, "seed"))
        h->seed = (uint64_t)json_count(r, INT64_MAX);
    else if (!strcmp(key, "eta"))
        h->eta = (int)json_count(r, 1000);
    else if (!strcmp(key, "min_trials"))
        h->min_trials = (int)json_count(r, SWEEP_TRIALS_MAX);
    else if (!strcmp(key, "trials"))
        h->n_trials = (int)json_count(r, SWEEP_TRIALS_MAX);
    else if (!strcmp(key, "asynchronous"))
        h->is_asynchronous = json_scalar(r).text[0] == 't';
    else if (!strcmp(key, "rungs"))
        read_rungs(r, h, arena);
    else
        return false;
    return true;
}

static void read_member(struct json_reader *r, const char *key, struct parsed *p,
                        struct arena *arena)
{
    struct history_record *record = &p->record;

    if (!strcmp(key, "event")) {
        p->event = json_string(r);
    } else if (!strcmp(key, "time")) {
        record->time = number_of(r);
    } else if (!strcmp(key, "trial")) {
        record->trial = (int)json_count(r, SWEEP_TRIALS_MAX - 1);
    } else if (!strcmp(key, "rung")) {
        record->rung = (int)json_count(r, INT32_MAX);
    } else if (!strcmp(key, "step")) {
        record->step = json_count(r, INT64_MAX);
    } else if (!strcmp(key, "settings")) {
        p->settings = raw_of(r, arena);
    } else if (!strcmp(key, "ensemble")) {
        read_ensemble(r, p, arena);
    } else if (!strcmp(key, "text")) {
        record->text = json_string(r);
    } else if (!strcmp(key, "value")) {
        double value = number_of(r);

        record->value = p->has_hex ? record->value : value;
    } else if (!strcmp(key, "value_hex")) {
        record->value = strtod(json_string(r), NULL);
        p->has_hex = true;
    } else if (!read_header_member(r, key, p, arena)) {
        json_skip(r);
    }
}

static int read_line(struct parsed *p, const char *line, size_t n_bytes, struct arena *arena)
{
    struct json_reader r;

    *p = (struct parsed){ .event = "", .settings = NULL };
    json_reader_init(&r, line, n_bytes, arena);
    for (json_open(&r, '{'); json_next(&r, '}');) {
        const char *key = json_key(&r);

        read_member(&r, key, p, arena);
    }
    const struct choice *event = choice_find(events, p->event);
    if (json_end(&r) < 0 || !event)
        return -1;
    p->record.event = (enum history_event)event->value;
    return 0;
}

static bool header_is_whole(const struct parsed *p)
{
    const struct history_header *h = &p->header;
    bool is_whole = h->command && h->job && h->metric && h->parameters && h->n_rungs > 0 &&
                    h->n_trials > 0 && h->eta >= 1 && h->min_trials >= 1;

    for (int i = 1; i < h->n_rungs - 1; i++)
        is_whole &= h->rungs[i] > h->rungs[i - 1];
    return is_whole && h->n_rungs <= SWEEP_RUNGS_MAX;
}

/* Take a line into the history. Returns 0, or -1 if it does not belong there. */
static int take_line(struct history *j, const struct parsed *p, int *capacity, struct arena *arena)
{
    const struct history_record *r = &p->record;
    bool is_first = !j->header.n_trials;

    if ((r->event == HISTORY_SWEEP) != is_first)
        return -1;
    if (is_first) {
        if (!header_is_whole(p))
            return -1;
        j->header = p->header;
        j->settings = arena_array(arena, const char *, SWEEP_TRIALS_MAX);
        return 0;
    }
    if (r->event == HISTORY_MORE && p->header.n_trials < j->header.n_trials)
        return -1;
    if (r->event == HISTORY_MORE)
        j->header.n_trials = p->header.n_trials;
    if (r->trial >= j->header.n_trials || r->rung >= j->header.n_rungs)
        return -1;
    if (r->event == HISTORY_TRIAL) {
        if (r->trial != j->n_settings || !p->settings)
            return -1;
        j->settings[j->n_settings++] = p->settings;
        return 0;
    }
    j->records = arena_grow(arena, j->records, sizeof *j->records, capacity, j->n_records + 1);
    j->records[j->n_records] = *r;
    if (r->event == HISTORY_MORE)
        j->records[j->n_records].trial = p->header.n_trials;
    j->n_records++;
    if (r->event == HISTORY_END) {
        j->ensemble = p->ensemble;
        j->n_ensemble = p->n_ensemble;
    }
    return 0;
}

static int take_text(struct history *j, const char *path, const char *text, size_t n_bytes,
                     struct arena *arena, struct err *err)
{
    struct history out = { 0 };
    int line = 1, capacity = 0;

    for (const char *at = text, *end; (end = memchr(at, '\n', n_bytes - (size_t)(at - text)));
         at = end + 1, line++) {
        struct parsed p;

        if (read_line(&p, at, (size_t)(end - at), arena) < 0 ||
            (p.record.event == HISTORY_SWEEP && p.version == SWEEP_HISTORY_VERSION &&
             !header_is_whole(&p)))
            return err_set(err, ERR_DATA, "%s:%d: not a line of a sweep's history", path, line);
        if (p.record.event == HISTORY_SWEEP && p.version != SWEEP_HISTORY_VERSION)
            return err_set(err, ERR_DATA,
                           "%s: version %" PRId64 " of the history; this lmtrain reads version %d",
                           path, p.version, SWEEP_HISTORY_VERSION);
        if (take_line(&out, &p, &capacity, arena) < 0)
            return err_set(err, ERR_DATA, "%s:%d: a line that does not fit those before it", path,
                           line);
        out.n_bytes = (size_t)(end + 1 - text);
    }
    *j = out;
    return 0;
}

int history_read(struct history *j, const char *path, struct arena *arena, struct err *err)
{
    char *text;
    size_t n_bytes;

    if (file_read(path, HISTORY_BYTES_MAX, ERR_DATA, &text, &n_bytes, err) < 0)
        return -1;
    int status = take_text(j, path, text, n_bytes, arena, err);
    free(text);
    return status;
}
