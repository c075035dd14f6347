/*
 * report_summary.h - what traced steps say in numbers, as tables and as JSON
 */
#ifndef CMD_REPORT_SUMMARY_H
#define CMD_REPORT_SUMMARY_H

#include <cjson/cJSON.h>

#include "base/str.h"
#include "plan/timeline_summary.h"

void report_summary_print(const struct timeline_summary *summary, struct str *out);

/* Members of a new object, which the caller deletes. */
cJSON *report_summary_json(const struct timeline_summary *summary);

#endif
