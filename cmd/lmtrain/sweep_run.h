/*
 * sweep_run.h - a sweep under way: its history, its trials' processes, its end
 */
#ifndef SWEEP_RUN_H
#define SWEEP_RUN_H

#include <sys/types.h>

#include "cmd.h"
#include "launch/cores.h"
#include "sweep/history.h"
#include "sweep/trial.h"

/* A share of the machine, and the trial that runs there. */
struct sweep_slot {
    struct trial_place place;
    const char *hosts; /* --hosts of its trials, or NULL */
    const char *name;  /* its hosts or nodes, or NULL: a part of this machine */
    pid_t process;     /* 0: it is free */
    int trial;
    int n_tries;      /* of the task without progress */
    int n_deaths;     /* in a row, of trials that made no progress here */
    bool is_lost;     /* gets no more trials */
    int64_t began_at; /* step: where the newest start was */
};

struct sweep_session {
    struct job job;                 /* the base of all trials */
    const char *output, *trial_job; /* the copy of the job file that trials read */
    const struct option_list *sets;
    struct history history;
    struct judge judge;
    int n_written; /* decisions that are in the history */
    int history_fd, lock;
    struct sweep_slot *slots;
    int n_slots;
    const char **reasons; /* [n_trials]: why a trial failed, or NULL */
    int *n_retries;       /* [n_trials]: how often it was started again since it died */
    int *retries;         /* [n_waiting]: trials that died, and wait for a slot */
    int n_waiting;
    int n_stops;   /* signals so far */
    bool is_joint; /* other processes take trials of it, too (sweep_join.c) */
    bool is_live;
    int n_drawn; /* lines of the live table */
    struct arena *arena;
};

/* What the command line says. */
struct sweep_request {
    struct option_list sets;
    const char *hosts;
    bool json, replay, join;
    int trial; /* the only one to run, in this process; -1: all */
};

/*
 * Run the job's sweep, or go on with it, to its end. Returns the exit status: 0, 1 no trial
 * finished, 75 interrupted, or that of an error, after a message.
 */
int sweep_run(const struct sweep_request *request, const char *job_file, struct arena *arena);

/* Write and say the decisions that the judge has made since. Returns 0, or -1 and ERR_FAILED. */
int sweep_write_decisions(struct sweep_session *sweep, struct err *err);

/* ---- parts of sweep_run, for a sweep that is shared ---- */

/* Write, say and judge a value. Returns 0, or -1 and ERR_FAILED. */
int sweep_take_value(struct sweep_session *sweep, const struct history_record *value,
                     struct err *err);

/*
 * The slot's process ended with this status: its value or failure is recorded, or it is started
 * again, or it waits for that (n_waiting); nothing of one that ended by our signal. Returns 0, or
 * -1.
 */
int sweep_take_end(struct sweep_session *sweep, struct sweep_slot *slot, int status,
                   struct err *err);

/* Start the trial that has waited longest. Returns 1, or -1. */
int sweep_start_waiting(struct sweep_session *sweep, struct sweep_slot *slot, struct err *err);

/* Block SIGCHLD and signals that end a sweep; wait for one, at most a second, and pass it on. */
void sweep_block_signals(void);
void sweep_wait(struct sweep_session *sweep);

/* The end of a sweep that is over, and its table. Returns the exit status, after a message. */
int sweep_finish(struct sweep_session *sweep, bool json, struct err *err);

/* ---- sweep_join.c ---- */

/*
 * Take trials of the job's sweep, one after the other, beside other processes that do, until none
 * is left for this one. Returns the exit status as sweep_run does; 0 also if others still run.
 */
int sweep_join(const struct sweep_request *request, const char *job_file, struct arena *arena);

/* ---- sweep_begin.c ---- */

/* The job, and slots for its trials. Returns 0, or -1 and ERR_CONFIG. */
int sweep_read_job(struct sweep_session *sweep, const struct sweep_request *request,
                   const char *job_file, struct err *err);

/*
 * The shares of the machine, the folder and its lock; and sweep_open, but for a joint sweep.
 * Returns 0, or -1.
 */
int sweep_prepare(struct sweep_session *sweep, const struct sweep_request *request,
                  const char *job_file, struct err *err);

/*
 * The history with the judge as it leaves it, and the copy of the job file; of a joint sweep as
 * they are now, with trials of others under way, all in the arena. Returns 0, or -1: ERR_CONFIG
 * where the job is not the one that the sweep began with.
 */
int sweep_open(struct sweep_session *sweep, const char *job_file, struct err *err);

/* Wait until no process is of the trial: one whose sweep was killed, even just as it began, saves
 * and ends by itself (trial.h). Returns 0, or -1 and ERR_CONFIG: it does not end. */
int sweep_await_trial(const struct sweep_session *sweep, int trial, struct err *err);

/* ---- sweep_trials.c ---- */

/* Divide cores, GPUs or hosts among the slots. Returns 0, or -1 and ERR_CONFIG. */
int sweep_divide(struct sweep_session *sweep, const char *hosts, struct err *err);

/*
 * Become the command of request->trial, without the sweep's history: a task of a Slurm array, whose
 * value the sweep finds later in the trial's folder. Returns only on failure: the exit status,
 * after a message.
 */
int sweep_become_trial(const struct sweep_request *request, const char *job_file,
                       struct arena *arena);

/* Start the slot's trial, to its rung. Returns 0, or -1 and ERR_FAILED. */
int sweep_start(struct sweep_session *sweep, struct sweep_slot *slot, struct err *err);

/*
 * What a trial has at its rung, by what its run's folder says: returns 1 and the value, 0 if it has
 * not come so far, or -1 and ERR_FAILED.
 */
int sweep_look(const struct sweep_session *sweep, int trial, struct history_record *value,
               struct err *err);

/* The newest checkpoint's step of a trial; -1: it has none. */
int64_t sweep_saved_step(const struct sweep_session *sweep, int trial);

/* ---- sweep_table.c ---- */

/* "step 12/36", "end" of a rung. */
const char *sweep_rung_name(const struct history_header *header, int rung, struct arena *arena);

/* Draw the live table again on stderr; remove it. */
void sweep_draw(struct sweep_session *sweep);
void sweep_erase(struct sweep_session *sweep);

/* The trials as they stand, best first, as a table or JSON, with the best one's settings. */
void sweep_print(const struct sweep_session *sweep, bool json, struct str *out);

#endif
