/*
 * plan_subject.h - what `lmtrain plan` looks at: the job with its layout, and the cluster
 */
#ifndef CMD_PLAN_SUBJECT_H
#define CMD_PLAN_SUBJECT_H

#include "base/options.h"
#include "config/cluster.h"
#include "plan/micro_batch_choice.h"
#include "plan/search_job.h"

/* How the job is read. */
struct plan_reading {
    struct option_list sets;
    const char *device, *cluster; /* names or files; both NULL: the job's cluster, or no times */
    const char *layout;           /* "tp=8,pp=4"; NULL: the job's */
    int n_top;                    /* layouts of a search */
    bool to_suggest;              /* where no layout fits: find what would */
};

struct plan_subject {
    struct job job;         /* resolved */
    struct cluster cluster; /* where has_cluster */
    bool has_cluster;
    const char *ranks_note;      /* where the number of ranks is the cluster's; NULL: it is not */
    struct search_result search; /* n_rows 0: nothing was searched */
    struct micro_batch_sizes sizes; /* n 0: they are not auto */
    double within;
};

/*
 * Read the job, find the cluster, search the layout if the job leaves it to a search, and resolve
 * it for n_ranks (0: as many as the job says, else as its cluster has devices). Everything is in
 * the arena. Returns 0, or -1 and ERR_CONFIG.
 */
int plan_read_subject(struct plan_subject *subject, const struct plan_reading *reading,
                      const char *path, int n_ranks, struct arena *arena, struct err *err);

/*
 * Find the cluster (has_cluster false: none is named), search the layout of subject->job if it is
 * left to a search, or the sizes of its micro-batches if they are auto, and give that to the job,
 * which is read and not resolved. *n_ranks becomes what the layout has, where the search may leave
 * devices idle. Returns as above.
 */
int plan_find_layout(struct plan_subject *subject, const struct plan_reading *reading, int *n_ranks,
                     struct arena *arena, struct err *err);

#endif
