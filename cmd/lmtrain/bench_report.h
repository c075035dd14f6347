/*
 * bench_report.h - what lmtrain bench measured, as tables and as JSON
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdbool.h>

#include "base/str.h"
#include "train/bench.h"

struct bench_report {
    const struct job *job;
    struct engine *engine;
    const struct bench *bench; /* NULL of collectives and ceilings */
};

/* Ops of equal kind, phase and shapes in one line, the longest first; each: all, in order. */
void bench_print_ops(const struct bench_report *report, bool each, struct str *out);
void bench_print_ops_json(const struct bench_report *report, bool each, struct str *out);

/* The whole step, by families of ops. */
void bench_print_step(const struct bench_report *report, struct str *out);
void bench_print_step_json(const struct bench_report *report, struct str *out);

/* Of it (bench_waiting.c): what collectives it waited for. */
struct cJSON;
void bench_add_waiting(const struct bench_report *report, struct cJSON *json);
void bench_print_waiting(const struct bench_report *report, struct str *out);

void bench_print_collectives(const struct bench_report *report, const struct bench_collective *list,
                             int n, struct str *out);
void bench_print_collectives_json(const struct bench_report *report,
                                  const struct bench_collective *list, int n, struct str *out);

/* What this rank's product keeps up, and its memory's speed. */
void bench_print_ceilings(const struct bench_report *report, const struct engine_sustained *product,
                          double bytes_per_second, struct str *out);
void bench_print_ceilings_json(const struct bench_report *report,
                               const struct engine_sustained *product, double bytes_per_second,
                               struct str *out);

#endif
