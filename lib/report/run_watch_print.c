/*
 * run_watch_print.c - a struct run_watch for people and as JSON
 *
 *     runs/kjv: running on node1, process 4711, 4 ranks; heard 0.4 s ago
 *     step 1234/5000  loss 2.341  12.4k tok/s  MFU 41 %  1.2 GiB  left 2:31:00
 *     loss mean 2.360  grad norm 0.41  lr 3.00e-04  elapsed 1:12:03  saved step 1200
 *     held-out 2.4100 (step 1200)
 *
 *     rank  host   step  memory   heard  doing
 *        0  node1  1234  1.2 GiB  0.1 s  attention layers.9, micro-batch 3
 *     ...
 *     12:03:11  step 1200  uploaded: ...
 *
 * Where rows are few, ranks that are not as the others come first: those that have ended, then
 * those that were not heard for long, then those that wait for no other.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json_reader.h"
#include "base/num.h"
#include "base/options.h"
#include "report/live_line.h"
#include "report/run_watch.h"

#define BAR_MIN 8
#define BAR_MAX 32
#define DOING_MIN 16
#define QUIET_SECONDS 5.0 /* a rank that was not heard for so long stands out */

struct view {
    const struct watch_screen *screen;
    struct str *out;
    int n_lines;
};

static bool has_room(const struct view *v, int n)
{
    return !v->screen->height || v->n_lines + n <= v->screen->height;
}

/* A line, cut at the width; colour: "" or an escape sequence for all of it. */
static void add_line(struct view *v, const char *colour, const char *text)
{
    if (!has_room(v, 1))
        return;
    bool is_coloured = v->screen->has_colour && *colour;

    str_add(v->out, is_coloured ? colour : "");
    live_line_add_cut(v->out, text, v->screen->width);
    str_add(v->out, is_coloured ? "\033[0m\n" : "\n");
    v->n_lines++;
}

/* As many lines as it needs. */
static void add_wrapped(struct view *v, const char *colour, const char *text)
{
    struct str lines = { 0 };
    char *copy, *rest, *line;

    options_wrap(&lines, text, 0, 2, max_int(v->screen->width, 8));
    rest = copy = strdup(str_text(&lines));
    CHECK(copy);
    while ((line = strsep(&rest, "\n")))
        if (*line)
            add_line(v, colour, line);
    free(copy);
    str_release(&lines);
}

static const char *colour_of(enum watch_state state)
{
    switch (state) {
    case WATCH_RESTARTING:
    case WATCH_SAVED:
    case WATCH_NO_STATUS:
        return "\033[33m";
    case WATCH_SILENT:
    case WATCH_FAILED:
        return "\033[31m";
    default:
        return "";
    }
}

/* ---- the run ---- */

static void describe_state(const struct run_watch *w, struct str *out)
{
    char text[32];

    switch (w->state) {
    case WATCH_NO_STATUS:
        str_add(out, "no status was written: it has not begun, or is of an earlier version");
        return;
    case WATCH_RUNNING:
        if (!*w->host) { /* rank 0 has put nothing yet */
            str_printf(out, "starting; heard %.1f s ago", w->age_s);
            return;
        }
        if (*w->death) { /* what starts the ranks may start them again */
            str_printf(out, "its ranks have ended; heard %.1f s ago: %s", w->age_s, w->death);
            return;
        }
        str_printf(out, "running on %s, process %d, %d rank%s; heard %.1f s ago", w->host, w->pid,
                   w->n_ranks, str_s(w->n_ranks), w->age_s);
        return;
    case WATCH_RESTARTING:
        str_printf(out, "rank 0 is gone, its launcher goes on: the run restarts or ends%s%s",
                   *w->text ? ": " : "", w->text);
        return;
    case WATCH_SILENT:
        str_printf(out,
                   "nothing was heard of it for %s: process %d on %s was killed, or its host is "
                   "down (hint: the same command continues from the last checkpoint)",
                   str_duration(text, sizeof text, w->age_s), w->pid, w->host);
        return;
    case WATCH_DONE:
        str_printf(out, "done %s ago", str_duration(text, sizeof text, w->age_s));
        return;
    case WATCH_SAVED:
    case WATCH_FAILED:
        str_printf(out, "%s %s ago: %s", w->state == WATCH_SAVED ? "stopped" : "failed",
                   str_duration(text, sizeof text, w->age_s), w->text);
        return;
    }
}

