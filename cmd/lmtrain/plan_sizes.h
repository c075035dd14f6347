/*
 * plan_sizes.h - the sizes of micro-batches that were chosen (parallel.micro_batches: auto), as
 * text and as JSON
 */
#ifndef CMD_PLAN_SIZES_H
#define CMD_PLAN_SIZES_H

#include <cjson/cJSON.h>

#include "base/str.h"
#include "plan/micro_batch_sizes.h"

/* A line: the list, and the pipeline's bubble with it and with sizes that are all alike. */
void plan_print_sizes(const struct micro_batch_sizes *sizes, struct str *out);

/* The same as "micro_batch_sizes". */
void plan_add_sizes(const struct micro_batch_sizes *sizes, cJSON *json);

#endif
