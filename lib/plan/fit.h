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

struct plan_fit {
    size_t needed;    /* bytes, by the pipeline rank that has least room left */
    size_t available; /* bytes: a share of its device's memory, less its reserve */
    const char *device;
    int pp_rank; /* whose that is */
    bool fits;
};

/* share: of the memory; 0: PLAN_MEMORY_SHARE. */
size_t plan_available_bytes(const struct device_spec *device, double share);

/* share: as above. */
struct plan_fit plan_judge(const struct plan *plan, const struct cluster *cluster, double share);

#endif
