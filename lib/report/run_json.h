/*
 * run_json.h - what a run recorded, as JSON: for report.html and `lmtrain report --json`
 *
 * The fields are documented in man/lmtrain-report.1. Columns are arrays of the same length, null
 * where a row has no value.
 */
#ifndef REPORT_RUN_JSON_H
#define REPORT_RUN_JSON_H

#include <cjson/cJSON.h>

#include "report/flat_job.h"
#include "report/run_log.h"
#include "report/run_scores.h"

/* How much of it. */
struct run_json_options {
    int n_points; /* rows of a table at most, by run_table_thin; 0: all */
    int n_digits; /* of numbers in columns, 1 to 17; 17: as they were written */
    int n_events; /* the newest; 0: all */
    int n_slices; /* of the timeline of a run, which the caller adds */
};

/* {"lines":…, "columns":{NAME:[…]}}; "set" as well, of a table with a name. */
cJSON *run_json_table(const struct run_table *table, const struct run_json_options *options);

/* Add steps, evaluations, events, experts, exposed_s and what is known of the whole run. */
void run_json_add_log(cJSON *json, const struct run_log *log,
                      const struct run_json_options *options);

void run_json_add_scores(cJSON *json, const struct run_scores *scores);

/* Add "job": {"optimizer.lr":"1.0e-3", …}. */
void run_json_add_job(cJSON *json, const struct flat_job *job);

/* [{"key":…, "values":[…]}] */
cJSON *run_json_differences(const struct flat_job_difference *differences, int n, int n_jobs);

#endif
