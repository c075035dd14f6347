/*
 * plan_codec.h - `lmtrain plan`: what compressed gradients send, and what they take
 */
#ifndef CMD_PLAN_CODEC_H
#define CMD_PLAN_CODEC_H

#include <cjson/cJSON.h>

#include "plan/plan.h"

/* Lines, and "compress" of the JSON, where parallel.compress is not none. */
void plan_print_codec(const struct plan *plan, struct str *out);
void plan_add_codec(const struct plan *plan, cJSON *json);

#endif
