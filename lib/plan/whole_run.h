/*
 * whole_run.h - what all steps of a planned job take: time, work, energy, price, checkpoints
 *
 * A checkpoint is written while the next step's forward and backward run; that step's update waits
 * for it (train/state.c). It takes the longer of two: all ranks' bytes to storage, and a rank's
 * share of them over its link to the host. Nothing hides the last one.
 */
#ifndef PLAN_WHOLE_RUN_H
#define PLAN_WHOLE_RUN_H

#include "plan/plan.h"
#include "plan/step_time.h"

struct whole_run {
    int64_t n_steps; /* 0: known once the data is read; all other members but bytes are then 0 */
    double tokens, seconds, device_days;
    double model_flops, megatron_flops; /* as plan_flops, of all steps */
    /* What megatron_flops take at the peak that products of the job's dtype have by the data
     * sheets. */
    double device_days_at_peak;
    double kilowatt_hours, price; /* 0: not known of all devices */
    struct {
        int64_t n;
        double bytes; /* of one */
        /* 0: the rate of the cluster's storage is not known. Of one; what a step waits for it; and
         * its reading at a resume, by all ranks what they keep. */
        double save_seconds, stall_seconds, load_seconds;
    } checkpoints;
};

void whole_run_find(struct whole_run *run, const struct plan *plan, const struct cluster *cluster,
                    const struct step_time *time);

#endif
