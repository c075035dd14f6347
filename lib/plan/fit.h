/*
 * fit.h - whether a planned job fits the memory of a device
 */
#ifndef PLAN_FIT_H
#define PLAN_FIT_H

#include "config/cluster.h"
#include "plan/plan.h"

/* Of a device's memory, what segments may take: the rest is for fragmentation. */
#define PLAN_MEMORY_SHARE 0.94

/* Of shorter sequences one fits a device if the model does: no other than these is divided over
 * ranks to fit. */
#define PLAN_LONG_SEQUENCE 16384

/* share: of the memory; 0: PLAN_MEMORY_SHARE. */
size_t plan_available_bytes(const struct device_spec *device, double share);

/* Of that what segments of the job in the device's memory may take: no more than
 * memory.device_bytes says. */
size_t plan_limit_bytes(const struct job *job, const struct device_spec *device, double share);

/* The same, by pipeline rank of the job, in the arena. NULL: what leaves a CPU's device stays in
 * its memory, so there is no limit but the job's. */
const int64_t *plan_limits(const struct job *job, const struct cluster *cluster, double share,
                           struct arena *arena);

struct plan_fit {
    size_t needed;    /* bytes, by the pipeline rank that has least room left */
    size_t available; /* bytes: a share of its device's memory, less its reserve */
    const char *device;
    int pp_rank; /* whose that is */
    bool fits;
};

/* share: as above. */
struct plan_fit plan_judge(const struct plan *plan, const struct cluster *cluster, double share);

#endif
