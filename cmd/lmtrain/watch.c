/*
 * watch.c - lmtrain watch: a run that goes on elsewhere
 *
 * In a terminal on the alternate screen, drawn again at each interval in the size that the window
 * then has; what is left there at the end is the last state.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cmd.h"
#include "report/live_line.h"
#include "report/run_watch.h"

#define INTERVAL_SECONDS 1.0

struct watch_request {
    const char *folder;
    double interval; /* 0: not given */
    bool is_once, is_json;
    bool is_live; /* drawn in place */
};

static volatile sig_atomic_t is_interrupted;

static void interrupt(int number)
{
    (void)number;
    is_interrupted = 1;
}

/* An interrupt ends the pause, and then the command, in good order: the screen must be left. */
static void catch_signals(void)
{
    /* A write goes on; a pause does not. */
    struct sigaction action = { .sa_handler = interrupt, .sa_flags = SA_RESTART };

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

static double unix_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static struct watch_screen screen_of(bool is_live)
{
    const char *no_colour = getenv("NO_COLOR");
    struct watch_screen screen = { .width = INT32_MAX };
    struct winsize size;

    if (!isatty(STDOUT_FILENO))
        return screen;
    screen = (struct watch_screen){ .width = 80, .height = is_live ? 24 : 0 };
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        screen.width = size.ws_col > 1 ? size.ws_col - 1 : 1;
        screen.height = is_live ? size.ws_row : 0;
    }
    screen.is_utf8 = live_line_is_utf8();
    screen.has_colour = !(no_colour && *no_colour);
    return screen;
}

/* Over what was drawn before: each line clears what is behind it, the last one what is below. */
static void add_in_place(const char *text, struct str *out)
{
    str_add(out, "\033[H");
    for (const char *end; (end = strchr(text, '\n')); text = end + 1) {
        bool is_last = !end[1];

        str_add_bytes(out, text, (size_t)(end - text));
        str_add(out, is_last ? "\033[K" : "\033[K\r\n");
    }
    str_add(out, "\033[J");
}

static int show(const struct watch_request *q, const struct run_watch *watch, bool is_live)
{
    struct watch_screen screen = screen_of(is_live);
    struct str text = { 0 }, drawn = { 0 };

    if (q->is_json) {
        run_watch_json(watch, q->folder, &text);
        str_add_char(&text, '\n');
    } else {
        run_watch_print(watch, q->folder, &screen, &text);
    }
    if (is_live)
        add_in_place(str_text(&text), &drawn);
    int status = cmd_print(is_live ? &drawn : &text);
    str_release(&drawn);
    str_release(&text);
    return status;
}

static void put_terminal(const char *sequence)
{
    fputs(sequence, stdout);
    fflush(stdout);
}

/* The exit status of a state. */
static int status_of(enum watch_state state)
{
    switch (state) {
    case WATCH_SAVED:
        return ERR_REQUEUE;
    case WATCH_FAILED:
    case WATCH_SILENT:
        return ERR_FAILED;
    default:
        return 0;
    }
}

static void pause_for(double seconds)
{
    struct timespec left = { .tv_sec = (time_t)seconds,
                             .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9) };

    nanosleep(&left, NULL);
}

/* Until the run is over, or who watches has seen enough. */
static int watch_on(const struct watch_request *q, struct run_watch *watch, struct arena *arena,
                    struct err *err)
{
    double interval = q->interval > 0 ? q->interval : INTERVAL_SECONDS;

    for (;;) {
        struct arena scratch = { 0 };

        arena_release(arena);
        *arena = scratch;
        if (run_watch_read(watch, q->folder, unix_now(), arena, err) < 0)
            return -1;
        if (show(q, watch, q->is_live))
            return 1;
        bool may_begin = watch->state == WATCH_NO_STATUS;
        if (q->is_once || is_interrupted || !(run_watch_goes_on(watch->state) || may_begin))
            return 0;
        pause_for(interval);
        if (is_interrupted)
            return 0;
    }
}

static int watch_run(struct watch_request *q)
{
    struct arena arena = { 0 };
    struct run_watch watch;
    const char *kind = getenv("TERM");
    struct err err;

    q->is_live = isatty(STDOUT_FILENO) && !q->is_once && !q->is_json && kind && *kind &&
                 strcmp(kind, "dumb") != 0;
    /* Nothing to look at again: a pipe gets one answer, unless it asks for more. */
    if (!q->is_live && !(q->interval > 0))
        q->is_once = true;
    catch_signals();
    int status = run_watch_read(&watch, q->folder, unix_now(), &arena, &err);
    if (status == 0) {
        if (q->is_live)
            put_terminal("\033[?1049h\033[2J\033[?25l");
        status = watch_on(q, &watch, &arena, &err);
        if (q->is_live)
            put_terminal("\033[?25h\033[?1049l");
        if (status == 0 && q->is_live)
            status = show(q, &watch, false);
    }
    if (status < 0)
        status = cmd_fail(&err);
    else if (!status)
        status = status_of(watch.state);
    arena_release(&arena);
    return status;
}

int cmd_watch(int argc, char **argv)
{
    struct watch_request q = { 0 };
    const struct option table[] = {
        option_float("interval", &q.interval, "SECONDS", 0.1, 3600,
                     "look again after this time (default: 1 in a terminal; elsewhere the run is "
                     "shown once)"),
        option_flag("once", &q.is_once, "show the run once"),
        option_flag("json", &q.is_json, "print an object in one line each time"),
    };
    const struct options options = {
        .command = "lmtrain watch",
        .arguments = "RUN",
        .summary = "Show how a run is that goes on elsewhere: its figures, and what each of its "
                   "ranks does",
        .details = "RUN is the job's output folder. Exit status: 0 the run goes on or is done; 1 "
                   "it failed, or nothing is heard of it any more; 75 it was stopped and saved; 3 "
                   "there is no run.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
        .min_arguments = 1,
        .max_arguments = 1,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0) {
        q.folder = arguments.items[0];
        status = watch_run(&q);
    }
    arena_release(&arena);
    return status;
}
