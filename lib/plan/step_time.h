/*
 * step_time.h - how long a step of a planned job takes on a cluster, and what the time goes into
 *
 * Every op of the compiled programs has a price (price.h), the programs are simulated with these
 * (simulate.h), and what no op stands for is added: a constant of the host (data, scalars, logging)
 * and the wait for the slowest of many ranks, sigma sqrt(2 ln n) of a step.
 */
#ifndef PLAN_STEP_TIME_H
#define PLAN_STEP_TIME_H

#include "plan/price.h"
#include "plan/replica_programs.h"
#include "plan/simulate.h"

enum { ALL_DATA_RANKS = -1 };

struct step_time {
    int64_t ns; /* with both of: */
    int64_t constant_ns, jitter_ns;
    int64_t cpu_ns; /* of a cluster of CPUs: that the first rank's compute threads have a core */
    struct simulated_step simulated; /* in the arena; a rank for each pipeline rank */
    double tokens_per_second;
    /* Shares of the peak that products of the job's dtype have by the data sheet: the model's
     * FLOPs, and those that are executed. */
    double mfu, hfu;
    double shares[N_PRICE_SOURCES]; /* of the time of all ops: where its prices come from */
    int replica; /* the data-parallel rank that simulated is of, where they have different numbers
                    of micro-batches: the busiest; else ALL_DATA_RANKS */
};

/* A data-parallel rank, or, for ALL_DATA_RANKS, the slowest devices of each stage; and its programs
 * [pp]. */
struct step_replica {
    int data_rank;
    const struct program *programs;
};

/*
 * One step of the job with the prices of this cluster, without what is added, of data-parallel
 * ranks that meet in their sums; simulated has for each pipeline rank one rank of each of them, in
 * turn. watch: NULL, or of every op. shares: NULL, or as above. Results in the arena. Returns 0, or
 * -1 and ERR_FAILED.
 */
int step_time_simulate(struct simulated_step *simulated, const struct job *job,
                       const struct step_replica *replicas, int n_replicas,
                       const struct cluster *cluster, const struct simulate_watch *watch,
                       double shares[N_PRICE_SOURCES], struct arena *arena, struct err *err);

/*
 * The prices that a step of these programs [pp] is simulated with, where all ranks compute all the
 * time: [pp][function][op], in the arena.
 */
const struct simulated_op *const *const *step_time_prices(const struct job *job,
                                                          const struct program *programs,
                                                          const struct cluster *cluster,
                                                          struct arena *arena);

/*
 * The data-parallel ranks of a plan that differ in micro-batches or devices: replicas[dp], and of
 * each rank which of them it is like: of_data_rank[dp]. Where all have as many micro-batches, one:
 * ALL_DATA_RANKS. Returns how many, or -1 where a program cannot be compiled.
 */
int step_time_replicas(struct step_replica *replicas, int *of_data_rank,
                       struct replica_programs *programs, const struct cluster *cluster,
                       struct err *err);

/* Bytes of the residual stream that stages of the job send each other, and the longest transfer of
 * them between neighbours. */
int64_t step_time_boundary_bytes(const struct job *job);
int64_t step_time_boundary_ns(const struct job *job, const struct cluster *cluster);

/* cluster: with at least the job's ranks. Returns 0, or -1 and ERR_FAILED. */
int step_time_predict(struct step_time *time, const struct plan *plan,
                      const struct cluster *cluster, struct arena *arena, struct err *err);

#endif
