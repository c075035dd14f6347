/*
 * run_log.h - what a run's metrics.jsonl says: steps, evaluations, events
 *
 * The reader of what metrics.h writes. A line with "event" is an event, one with "eval_loss" an
 * evaluation, of the set that "eval_set" names, one with "loss" a step, one with "ops_s" the times
 * of ops; other lines are left out,
 * and lines that are not objects, as a kill leaves one, are counted. Of a step each number is a
 * column of its own, so that numbers that later versions add are there, too; of what is not a
 * number:
 *
 *     exposed_s      the sum of its kinds in the column exposed_s, and the mean of each kind
 *     exposed_max    its seconds in the column exposed_max_s
 *     dropped        the sum of its layers
 *     expert_layers  of the last step alone
 *
 * The run may still be writing the file.
 */
#ifndef REPORT_RUN_LOG_H
#define REPORT_RUN_LOG_H

#include <stdint.h>

#include "base/err.h"
#include "report/run_table.h"

struct run_event {
    int64_t step;
    const char *kind, *text; /* "started", "spike", ... */
    double time;             /* Unix seconds; 0: not known */
};

/* The router of a layer with experts, in the last step. */
struct run_experts {
    int layer, n_experts;
    double balance;
    const double *load; /* [n_experts]; 1 is an equal share */
};

/* What nothing hid of a kind of collective: the mean of all steps. */
struct exposed_mean {
    const char *kind; /* "reduce_scatter dp" */
    double seconds;   /* the sum */
    int n_steps;
};

/* Ops of a kind on a rank's compute stream: the mean of steps and ranks, where they were timed. */
struct run_op_time {
    const char *kind;
    double seconds; /* of a step */
};

struct run_log {
    struct run_table steps;
    struct run_table *evaluations; /* of each held-out set, in order of appearance */
    int n_evaluations, evaluation_capacity;
    struct run_event *events;
    int n_events, event_capacity;
    struct run_experts *experts;
    int n_experts;
    struct exposed_mean *exposed;
    int n_exposed, exposed_capacity;
    struct run_op_time *ops;
    int n_ops, op_capacity;
    double n_op_steps; /* of ranks, of which these are means */
    int n_left_out;    /* lines that are not objects */
    int n_starts;      /* of processes */
    int n_pauses;      /* planned ends, as of a sweep's trials at rungs, that were gone on from */
    int n_restarts;    /* starts but the first one and those after pauses */
    int n_ranks;       /* of the last start; 0: not known */
};

/*
 * Read folder/metrics.jsonl; everything is in the arena. Returns 0, or -1 and ERR_DATA if there is
 * no such file or it has neither steps nor evaluations nor events.
 */
int run_log_read(struct run_log *log, const char *folder, struct arena *arena, struct err *err);

#endif
