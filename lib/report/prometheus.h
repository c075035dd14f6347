/*
 * prometheus.h - the state of a run as a file for node_exporter's textfile collector
 *
 * The text format of Prometheus (exposition format 0.0.4): # HELP, # TYPE and a sample for each
 * metric, all with the label run. All users may read the file, as node_exporter is usually another
 * one, and a reader meets a whole file: it is written beside it, as PATH.part, and renamed.
 */
#ifndef REPORT_PROMETHEUS_H
#define REPORT_PROMETHEUS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

struct prometheus_run {
    const char *run; /* its folder */
    bool is_running;
    int64_t step, steps; /* done; of the whole run */
    double loss, grad_norm, lr;
    int64_t tokens;
    double tokens_per_s, step_s, mfu;
    int64_t skipped, restarts, pauses;
    double run_seconds;          /* since the first start of the run */
    double useful_seconds;       /* of them in steps that count */
    double save_seconds;         /* of the last checkpoint; < 0: there is none yet, left out */
    double save_blocked_seconds; /* in which checkpoints kept steps waiting, by this process */
    int n_stragglers;
    int slowest_rank; /* -1: not known, left out */
    const char *slowest_host;
    double slowest_ratio;
};

/* useful_seconds / run_seconds; 0 before any time has passed. */
double prometheus_goodput(const struct prometheus_run *run);

void prometheus_print(const struct prometheus_run *run, struct str *out);

/* Returns 0, or -1 and ERR_FAILED; the file is as before then. */
int prometheus_write(const char *path, const struct prometheus_run *run, struct err *err);

#endif
