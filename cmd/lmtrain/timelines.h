/*
 * timelines.h - timelines of predicted steps, and of steps that a run traced
 */
#ifndef CMD_TIMELINES_H
#define CMD_TIMELINES_H

#include "config/cluster.h"
#include "plan/replica_programs.h"
#include "plan/timeline.h"

/* Ranks of a timeline that is made. */
struct timeline_list {
    struct timeline_rank *ranks;
    int n, capacity;
    struct replica_programs *replicas; /* programs of the ranks */
    struct arena *arena;
};

/* Add a rank, whose spans live as long as the list. */
void timelines_add(struct timeline_list *list, const struct timeline_rank *rank);

/*
 * Add a predicted step of the plan on the cluster: for each of these world ranks that of its
 * pipeline stage, and of its data-parallel rank if these have different numbers of micro-batches,
 * in their order; n_ranks 0: for the first rank of each stage (of the slowest data-parallel rank),
 * of at most TIMELINE_RANKS_MAX, with a warning that names them. Returns 0, or -1 and ERR_FAILED.
 */
int timelines_add_predicted(struct timeline_list *list, const struct plan *plan,
                            const struct cluster *cluster, const int *ranks, int n_ranks,
                            struct err *err);

/* Write them to a file; *order: what clocks make of it. Returns 0, or -1 and ERR_FAILED. */
int timelines_write(const struct timeline_list *list, const struct plan *plan, const char *title,
                    const char *path, struct timeline_order *order, struct err *err);

#endif
