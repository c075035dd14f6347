/*
 * history.h - OUTPUT/sweep.jsonl: all that happened in a sweep, from which it goes on
 *
 * A line is a JSON object with `event` and `time` (seconds of Unix time), appended whole and synced
 * before what it says has an effect. Readers drop a last line that a kill tore. Events, with their
 * further members:
 *
 *   sweep    the first line: version (1), command ("pretrain"), job (the job file's name), search,
 *            seed, metric, goal ("minimize"), stop, eta, min_trials, asynchronous, rungs (a list of
 *            steps, ascending; the last one is the end of a run, 0: it is not known beforehand),
 *            trials (how many), parameters (as in the job)
 *   trial    a line for each trial: trial (its number), settings (an object: job key, value)
 *   start    trial, rung: its process was started, to train up to that rung
 *   value    trial, rung, step, value (null: not finite), value_hex (C's %a): it is at the rung; the
 *            metric was logged at that step
 *   fail     trial, rung, text: it ended otherwise
 *   retry    trial, rung, text: it died, and is started again
 *   take_over  trial, rung: its process is gone, and another one of those that share the sweep goes
 *            on with it
 *   go_on    trial, rung: it goes on from this rung; and
 *   stop     trial, rung: it ends there, as the rule says (judge.h)
 *   resume   the sweep was interrupted: trials that had started, without a value, start again
 *   more     trials: the sweep has so many trials by now; lines of new trials follow
 *   end      best: the number of the best trial, -1 if none finished; ensemble: the best ones, a
 *            list
 *
 * A trial's run is in OUTPUT/trial-NNN, as any run's; its output in OUTPUT/log/trial-NNN.log.
 */
#ifndef SWEEP_HISTORY_H
#define SWEEP_HISTORY_H

#include <stdint.h>

#include "config/job.h"
#include "sweep/judge.h"

enum { SWEEP_HISTORY_VERSION = 1 };

enum history_event {
    HISTORY_SWEEP,
    HISTORY_TRIAL,
    HISTORY_START,
    HISTORY_VALUE,
    HISTORY_FAIL,
    HISTORY_RETRY,
    HISTORY_TAKE_OVER,
    HISTORY_GO_ON,
    HISTORY_STOP,
    HISTORY_RESUME,
    HISTORY_MORE,
    HISTORY_END
};

struct history_record {
    enum history_event event;
    double time;
    int trial, rung;  /* where the event has them; of more: how many trials */
    int64_t step;     /* of value */
    double value;     /* of value: NAN if not finite */
    const char *text; /* of fail and retry */
};

/* The first line. */
struct history_header {
    const char *command, *job, *metric, *parameters;
    enum sweep_search search;
    enum sweep_goal goal;
    enum sweep_stop stop;
    uint64_t seed;
    int eta, min_trials, n_trials;
    bool is_asynchronous;
    const int64_t *rungs;
    int n_rungs;
};

struct history {
    struct history_header header; /* n_trials: by the last `more` */
    const char **settings;        /* [n_settings]: of each trial, a JSON object */
    int n_settings;
    struct history_record *records; /* without sweep and trial */
    int n_records;
    const int *ensemble; /* [n_ensemble], of the last `end` */
    int n_ensemble;
    size_t n_bytes; /* of whole lines */
};

/* "OUTPUT/sweep.jsonl", "OUTPUT/trial-007", "OUTPUT/log/trial-007.log", in the arena. */
const char *history_path(const char *output, struct arena *arena);
const char *history_trial_folder(const char *output, int trial, struct arena *arena);
const char *history_trial_log(const char *output, int trial, struct arena *arena);

/* All of a history, in the arena. Returns 0, or -1: ERR_DATA with the line, ERR_FAILED. */
int history_read(struct history *history, const char *path, struct arena *arena, struct err *err);

/* The header of a job's sweep. */
void history_describe(struct history_header *header, const struct job *job, const char *job_file,
                      struct arena *arena);

/* The rules, for judge_init. */
struct judge_rules history_rules(const struct history_header *header);

/* A value as the judge takes it: smaller is better. */
double history_judged(const struct history_header *header, double value);

/* Settings as a JSON object, {"optimizer.lr": 0.001}. */
const char *history_settings(const struct sweep_row *settings, struct arena *arena);

/*
 * Lines at the end of the file fd (O_APPEND); n_bytes: its length in whole lines, what is behind is
 * cut off at once. Return 0, or -1 and ERR_FAILED.
 */
int history_open(const char *path, size_t n_bytes, struct err *err);
int history_add_header(int fd, const struct history_header *header, struct err *err);
int history_add_trial(int fd, int trial, const char *settings, struct err *err);
int history_add(int fd, const struct history_record *record, struct err *err);
int history_add_end(int fd, int best, const int *ensemble, int n_ensemble, struct err *err);

/*
 * The judge as the records leave it (replay.c): tasks that are under way are running. Each start
 * and each decision must be what the rules make of the records before it: otherwise -1 and
 * ERR_DATA. Decisions that follow from the last records, but that a kill kept from being written,
 * are the judge's from *n_written on.
 */
int history_replay(const struct history *history, struct judge *judge, int *n_written,
                   struct arena *arena, struct err *err);

#endif
