/*
 * report_run.h - all that a report has of a run: what it recorded, its job, its plan, its traces
 */
#ifndef CMD_REPORT_RUN_H
#define CMD_REPORT_RUN_H

#include "plan/timeline_summary.h"
#include "report/run_json.h"
#include "report_trace.h"

struct report_run {
    const char *folder, *name; /* names of runs of a report differ */
    struct run_log log;
    struct flat_job job; /* resolved if the run can be planned, else as the run wrote it */
    struct run_scores scores;
    struct report_timelines times;
    bool has_plan;
    struct err plan_error; /* text "" if there is nothing to say */
    struct timeline_summary summary;
};

/*
 * Read the runs in folders[n]. What can do without is done without: a job that cannot be planned
 * has no memory and no times, and plan_error says why. must_trace: the first has to have traces.
 * report_runs_close in any case. Returns 0, or -1.
 */
int report_runs_open(struct report_run *runs, const char *const *folders, int n,
                     const struct report_request *request, bool must_trace, struct arena *arena,
                     struct err *err);
void report_runs_close(struct report_run *runs, int n);

/* {"lmtrain":…, "made":…, "runs":[…], "differences":[…]}, documented in man/lmtrain-report.1. */
cJSON *report_runs_json(const struct report_run *runs, int n,
                        const struct run_json_options *options, struct arena *arena);

/* A line a run: how far it is and its losses. */
void report_runs_print(const struct report_run *runs, int n, struct str *out);

#endif
