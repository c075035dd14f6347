/*
 * bench_cluster.h - what this machine's ranks take for ops and collectives: the tables that
 * `lmtrain plan` prices with
 *
 * Ops are measured where they run, in steps of the job's own program on one rank, while the others
 * wait: the model as it is, and narrowed to what each of several tensor-parallel ranks has of it,
 * with whole and with half micro-batches; and a step of short ops, for the host's own time. Then
 * all ranks run steps of the first of these at the same time: what they take from each other is how
 * much longer these take;
 * ops that only tensor-parallel programs have; and exchanges: collectives, by the ranks on a node,
 * nodes and bytes, transfers, what it costs that ranks come one after the other, and how much
 * slower they compute meanwhile.
 */
#ifndef TRAIN_BENCH_CLUSTER_H
#define TRAIN_BENCH_CLUSTER_H

#include "plan/price_table.h"
#include "train/bench.h"

/* Of gathers over all ranks. */
struct bench_link {
    double bytes_per_second, latency_seconds;
};

struct bench_cluster {
    struct price_table table;
    struct bench_nodes nodes;
    struct machine_peak peak; /* of one rank alone */
    struct bench_host host;
    struct bench_links links;
    double jitter;          /* standard deviation of a step, as a share of it */
    struct bench_link fast; /* in a node; 0: one rank */
    struct bench_link net;  /* over all nodes */
    struct bench_exchanges exchanges;
    int64_t memory_bytes; /* of a rank's device, or its share of the node */
    int n_threads;        /* of a rank */
    int n_together;       /* steps of all ranks at the same time, of which contention is */
};

/*
 * Collective over the job's ranks, of which each node has as many; n_steps of each kind, after
 * warming up (0: as many as take a second, where a rank is alone). Rank 0 has the result, in the
 * arena, and says on standard error what is measured. Returns 0, or -1 as bench_run and
 * bench_find_nodes; if one rank fails others may wait for it, and the caller must abort the job.
 */
int bench_cluster(struct bench_cluster *cluster, const struct job *job, struct engine *engine,
                  int n_steps, struct arena *arena, struct err *err);

/* Append the cluster's file; tables: the name of the tables' file beside it. */
void bench_cluster_print(const struct bench_cluster *cluster, const struct engine *engine,
                         enum dtype dtype, const char *tables, struct str *out);

#endif
