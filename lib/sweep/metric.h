/*
 * metric.h - how far a trial is, and what its metric was, from the metrics.jsonl of its run
 */
#ifndef SWEEP_METRIC_H
#define SWEEP_METRIC_H

#include <stdint.h>

#include "base/err.h"

struct metric_value {
    int64_t step;   /* at which it was logged; -1: it was not */
    double value;   /* NAN: not finite */
    int64_t newest; /* the last step of any line; -1: none */
};

/*
 * The newest value of the metric at or before a step. metric: a key of metrics.jsonl, where a dot
 * stands for an underscore; the exact value is taken (KEY_hex) where there is one. eval.NAME.loss
 * is eval_loss of a held-out set with that name; eval.loss that of the lines without a name, or,
 * where there are none, the mean over the sets. Lines that are not whole yet are left out; a run
 * without the file has no values. Returns 0, or -1 and ERR_FAILED.
 */
int metric_read(const char *folder, const char *metric, int64_t last_step, struct metric_value *out,
                struct err *err);

#endif
