/*
 * terminal.c - the live line of a run
 *
 * The line is drawn with a carriage return, its text, and "clear to the end"; it never reaches the
 * last column, so that no terminal wraps it. The width is queried at each drawing, which makes a
 * resized window right again at the next one, without a signal handler. One lock covers it all, for
 * log lines come from any thread; nothing here logs.
 */
#include "report/terminal.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/num.h"
#include "base/str.h"
#include "report/live_line.h"

#define REDRAW_S 0.1
#define BAR_MIN 8
#define BAR_MAX 32
#define SMOOTHING 0.1 /* weight of the newest step time */
#define PLAIN_S 15.0  /* between lines of an evaluation where nothing is live */

/* An evaluation: how often, how long, and how far the one under way is. */
struct evaluations {
    bool is_expected;
    int64_t every;
    double steps;   /* estimate of its length */
    double seconds; /* of the last one, NAN until one was timed */
    int64_t done, total;
    double begin, shown;
};

struct terminal {
    pthread_mutex_t lock;
    int fd;
    bool live, utf8, colour;
    int64_t total_steps;
    struct metrics_step step; /* the last one; at first only its number */
    int n_steps;              /* printed so far */
    double step_s;            /* smoothed */
    double drawn_s;           /* when, on the monotonic clock */
    char status[256];
    char note[96];
    struct evaluations evaluations;
    double plain_s;
    struct str line, output; /* kept for their memory */
};