static void add_live_line(struct view *v, const struct run_watch *w)
{
    struct live_line parts;
    struct str line = { 0 };
    int width = v->screen->width;

    live_line_of(&parts,
                 &(struct live_facts){ .step = &w->step,
                                       .has_step = w->has_step,
                                       .total_steps = w->total_steps,
                                       .left_s = w->state == WATCH_RUNNING ? w->left_s : NAN,
                                       .status = w->status,
                                       .note = w->note });
    bool all = live_line_print(&parts, &line, width);
    int room = width - live_line_width(str_text(&line)) - 2;
    if (all && w->total_steps > 0 && v->screen->height && room >= BAR_MIN) {
        str_add(&line, "  ");
        live_line_bar(&line, (double)w->step.step / (double)w->total_steps, min_int(room, BAR_MAX),
                      v->screen->is_utf8, false);
    }
    add_line(v, "", str_text(&line));
    str_release(&line);
}

/* What the live line has no place for, in lines that are as full as the width allows. */
struct facts {
    struct view *view;
    struct str line;
};

static void add_fact(struct facts *f, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void end_facts(struct facts *f)
{
    if (f->line.length)
        add_line(f->view, "", str_text(&f->line));
    str_clear(&f->line);
}

static void add_fact(struct facts *f, const char *format, ...)
{
    char text[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (f->line.length &&
        live_line_width(str_text(&f->line)) + 2 + live_line_width(text) > f->view->screen->width)
        end_facts(f);
    str_printf(&f->line, "%s%s", f->line.length ? "  " : "", text);
}

static void add_facts(struct view *v, const struct run_watch *w, double now)
{
    struct facts f = { .view = v };
    char text[32];

    if (isfinite(w->step.loss_mean))
        add_fact(&f, "loss mean %.3f", w->step.loss_mean);
    if (isfinite(w->step.grad_norm))
        add_fact(&f, "grad norm %.3g", w->step.grad_norm);
    if (isfinite(w->step.lr))
        add_fact(&f, "lr %.3g", w->step.lr);
    if (isfinite(w->step.step_s))
        add_fact(&f, "step %.3g s", w->step.step_s);
    if (now > w->begun_at && w->begun_at > 0)
        add_fact(&f, "elapsed %s", str_duration(text, sizeof text, now - w->begun_at));
    if (w->restarts > 0)
        add_fact(&f, "restarts %lld", (long long)w->restarts);
    if (w->pauses > 0)
        add_fact(&f, "pauses %lld", (long long)w->pauses);
    if (w->saved_step >= 0)
        add_fact(&f, "saved step %lld", (long long)w->saved_step);
    if (w->best_step >= 0)
        add_fact(&f, "best checkpoint step %lld (%.4f)", (long long)w->best_step, w->best_loss);
    for (int i = 0; i < w->n_evaluations; i++)
        add_fact(&f, "held-out%s%s %.4f (step %lld)", *w->evaluations[i].set ? " " : "",
                 w->evaluations[i].set, w->evaluations[i].loss, (long long)w->evaluations[i].step);
    end_facts(&f);
    str_release(&f.line);
}

/* ---- ranks ---- */

static int trouble_of(const struct watch_rank *r)
{
    return strcmp(r->state, "running") != 0 ? 3
           : r->heard_s > QUIET_SECONDS     ? 2
           : !r->waits                      ? 1
                                            : 0;
}

static int compare_trouble(const void *a, const void *b)
{
    const struct watch_rank *x = a, *y = b;
    int tx = trouble_of(x), ty = trouble_of(y);

    if (tx != ty)
        return tx > ty ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int compare_number(const void *a, const void *b)
{
    const struct watch_rank *x = a, *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

enum { COLUMN_RANK, COLUMN_HOST, COLUMN_STEP, COLUMN_MEMORY, COLUMN_HEARD, COLUMN_GPU, N_COLUMNS };

struct cells {
    char text[N_COLUMNS][128];
    char doing[288];
};

static void fill_cells(const struct watch_rank *r, struct cells *c)
{
    char bytes[32];

    *c = (struct cells){ 0 };
    snprintf(c->text[COLUMN_RANK], sizeof *c->text, "%d", r->rank);
    snprintf(c->text[COLUMN_HOST], sizeof *c->text, "%s", r->host);
    if (r->step > 0)
        snprintf(c->text[COLUMN_STEP], sizeof *c->text, "%lld", (long long)r->step);
    if (r->resident_bytes > 0)
        snprintf(c->text[COLUMN_MEMORY], sizeof *c->text, "%s",
                 str_bytes(bytes, sizeof bytes, (uint64_t)r->resident_bytes));
    snprintf(c->text[COLUMN_HEARD], sizeof *c->text, "%.1f s", r->heard_s);
    snprintf(c->text[COLUMN_GPU], sizeof *c->text, "%s", r->gpu);
    if (strcmp(r->state, "running") != 0)
        snprintf(c->doing, sizeof c->doing, "%s", r->state);
    else if (r->micro_batch >= 0)
        snprintf(c->doing, sizeof c->doing, "%s%s, micro-batch %d", r->waits ? "waits in " : "",
                 r->doing, r->micro_batch);
    else
        snprintf(c->doing, sizeof c->doing, "%s%s", r->waits ? "waits in " : "", r->doing);
}

/* Widths of the columns that fit beside what a rank does; 0: left out. */
static void choose_columns(const struct watch_rank *ranks, int n, int width, int widths[N_COLUMNS],
                           const char *const headings[N_COLUMNS])
{
    static const int least_needed[] = { COLUMN_GPU, COLUMN_HOST, COLUMN_MEMORY, COLUMN_HEARD,
                                        COLUMN_STEP };
    struct cells c;
    int total = DOING_MIN;

    for (int k = 0; k < N_COLUMNS; k++)
        widths[k] = 0;
    for (int i = 0; i < n; i++) {
        fill_cells(&ranks[i], &c);
        for (int k = 0; k < N_COLUMNS; k++)
            widths[k] = max_int(widths[k], live_line_width(c.text[k]));
    }
    for (int k = 0; k < N_COLUMNS; k++) {
        if (widths[k])
            widths[k] = max_int(widths[k], (int)strlen(headings[k]));
        total += widths[k] ? widths[k] + 2 : 0;
    }
    for (size_t k = 0; k < sizeof least_needed / sizeof *least_needed && total > width; k++) {
        int *left_out = &widths[least_needed[k]];

        total -= *left_out ? *left_out + 2 : 0;
        *left_out = 0;
    }
}

/* Numbers to the right, texts to the left. */
static void add_row(struct view *v, const char *colour, const int widths[N_COLUMNS],
                    const char *const texts[N_COLUMNS], const char *doing)
{
    struct str line = { 0 };

    for (int k = 0; k < N_COLUMNS; k++) {
        if (!widths[k])
            continue;
        int pad = widths[k] - live_line_width(texts[k]);
        bool is_text = k == COLUMN_HOST || k == COLUMN_GPU;

        str_printf(&line, "%*s%s%*s  ", is_text ? 0 : pad, "", texts[k], is_text ? pad : 0, "");
    }
    str_add(&line, doing);
    add_line(v, colour, str_text(&line));
    str_release(&line);
}

static void add_rest(struct view *v, const struct watch_rank *ranks, int n)
{
    int64_t first = INT64_MAX, last = 0;
    char text[128];

    for (int i = 0; i < n; i++) {
        first = min_i64(first, ranks[i].step);
        last = max_i64(last, ranks[i].step);
    }
    snprintf(text, sizeof text, "and %d more, in steps %lld to %lld", n, (long long)first,
             (long long)last);
    add_line(v, "", text);
}

/* n_below: lines that are wanted below the table. */
static void add_ranks(struct view *v, const struct run_watch *w, int n_below)
{
    static const char *const headings[] = { "rank", "host", "step", "memory", "heard", "gpu" };
    int n = w->n_listed, widths[N_COLUMNS];

    if (!n || !has_room(v, 4))
        return;
    struct watch_rank *ranks = malloc((size_t)n * sizeof *ranks);
    CHECK(ranks);
    memcpy(ranks, w->ranks, (size_t)n * sizeof *ranks);
    int room = v->screen->height ? max_int(1, v->screen->height - v->n_lines - 3 - n_below) : n;
    int n_shown = min_int(n, room);
    if (n_shown < n) {
        qsort(ranks, (size_t)n, sizeof *ranks, compare_trouble);
        qsort(ranks, (size_t)n_shown, sizeof *ranks, compare_number);
    }
    choose_columns(ranks, n_shown, v->screen->width, widths, headings);
    add_line(v, "", "");
    add_row(v, "\033[2m", widths, headings, "doing");
    for (int i = 0; i < n_shown; i++) {
        struct cells c;
        const char *texts[N_COLUMNS];

        fill_cells(&ranks[i], &c);
        for (int k = 0; k < N_COLUMNS; k++)
            texts[k] = c.text[k];
        add_row(v, trouble_of(&ranks[i]) > 1 ? "\033[33m" : "", widths, texts, c.doing);
    }
    if (n_shown < n)
        add_rest(v, ranks + n_shown, n - n_shown);
    free(ranks);
}

/* ---- events ---- */

static void add_events(struct view *v, const struct run_watch *w)
{
    if (!w->n_events || !has_room(v, 2))
        return;
    int first = 0;
    if (v->screen->height)
        first = max_int(0, w->n_events - (v->screen->height - v->n_lines - 1));
    add_line(v, "", "");
    for (int i = first; i < w->n_events; i++) {
        const struct watch_event *e = &w->events[i];
        time_t at = (time_t)e->time;
        char when[32] = "";
        struct str line = { 0 };
        struct tm parts;

        if (e->time > 0 && localtime_r(&at, &parts))
            strftime(when, sizeof when, "%m-%d %H:%M:%S", &parts);
        str_printf(&line, "%s  step %lld  %s: %s", when, (long long)e->step, e->event, e->text);
        add_line(v, "", str_text(&line));
        str_release(&line);
    }
}

void run_watch_print(const struct run_watch *w, const char *folder,
                     const struct watch_screen *screen, struct str *out)
{
    struct view v = { .screen = screen, .out = out };
    struct str line = { 0 };
    bool is_over = w->state == WATCH_DONE || w->state == WATCH_SAVED || w->state == WATCH_FAILED;
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    str_printf(&line, "%s: ", folder);
    describe_state(w, &line);
    add_wrapped(&v, colour_of(w->state), str_text(&line));
    str_release(&line);
    if (w->step.step || w->total_steps)
        add_live_line(&v, w);
    add_facts(&v, w,
              is_over || w->state == WATCH_SILENT ? (double)now.tv_sec - w->age_s
                                                  : (double)now.tv_sec);
    if (!is_over)
        add_ranks(&v, w, w->n_events ? min_int(w->n_events, 3) + 1 : 0);
    add_events(&v, w);
}

/* ---- JSON ---- */

static void add_number(cJSON *to, const char *key, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(to, key, value);
    else
        cJSON_AddNullToObject(to, key);
}

static void add_json_step(cJSON *to, const struct run_watch *w)
{
    const struct metrics_step *m = &w->step;

    add_number(to, "step", (double)m->step);
    add_number(to, "steps", (double)w->total_steps);
    if (!w->has_step)
        return;
    add_number(to, "loss", m->loss);
    add_number(to, "loss_mean", m->loss_mean);
    add_number(to, "grad_norm", m->grad_norm);
    add_number(to, "lr", m->lr);
    add_number(to, "tokens", (double)m->tokens);
    add_number(to, "tokens_per_s", m->tokens_per_s);
    add_number(to, "step_s", m->step_s);
    add_number(to, "mfu", m->mfu);
    add_number(to, "memory_bytes", (double)m->memory_bytes);
    add_number(to, "skipped", (double)m->skipped);
}

static void add_json_ranks(cJSON *to, const struct run_watch *w)
{
    cJSON *list = cJSON_AddArrayToObject(to, "ranks");

    for (int i = 0; i < w->n_listed; i++) {
        const struct watch_rank *r = &w->ranks[i];
        cJSON *one = cJSON_CreateObject();

        cJSON_AddItemToArray(list, one);
        add_number(one, "rank", r->rank);
        cJSON_AddStringToObject(one, "host", r->host);
        cJSON_AddStringToObject(one, "state", r->state);
        add_number(one, "step", (double)r->step);
        add_number(one, "micro_batch", r->micro_batch < 0 ? (double)NAN : r->micro_batch);
        cJSON_AddStringToObject(one, "doing", r->doing);
        cJSON_AddBoolToObject(one, "waits", r->waits);
        add_number(one, "resident_bytes", r->resident_bytes ? (double)r->resident_bytes : NAN);
        add_number(one, "peak_bytes", r->peak_bytes ? (double)r->peak_bytes : NAN);
        add_number(one, "heard_s", r->heard_s);
        cJSON_AddStringToObject(one, "gpu", r->gpu);
    }
}

static void add_json_lines(cJSON *to, const struct run_watch *w)
{
    cJSON *evaluations = cJSON_AddArrayToObject(to, "evaluations");
    cJSON *events = cJSON_AddArrayToObject(to, "events");

    for (int i = 0; i < w->n_evaluations; i++) {
        cJSON *one = cJSON_CreateObject();

        cJSON_AddItemToArray(evaluations, one);
        add_number(one, "step", (double)w->evaluations[i].step);
        add_number(one, "eval_loss", w->evaluations[i].loss);
        if (*w->evaluations[i].set)
            cJSON_AddStringToObject(one, "eval_set", w->evaluations[i].set);
    }
    for (int i = 0; i < w->n_events; i++) {
        cJSON *one = cJSON_CreateObject();

        cJSON_AddItemToArray(events, one);
        add_number(one, "step", (double)w->events[i].step);
        add_number(one, "time", w->events[i].time);
        cJSON_AddStringToObject(one, "event", w->events[i].event);
        cJSON_AddStringToObject(one, "text", w->events[i].text);
    }
}

void run_watch_json(const struct run_watch *w, const char *folder, struct str *out)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddStringToObject(json, "run", folder);
    cJSON_AddStringToObject(json, "state", run_watch_state(w->state));
    add_number(json, "age_s", w->age_s < 0 ? NAN : w->age_s);
    cJSON_AddStringToObject(json, "text", w->text);
    cJSON_AddStringToObject(json, "status", w->status);
    cJSON_AddStringToObject(json, "host", w->host);
    add_number(json, "pid", w->pid ? w->pid : (double)NAN);
    add_number(json, "n_ranks", w->n_ranks);
    add_number(json, "left_s", w->left_s);
    add_number(json, "begun_at", w->begun_at > 0 ? w->begun_at : NAN);
    add_number(json, "restarts", (double)w->restarts);
    add_number(json, "pauses", (double)w->pauses);
    add_number(json, "saved_step", w->saved_step < 0 ? NAN : (double)w->saved_step);
    add_number(json, "best_step", w->best_step < 0 ? (double)NAN : (double)w->best_step);
    add_json_step(json, w);
    add_json_ranks(json, w);
    add_json_lines(json, w);
    char *text = cJSON_PrintUnformatted(json);
    CHECK(text);
    str_add(out, text);
    free(text);
    cJSON_Delete(json);
}
