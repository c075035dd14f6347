/*
 * search_job.h - the layout of a job whose keys leave it to a search
 */
#ifndef PLAN_SEARCH_JOB_H
#define PLAN_SEARCH_JOB_H

#include "plan/search.h"

/* Whether the job's layout is to be searched (parallel.mode). */
bool search_is_wanted(const struct job *job);

/*
 * Search what parallel.mode and the given keys leave open, and give the job the best layout;
 * parallel.mode is manual then. Where recompute is open it is auto: a run chooses again what each
 * layer keeps, and, with devices of the cluster's memory, finds what the search did. Where nothing
 * fits,
 * and the job leaves parallel.cp open, long sequences are divided over 2, 4, 8, ... ranks, as is
 * fastest. n_rows, pool: as search_request. The job is read, not resolved. Returns as
 * search_layouts; where nothing fits, -1 and ERR_CONFIG with the nearest.
 */
int search_job(struct search_result *result, struct job *job, int n_ranks, int n_rows,
               const struct cluster *cluster, struct kernels *kernels, struct pool *pool,
               struct arena *arena, struct err *err);

/* Append "tp 8, pp 1, dp 2, zero 1, recompute full". */
void search_print_degrees(const struct layout *layout, struct str *out);

#endif
