/*
 * run_scores.h - the scores of benchmarks that `lmtrain eval --output FILE` wrote beside a run
 *
 * Files of eval/scores.h's report are found by their content, in the run's folder and in its folder
 * eval: NAME.json that begins with {"model": and has "tasks". Items of the benchmarks, which may be
 * many megabytes, are skipped.
 */
#ifndef REPORT_RUN_SCORES_H
#define REPORT_RUN_SCORES_H

#include "base/arena.h"

struct run_score {
    const char *file;  /* its name */
    const char *model; /* what was evaluated, as it was named */
    const char *task, *style;
    int n_shots;         /* -1: not known */
    const char *metric;  /* "acc" */
    double value, error; /* of the whole task; error NAN: not known */
    double n_items;
};

struct run_scores {
    struct run_score *items; /* by file, in the order of their names */
    int n, capacity;
};

/* In the arena. Files that cannot be read, or are something else, are left out. */
void run_scores_read(struct run_scores *scores, const char *folder, struct arena *arena);

#endif
