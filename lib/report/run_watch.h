/*
 * run_watch.h - how a run that goes on elsewhere is, from its folder: its status files
 * (progress/status_file.h), and the last lines of its metrics.jsonl
 */
#ifndef REPORT_RUN_WATCH_H
#define REPORT_RUN_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "report/metrics.h"

enum { N_WATCH_EVENTS = 6 };

enum watch_state {
    WATCH_NO_STATUS, /* the run has written none: it is of an earlier version, or has not begun */
    WATCH_RUNNING,
    WATCH_RESTARTING, /* rank 0 is gone or silent, what starts the ranks is not */
    WATCH_SILENT,     /* nothing is heard of it: killed, or its host is down */
    WATCH_DONE,
    WATCH_SAVED, /* a signal stopped it: the same command continues it */
    WATCH_FAILED,
};

/* Texts lie in the arena of run_watch_read. Times are Unix time in seconds, 0: not known. */
struct watch_rank {
    int rank, micro_batch; /* micro_batch -1: in none */
    int64_t step;
    int64_t resident_bytes;   /* 0: not known */
    int64_t peak_bytes;       /* the most of it; 0: not known */
    double heard_s;           /* since its last sign of life */
    bool waits;               /* for other ranks */
    const char *host, *state; /* state: running, left, ended */
    const char *doing, *gpu;  /* "": not known */
};

struct watch_evaluation {
    int64_t step;
    double loss;
    const char *set; /* "": the only one */
};

struct watch_event {
    int64_t step;
    double time;
    const char *event, *text;
};

struct run_watch {
    enum watch_state state;
    double age_s; /* of the newest status; negative: there is none */
    const char *host, *text, *status, *note;
    const char
        *death; /* the cause, of ranks that died since the last start; "": none is recorded */
    int pid, n_ranks;
    double started_at, begun_at;                       /* of rank 0's process, of the run */
    double useful_s, left_s;                           /* left_s nan: not known */
    int64_t total_steps, saved_step, restarts, pauses; /* saved_step -1: none */
    int64_t best_step; /* of the checkpoint with the lowest held-out loss; -1: not known */
    double best_loss;
    bool has_step; /* step has figures, not its number alone */
    struct metrics_step step;
    int n_listed; /* ranks */
    struct watch_rank *ranks;
    int n_evaluations; /* the last of each set */
    struct watch_evaluation *evaluations;
    int n_events; /* the last ones, in order of time */
    struct watch_event events[N_WATCH_EVENTS];
};

/*
 * Read it. now: Unix time. Returns 0, or -1 and ERR_DATA if there is no run in the folder. A file
 * that is just being replaced, or is damaged, counts as not there.
 */
int run_watch_read(struct run_watch *watch, const char *folder, double now, struct arena *arena,
                   struct err *err);

/* A word of a state: "running", "done", ... */
const char *run_watch_state(enum watch_state state);

/* Whether a run in this state may go on by itself. */
bool run_watch_goes_on(enum watch_state state);

/* One JSON object in a line, without its end. */
void run_watch_json(const struct run_watch *watch, const char *folder, struct str *out);

struct watch_screen {
    int width, height; /* height 0: all is shown */
    bool is_utf8, has_colour;
};

/* For people: lines of at most `width` columns, at most `height` of them. */
void run_watch_print(const struct run_watch *watch, const char *folder,
                     const struct watch_screen *screen, struct str *out);

#endif