static int window_width(const struct terminal *terminal)
{
    struct winsize size;

    if (ioctl(terminal->fd, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        return 80;
    return size.ws_col;
}

/* What the other side does not take is lost: a progress line is not worth a failed run. */
static void put(const struct terminal *terminal, const struct str *text)
{
    size_t done = 0;

    while (done < text->length) {
        ssize_t n = write(terminal->fd, text->data + done, text->length - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        done += (size_t)n;
    }
}

/* A whole evaluation: as the last one, or as was said; NAN while that is not known. */
static double evaluation_s(const struct terminal *terminal)
{
    const struct evaluations *e = &terminal->evaluations;

    return isfinite(e->seconds) ? e->seconds : e->is_expected ? e->steps * terminal->step_s : NAN;
}

/* The rest of the evaluation under way; 0 if none is. */
static double evaluation_left_s(const struct terminal *terminal)
{
    const struct evaluations *e = &terminal->evaluations;

    if (!e->total)
        return 0;
    if (!e->done)
        return evaluation_s(terminal);
    return (clock_seconds() - e->begin) / (double)e->done * (double)(e->total - e->done);
}

/* Of the whole run; NAN while that is not known. */
static double left_s(const struct terminal *terminal)
{
    const struct evaluations *e = &terminal->evaluations;
    int64_t step = terminal->step.step, last = terminal->total_steps, n;
    double now = evaluation_left_s(terminal);

    if (step >= last)
        return e->total ? now : NAN;
    now += terminal->step_s * (double)(last - step);
    if (!e->is_expected)
        return now;
    n = 1 + (e->every ? (last - 1) / e->every - step / e->every : 0);
    return now + (double)n * evaluation_s(terminal);
}

/* The facts, most needed ones if not all fit; false if some did not. */
static bool add_facts(const struct terminal *terminal, struct str *line, int width)
{
    struct live_line parts;

    live_line_of(&parts, &(struct live_facts){ .step = &terminal->step,
                                               .has_step = terminal->n_steps > 0,
                                               .total_steps = terminal->total_steps,
                                               .left_s = left_s(terminal),
                                               .status = terminal->live ? terminal->status : "",
                                               .note = terminal->note });
    return live_line_print(&parts, line, width);
}

/* Draw the live line again. */
static void draw(struct terminal *terminal)
{
    int width = window_width(terminal) - 1;
    struct str *line = &terminal->line, *output = &terminal->output;

    str_clear(line);
    str_clear(output);
    bool all = add_facts(terminal, line, width);
    str_add(output, "\r");
    str_add(output, str_text(line));
    int room = width - live_line_width(str_text(line)) - 2;
    if (all && !*terminal->status && room >= BAR_MIN) {
        str_add(output, "  ");
        live_line_bar(output,
                      (double)terminal->step.step / (double)max_i64(1, terminal->total_steps),
                      min_int(room, BAR_MAX), terminal->utf8, terminal->colour);
    }
    str_add(output, "\033[K");
    put(terminal, output);
    terminal->drawn_s = clock_seconds();
}

static void log_line(void *context, enum log_level level, const char *text)
{
    static const char *const names[] = { "debug", "info", "warn", "error" };
    static const char *const colours[] = { "\033[2m", "", "\033[33m", "\033[31m" };
    struct terminal *terminal = context;
    struct str *output = &terminal->output;

    pthread_mutex_lock(&terminal->lock);
    str_clear(output);
    if (terminal->live)
        str_add(output, "\r\033[K");
    if (terminal->colour && level != LOG_INFO)
        str_printf(output, "%slmtrain: %s:\033[0m %s\n", colours[level], names[level], text);
    else if (level != LOG_INFO)
        str_printf(output, "lmtrain: %s: %s\n", names[level], text);
    else
        str_printf(output, "%s\n", text);
    put(terminal, output);
    if (terminal->live)
        draw(terminal);
    pthread_mutex_unlock(&terminal->lock);
}

struct terminal *terminal_open(int fd, int64_t first_step, int64_t total_steps)
{
    struct terminal *terminal = calloc(1, sizeof *terminal);
    const char *kind = getenv("TERM"), *no_colour = getenv("NO_COLOR");

    if (!terminal) {
        fprintf(stderr, "lmtrain: out of host memory\n");
        exit(ERR_DEVICE);
    }
    pthread_mutex_init(&terminal->lock, NULL);
    terminal->fd = fd;
    terminal->total_steps = total_steps;
    terminal->step.step = first_step;
    terminal->live = isatty(fd) && kind && *kind && strcmp(kind, "dumb") != 0;
    terminal->utf8 = live_line_is_utf8();
    terminal->colour = terminal->live && !(no_colour && *no_colour);
    terminal->step_s = NAN;
    terminal->evaluations.seconds = NAN;
    terminal->plain_s = PLAIN_S;
    log_set_sink(log_line, terminal);
    return terminal;
}

void terminal_step(struct terminal *terminal, const struct metrics_step *step, int logged)
{
    char *line = NULL;

    pthread_mutex_lock(&terminal->lock);
    terminal->step = *step;
    terminal->n_steps++;
    if (isfinite(step->step_s) && isfinite(terminal->step_s))
        terminal->step_s += SMOOTHING * (step->step_s - terminal->step_s);
    else if (isfinite(step->step_s))
        terminal->step_s = step->step_s;
    if (terminal->live) {
        int due = clock_seconds() - terminal->drawn_s >= REDRAW_S;

        if (due || step->step >= terminal->total_steps)
            draw(terminal);
    }
    if (logged) {
        str_clear(&terminal->output);
        add_facts(terminal, &terminal->output, INT32_MAX);
        line = strdup(str_text(&terminal->output));
        str_add_char(&terminal->output, '\n');
        if (!terminal->live)
            put(terminal, &terminal->output);
    }
    pthread_mutex_unlock(&terminal->lock);
    if (line)
        log_to_file(line); /* takes the lock of the log, which logging threads take before ours */
    free(line);
}

void terminal_look(struct terminal *terminal, struct terminal_view *view)
{
    pthread_mutex_lock(&terminal->lock);
    view->left_s = left_s(terminal);
    snprintf(view->status, sizeof view->status, "%s", terminal->status);
    snprintf(view->note, sizeof view->note, "%s", terminal->note);
    pthread_mutex_unlock(&terminal->lock);
}

void terminal_status(struct terminal *terminal, const char *text)
{
    pthread_mutex_lock(&terminal->lock);
    snprintf(terminal->status, sizeof terminal->status, "%s", text ? text : "");
    for (char *c = terminal->status; *c; c++) {
        unsigned char byte = (unsigned char)*c;

        if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !terminal->utf8))
            *c = '?';
    }
    if (terminal->live)
        draw(terminal);
    pthread_mutex_unlock(&terminal->lock);
}

void terminal_note(struct terminal *terminal, const char *text)
{
    pthread_mutex_lock(&terminal->lock);
    snprintf(terminal->note, sizeof terminal->note, "%s", text);
    if (terminal->live)
        draw(terminal);
    pthread_mutex_unlock(&terminal->lock);
}

void terminal_expect_evaluations(struct terminal *terminal, int64_t every, double steps)
{
    pthread_mutex_lock(&terminal->lock);
    terminal->evaluations.is_expected = true;
    terminal->evaluations.every = every;
    terminal->evaluations.steps = steps;
    pthread_mutex_unlock(&terminal->lock);
}

void terminal_set_pace(struct terminal *terminal, double seconds)
{
    terminal->plain_s = seconds;
}

/* The step's figures do not change meanwhile. */
static void print_evaluation(struct terminal *terminal)
{
    double left = left_s(terminal);
    char text[32];

    str_clear(&terminal->output);
    str_printf(&terminal->output, "step %lld/%lld  %s", (long long)terminal->step.step,
               (long long)terminal->total_steps, terminal->status);
    if (isfinite(left))
        str_printf(&terminal->output, "  left %s", str_duration(text, sizeof text, left));
    str_add_char(&terminal->output, '\n');
    put(terminal, &terminal->output);
}

void terminal_evaluating(struct terminal *terminal, int64_t done, int64_t total)
{
    struct evaluations *e = &terminal->evaluations;
    double now = clock_seconds();

    pthread_mutex_lock(&terminal->lock);
    if (!total && e->total && e->done == e->total)
        e->seconds = now - e->begin;
    if (total && !e->total)
        e->begin = e->shown = now;
    e->done = done;
    e->total = total;
    *terminal->status = '\0';
    if (total)
        snprintf(terminal->status, sizeof terminal->status, "evaluating %lld/%lld", (long long)done,
                 (long long)total);
    if (terminal->live && (!total || now - terminal->drawn_s >= REDRAW_S))
        draw(terminal);
    else if (!terminal->live && total && now - e->shown >= terminal->plain_s) {
        print_evaluation(terminal);
        e->shown = now;
    }
    pthread_mutex_unlock(&terminal->lock);
}

void terminal_close(struct terminal *terminal)
{
    if (!terminal)
        return;
    log_set_sink(NULL, NULL);
    if (terminal->live) {
        /* The last line stays on the screen, if anything was on it. */
        terminal->status[0] = '\0';
        draw(terminal);
        str_clear(&terminal->output);
        if (terminal->n_steps)
            str_add_char(&terminal->output, '\n');
        put(terminal, &terminal->output);
    }
    pthread_mutex_destroy(&terminal->lock);
    str_release(&terminal->line);
    str_release(&terminal->output);
    free(terminal);
}
