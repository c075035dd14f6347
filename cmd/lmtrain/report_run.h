/*
 * report_run.h - all that a report has of a run: what it recorded, its job, its plan, its traces
 */
#ifndef CMD_REPORT_RUN_H
#define CMD_REPORT_RUN_H

#include "plan/timeline_summary.h"
#include "report/run_json.h"
#include "report/run_sweep.h"
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

/* Of a sweep's trials the best ones, whose runs are shown. */
#define REPORT_TRIALS_MAX 12

struct report {
    const char *folder; /* the first one that was given */
    struct report_run *runs;
    int n;
    struct run_sweep *sweeps;
    const char **sweep_folders;
    int n_sweeps;
};

/*
 * Read the runs in folders[n]; of a sweep's folder its record, and the runs of its best trials.
 * What can be done without is done without: a job that cannot be planned has no memory and no
 * times, and plan_error says why. must_trace: the run has to have traces. report_close in any case.
 * Returns 0, or -1.
 */
int report_open(struct report *report, const char *const *folders, int n,
                const struct report_request *request, bool must_trace, struct arena *arena,
                struct err *err);
void report_close(struct report *report);

/* {"lmtrain":…, "made":…, "runs":[…], "differences":[…]}, documented in man/lmtrain-report.1. */
cJSON *report_json(const struct report *report, const struct run_json_options *options,
                   struct arena *arena);

/* A line a run: how far it is and its losses; a line a trial. */
void report_print(const struct report *report, struct str *out);

#endif
