/*
 * run_sweep.h - the trials of a sweep, as its sweep.jsonl records them
 *
 * sweep/history.h documents the file: a header, a line for each trial with its settings, and what
 * happened to them. Here it is read for people: which decisions follow is the sweep's business. A
 * last line that is not whole, and events of other versions, are left out.
 */
#ifndef REPORT_RUN_SWEEP_H
#define REPORT_RUN_SWEEP_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

struct sweep_trial_record {
    const char *settings; /* a JSON object: job key, value; NULL: not recorded yet */
    const char *state;    /* "waits", "runs", "paused", "stopped", "finished", "failed" */
    const char *text;     /* why it failed; NULL */
    int rung;             /* of the newest value; -1: there is none */
    int64_t step;
    double value; /* of the metric there; NAN: none, or not finite */
};

struct run_sweep {
    const char *header; /* the file's first line */
    const char *metric;
    bool is_maximized;
    int n_rungs;
    struct sweep_trial_record *trials;
    int n_trials, capacity;
    int best;     /* of the highest rung that was reached; -1: no trial has a value */
    bool is_over; /* it has come to its end */
};

/* Whether a folder is a sweep's. */
bool run_sweep_is(const char *folder);

/* In the arena. Returns 0, or -1 and ERR_DATA. */
int run_sweep_read(struct run_sweep *sweep, const char *folder, struct arena *arena,
                   struct err *err);

/*
 * The trials by how good they are, those with a value first: *order [n_trials], in the arena.
 */
void run_sweep_rank(const struct run_sweep *sweep, int **order, struct arena *arena);

/* The folder of a trial's run, in the arena. */
const char *run_sweep_folder(const char *folder, int trial, struct arena *arena);

/* {"metric":…, "goal":…, "over":…, "best":…, "trials":[{"trial":…, "state":…, …}]} */
cJSON *run_sweep_json(const struct run_sweep *sweep);

#endif
