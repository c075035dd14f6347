/*
 * flat_job.h - a run's job as a flat list of keys and values, and what differs between jobs
 *
 * Of YAML it knows maps, lists and scalars, and nothing of jobs: "optimizer.lr" has the text
 * "1.0e-3", a list is one value, "[100, 500]". So jobs of any version can be compared.
 */
#ifndef REPORT_FLAT_JOB_H
#define REPORT_FLAT_JOB_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/err.h"

struct flat_job_value {
    const char *key, *text;
};

struct flat_job {
    struct flat_job_value *values; /* in the file's order */
    int n, capacity;
};

/* Of the text of a job file that messages call source; in the arena. Returns 0, or -1 and
 * ERR_CONFIG. */
int flat_job_parse(struct flat_job *job, const char *text, size_t n_bytes, const char *source,
                   struct arena *arena, struct err *err);

/* Of a file. Returns 0, or -1 and ERR_DATA or ERR_CONFIG. */
int flat_job_read(struct flat_job *job, const char *path, struct arena *arena, struct err *err);

/* The value of a key, or NULL. */
const char *flat_job_find(const struct flat_job *job, const char *key);

/* A key whose values are not the same in all jobs. */
struct flat_job_difference {
    const char *key;
    const char **values; /* [n_jobs]; NULL where the job lacks the key */
};

/*
 * The keys that differ between jobs[n_jobs], in the order of the first job and then of the others,
 * in the arena. Returns how many.
 */
int flat_job_compare(struct flat_job_difference **differences, const struct flat_job *jobs,
                     int n_jobs, struct arena *arena);

#endif
