/*
 * generation_config.h - what the authors of a model say of how its texts are drawn and end
 *
 * generation_config.json, as transformers reads it: eos_token_id (one or a list), do_sample,
 * temperature, top_k, top_p, repetition_penalty. Other keys are not looked at.
 */
#ifndef SERVE_GENERATION_CONFIG_H
#define SERVE_GENERATION_CONFIG_H

#include <stdint.h>

#include "base/err.h"

#define GENERATION_ENDS_MAX 32

struct generation_config {
    int64_t ends[GENERATION_ENDS_MAX]; /* token ids, unchecked; more are left out */
    int n_ends;
    int samples;                                   /* do_sample: 0, 1, or -1: not said */
    double temperature, top_p, repetition_penalty; /* -1: not said */
    int top_k;                                     /* likewise */
};

/* Of a folder; without the file nothing is said. ERR_DATA: unreadable, or a value out of range. */
int generation_config_read(struct generation_config *config, const char *folder, struct err *err);

#endif
