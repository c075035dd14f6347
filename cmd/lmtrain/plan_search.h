/*
 * plan_search.h - what a search of layouts found, as text and as JSON
 */
#ifndef CMD_PLAN_SEARCH_H
#define CMD_PLAN_SEARCH_H

#include <cjson/cJSON.h>

#include "base/str.h"
#include "plan/search_job.h"

/* The table of the best layouts, and why others are not in it. within: search.within of the job. */
void plan_print_search(const struct search_result *result, double within, struct str *out);

/* The same as "search". */
void plan_add_search(const struct search_result *result, cJSON *json);

#endif
