/*
 * suggest_search.c - the search again, with one change
 */
#include "plan/suggest_search.h"

#include <stdio.h>

#include "base/str.h"
#include "plan/islands.h"

enum { N_TIMES_MAX = 64 };

struct another {
    const struct cluster *cluster;
    struct kernels *kernels;
    struct pool *pool;
    struct str *out;
    size_t begin; /* of what was appended */
};

/* Whether a layout of the job fits; if so it is appended after the change. */
static bool try_job(struct another *a, struct job job, int n_ranks, const char *change)
{
    struct arena arena = { 0 };
    struct search_result result;
    struct cluster cluster = *a->cluster;
    struct err ignored;
    char bytes[32];

    if (n_ranks > cluster_n_devices(&cluster))
        cluster = islands_view(a->cluster, 0, n_ranks, &arena);
    bool fits =
        !search_job(&result, &job, n_ranks, 1, &cluster, a->kernels, a->pool, &arena, &ignored);
    if (fits) {
        str_printf(a->out, "%s%s (", a->out->length > a->begin ? ", or " : "", change);
        search_print_degrees(&result.rows[0].layout, a->out);
        str_printf(a->out, ": %s a rank)", str_bytes(bytes, sizeof bytes, result.rows[0].bytes));
    }
    arena_release(&arena);
    return fits;
}

/* with: what the job has changed, "" or " with ...". */
static void try_ranks(struct another *a, const struct job *job, int n_ranks, int n_ranks_max,
                      const char *with)
{
    char text[96];

    for (int times = 2; times <= N_TIMES_MAX && n_ranks <= n_ranks_max / times; times *= 2) {
        snprintf(text, sizeof text, "%d ranks%s", n_ranks * times, with);
        if (try_job(a, *job, n_ranks * times, text))
            return;
    }
}

static void try_micro_batches(struct another *a, const struct job *job, int n_ranks)
{
    struct job changed = *job;
    char text[48];

    if (layout_is_open(job, LAYOUT_MICRO_BATCH))
        return;
    for (changed.train.micro_batch /= 2; changed.train.micro_batch >= 1;
         changed.train.micro_batch /= 2) {
        snprintf(text, sizeof text, "train.micro_batch: %d", changed.train.micro_batch);
        if (try_job(a, changed, n_ranks, text))
            return;
    }
}

void suggest_search(const struct job *job, int n_ranks, int n_ranks_max,
                    const struct cluster *cluster, struct kernels *kernels, struct pool *pool,
                    struct str *out)
{
    struct another a = { cluster, kernels, pool, out, out->length };
    struct job changed = *job;

    try_ranks(&a, job, n_ranks, n_ranks_max, "");
    if (!layout_is_open(job, LAYOUT_RECOMPUTE) && job->recompute != RECOMPUTE_FULL) {
        changed.recompute = RECOMPUTE_FULL;
        try_job(&a, changed, n_ranks, "recompute: full");
        changed = *job;
    }
    if (!layout_is_open(job, LAYOUT_ZERO) && job->parallel.zero < 3) {
        changed.parallel.zero = 3;
        try_job(&a, changed, n_ranks, "parallel.zero: 3");
    }
    try_micro_batches(&a, job, n_ranks);
    if (out->length > a.begin)
        return;
    changed = *job;
    changed.recompute = RECOMPUTE_FULL;
    changed.train.micro_batch = 1;
    try_ranks(&a, &changed, n_ranks, n_ranks_max, " with recompute: full, train.micro_batch: 1");
}
