/*
 * step_time.h - how long a step of a planned job takes on a cluster, and what the time goes into
 *
 * Every op of the compiled programs has a price (price.h), the programs are simulated with these
 * (simulate.h), and what no op stands for is added: a constant of the host (data, scalars, logging)
 * and the wait for the slowest of many ranks, sigma sqrt(2 ln n) of a step.
 */
#ifndef PLAN_STEP_TIME_H
#define PLAN_STEP_TIME_H

#include "plan/plan.h"
#include "plan/price.h"
#include "plan/simulate.h"

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
};

/*
 * One step of the programs [pp] of a job with the prices of this cluster, without what is added, on
 * the slowest devices of each stage. watch: NULL, or of every op. shares: NULL, or as above.
 * Results in the arena. Returns 0, or -1 and ERR_FAILED.
 */
int step_time_simulate(struct simulated_step *simulated, const struct job *job,
                       const struct program *programs, const struct cluster *cluster,
                       const struct simulate_watch *watch, double shares[N_PRICE_SOURCES],
                       struct arena *arena, struct err *err);

/* Bytes of the residual stream that stages of the job send each other, and the longest transfer of
 * them between neighbours. */
int64_t step_time_boundary_bytes(const struct job *job);
int64_t step_time_boundary_ns(const struct job *job, const struct cluster *cluster);

/* cluster: with at least the job's ranks. Returns 0, or -1 and ERR_FAILED. */
int step_time_predict(struct step_time *time, const struct plan *plan,
                      const struct cluster *cluster, struct arena *arena, struct err *err);

#endif
