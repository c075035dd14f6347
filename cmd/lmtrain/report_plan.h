/*
 * report_plan.h - a run's plan and timelines as JSON for the report
 */
#ifndef CMD_REPORT_PLAN_H
#define CMD_REPORT_PLAN_H

#include <cjson/cJSON.h>

#include "plan/timeline_lanes.h"
#include "report/run_log.h"
#include "report_trace.h"

/*
 * Add "memory", the segments of each pipeline stage; where there is a cluster "predicted"; "kinds";
 * and where there are timelines "timeline", as lanes of about n_slices slices.
 */
void report_plan_add(const struct report_timelines *timelines, const struct run_log *log,
                     int n_slices, cJSON *json, struct arena *arena);

/* Add "kinds", the time of ops by kind, as far as it is predicted or measured; the timeline may be
 * empty (n 0). */
void report_plan_add_kinds(const struct timeline *timeline, const struct run_log *log, cJSON *json,
                           struct arena *arena);

#endif
