/*
 * report_plan.h - a run's plan and timelines as JSON for the report
 */
#ifndef CMD_REPORT_PLAN_H
#define CMD_REPORT_PLAN_H

#include <cjson/cJSON.h>

#include "report_trace.h"

/*
 * Add "memory", the segments of each pipeline stage; where there is a cluster "predicted"; and
 * where there are timelines "kinds", the time of ops by kind, and "timeline", as lanes of
 * about n_slices slices.
 */
void report_plan_add(const struct report_timelines *timelines, int n_slices, cJSON *json,
                     struct arena *arena);

#endif
