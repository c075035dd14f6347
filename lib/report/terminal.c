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
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
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

/* Asked of the environment's locale itself: main need not have called setlocale. */
static bool locale_is_utf8(void)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);

    if (!locale)
        return false;
    bool utf8 = !strcmp(nl_langinfo_l(CODESET, locale), "UTF-8");
    freelocale(locale);
    return utf8;
}

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

/* Characters of UTF-8; all of ours are one column wide. */
static int text_width(const char *text)
{
    int width = 0;

    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

/* Add text, cut after `width` characters. */
static void add_cut(struct str *out, const char *text, int width)
{
    const char *end = text;

    while (*end && (((unsigned char)*end & 0xc0) == 0x80 || width-- > 0))
        end++;
    str_add_bytes(out, text, (size_t)(end - text));
}

/* 12400 -> "12.4k" */
static const char *short_count(char *buffer, size_t size, double n)
{
    static const char *const units[] = { "", "k", "M", "G", "T" };
    int unit = 0;

    while (n >= 999.5 && unit < 4) {
        n /= 1000;
        unit++;
    }
    snprintf(buffer, size, unit && n < 99.95 ? "%.1f%s" : "%.0f%s", n, units[unit]);
    return buffer;
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

/* What the line may say. The lower its need, the sooner it gets its place. */
struct status_part {
    int need;
    bool is_shown;
    char text[sizeof((struct terminal *)0)->status];
};

enum { N_PARTS_MAX = 10 };

struct status_parts {
    struct status_part items[N_PARTS_MAX];
    int n;
};

static void add_part(struct status_parts *parts, int need, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add_part(struct status_parts *parts, int need, const char *format, ...)
{
    CHECK(parts->n < N_PARTS_MAX);
    struct status_part *part = &parts->items[parts->n++];
    va_list arguments;

    *part = (struct status_part){ .need = need };
    va_start(arguments, format);
    vsnprintf(part->text, sizeof part->text, format, arguments);
    va_end(arguments);
}

/* As many as fit, by need; 0 if some do not. */
static int choose_parts(struct status_parts *parts, int width)
{
    int used = 0;

    for (int need = 0; need < N_PARTS_MAX; need++)
        for (int i = 0; i < parts->n; i++) {
            struct status_part *part = &parts->items[i];

            if (part->need != need)
                continue;
            int wanted = (used ? 2 : 0) + text_width(part->text);
            if (used && used + wanted > width)
                return 0;
            part->is_shown = true;
            used += wanted;
        }
    return used <= width;
}

/* In the order of the line. */
static void list_parts(const struct terminal *terminal, struct status_parts *parts)
{
    const struct metrics_step *step = &terminal->step;
    double left = left_s(terminal);
    char text[32], learned[32];

    add_part(parts, 0, "step %lld/%lld", (long long)step->step, (long long)terminal->total_steps);
    if (terminal->n_steps)
        add_part(parts, 3, "loss %.3f", step->loss);
    if (step->tokens_per_s > 0 && step->learned_per_s > 0)
        add_part(parts, 4, "%s tok/s (%s with loss)",
                 short_count(text, sizeof text, step->tokens_per_s),
                 short_count(learned, sizeof learned, step->learned_per_s));
    else if (step->tokens_per_s > 0)
        add_part(parts, 4, "%s tok/s", short_count(text, sizeof text, step->tokens_per_s));
    if (step->mfu > 0)
        add_part(parts, 5, step->mfu < 0.0995 ? "MFU %.1f %%" : "MFU %.0f %%", 100 * step->mfu);
    if (step->memory_bytes)
        add_part(parts, 6, "%s", str_bytes(text, sizeof text, step->memory_bytes));
    if (step->skipped)
        add_part(parts, 7, "skipped %lld", (long long)step->skipped);
    if (step->reruns)
        add_part(parts, 7, "run again %lld", (long long)step->reruns);
    if (step->loss_scale > 0)
        add_part(parts, 8, "scale %.0f", step->loss_scale);
    if (*terminal->note)
        add_part(parts, 2, "straggler %s", terminal->note);
    if (terminal->live && *terminal->status)
        add_part(parts, 1, "%s", terminal->status);
    if (isfinite(left))
        add_part(parts, 2, "left %s", str_duration(text, sizeof text, left));
}

/* The facts, most needed ones if not all fit; 0 if some did not. */
static int add_facts(const struct terminal *terminal, struct str *line, int width)
{
    struct status_parts parts = { .n = 0 };

    list_parts(terminal, &parts);
    int all = choose_parts(&parts, width);
    for (int i = 0; i < parts.n; i++) {
        if (!parts.items[i].is_shown)
            continue;
        if (i > 0)
            str_add(line, "  ");
        add_cut(line, parts.items[i].text, width);
    }
    return all;
}

static void add_bar(const struct terminal *terminal, struct str *out, int n_cells)
{
    double share = (double)terminal->step.step / (double)max_i64(1, terminal->total_steps);
    int n_full = (int)(fmin(fmax(share, 0), 1) * n_cells);

    if (terminal->colour)
        str_add(out, "\033[32m");
    for (int i = 0; i < n_cells; i++) {
        if (terminal->utf8)
            str_add(out, i < n_full ? "\xe2\x96\x88" : "\xe2\x96\x91");
        else
            str_add_char(out, i < n_full ? '#' : '.');
    }
    if (terminal->colour)
        str_add(out, "\033[0m");
}

/* Draw the live line again. */
static void draw(struct terminal *terminal)
{
    int width = window_width(terminal) - 1;
    struct str *line = &terminal->line, *output = &terminal->output;

    str_clear(line);
    str_clear(output);
    int all = add_facts(terminal, line, width);
    str_add(output, "\r");
    str_add(output, str_text(line));
    int room = width - text_width(str_text(line)) - 2;
    if (all && !*terminal->status && room >= BAR_MIN) {
        str_add(output, "  ");
        add_bar(terminal, output, min_int(room, BAR_MAX));
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
    terminal->utf8 = locale_is_utf8();
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
