/*
 * judge.h - which trial runs next, to which rung, and which ones end there
 *
 * A rung is a step at which trials are compared. The judge gives out tasks ("trial 3 to rung 1")
 * and takes their results; it knows neither processes nor time, so that a history of tasks and
 * values replays to the same decisions. Smaller values are better; a caller that maximises negates.
 *
 * Synchronous, as is the default: decisions about a rung are made when all trials are at it, hence
 * they depend on the values alone, not on their order or on how many trials run at a time:
 *   - asha is successive halving (Jamieson and Talwalkar 2016): of n trials at a rung the best
 *     max(1, floor(n / eta)) go on, ties by number;
 *   - median (Golovin et al. 2017, as optuna has it): a trial ends if its best value so far is
 *     worse than the median of the other trials' values at this rung, if there are at least
 *     min_trials others. (Ray, after Vizier, takes the others' running means; that is not here.)
 * Asynchronous: asha is Li et al. 2018 (arXiv 1810.05934), algorithm 2: whenever a task is taken,
 * a trial that is among the best floor(n / eta) of the n that are at a rung by now, and did not go
 * on yet, goes on, those of high rungs first; else another trial begins. Trials pause at rungs and
 * go on later, with the same bits, since a resume is exact; Ray's ASHA and optuna's
 * SuccessiveHalvingPruner cannot pause: they end a trial at once that is not among the best so
 * far. There is an end, as the number of trials is given: a rung from which no trial could go on by
 * then (n < eta) lets its best one go on. median decides by the values that are there.
 *
 * A trial that failed, or whose value is not finite, counts as worst: it is one of the n, and never
 * goes on.
 */
#ifndef SWEEP_JUDGE_H
#define SWEEP_JUDGE_H

#include <stdbool.h>

#include "base/arena.h"
#include "config/job.h"

struct judge_rules {
    enum sweep_stop stop;
    int eta, min_trials;
    int n_rungs; /* the last one is the end of a run */
    int n_trials;
    bool is_asynchronous;
};

enum judge_state {
    JUDGE_WAITING, /* for its next task */
    JUDGE_RUNNING,
    JUDGE_PAUSED,   /* at a rung, for a decision */
    JUDGE_STOPPED,  /* ended at a rung */
    JUDGE_FINISHED, /* at the last rung */
    JUDGE_FAILED
};

struct judge_trial {
    enum judge_state state;
    int rung;     /* of its task: the next one while it waits, the last one when it has ended */
    double value; /* at the last rung that it reached; INFINITY: none, or not finite */
    double best;  /* of all rungs */
};

/* A trial goes on from a rung, or ends there. */
struct judge_decision {
    int trial, rung;
    bool goes_on;
};

struct judge {
    struct judge_rules rules;
    struct judge_trial *trials; /* [n_trials] */
    double *values;             /* [n_rungs][n_trials], NAN: the trial was not there */
    bool *has_left;             /* [n_rungs][n_trials]: it went on from there */
    struct judge_decision *decisions;
    int n_decisions, capacity;
    struct arena *arena;
};

/* All in the arena. */
void judge_init(struct judge *judge, const struct judge_rules *rules, struct arena *arena);

/* Take the next task: its trial, whose rung says where to, is then running. -1: there is none now,
 * and none at all if no trial is running. */
int judge_next(struct judge *judge);

/* A running trial is at its rung, with this value; or failed on the way there. */
void judge_report(struct judge *judge, int trial, double value);
void judge_fail(struct judge *judge, int trial);

/* All running trials were interrupted: their tasks are given out again. */
void judge_interrupt(struct judge *judge);

/* No trial runs or waits, and none is paused. */
bool judge_is_over(const struct judge *judge);

/*
 * The trials, best first, into order[n_trials]: those that finished by their values, then the
 * others by how far they came, then by value; failed ones last; ties by number.
 */
void judge_rank(const struct judge *judge, int *order);

#endif
