/*
 * suggest_search.h - what would fit, when no layout of a search does
 */
#ifndef PLAN_SUGGEST_SEARCH_H
#define PLAN_SUGGEST_SEARCH_H

#include "plan/search_job.h"

/*
 * Append each change of a job with which a search finds a layout that fits, and the best of it:
 * more ranks (2 to 64 times, at most n_ranks_max), and, where the job does not leave it to the
 * search, recompute full, zero 3, a smaller micro-batch: "64 ranks (tp 8, pp 2, dp 4, zero 1,
 * recompute full: 61.2 GiB a rank), or recompute: full (...)"; where none does, more ranks with all
 * of that. Nothing where that does not fit, too. The job is read, not resolved.
 */
void suggest_search(const struct job *job, int n_ranks, int n_ranks_max,
                    const struct cluster *cluster, struct kernels *kernels, struct pool *pool,
                    struct str *out);

#endif
