/*
 * sensitivity.h - how much a step of a plan depends on what: faster hardware, more memory, fewer
 * micro-batches, a slow rank
 *
 * Each is the whole prediction again with one thing changed; another layout is compiled again.
 */
#ifndef PLAN_SENSITIVITY_H
#define PLAN_SENSITIVITY_H

#include "plan/fit.h"
#include "plan/step_time.h"

#define SENSITIVITY_FASTER 1.1                /* each part, one at a time */
#define SENSITIVITY_SLOWER 1.1                /* times as long all ops of one rank take */
#define SENSITIVITY_MEMORY ((size_t)16 << 30) /* more of it */

/* What of a device is faster. */
enum device_part { PART_PRODUCTS, PART_MEMORY, PART_FAST_LINK, PART_NIC, N_DEVICE_PARTS };
/* "products", "memory", "fast link", "NICs" */
const char *device_part_name(enum device_part part);

/* Another layout. */
struct other_layout {
    const char *change; /* "train.micro_batch: 2", in the arena; NULL: there is none */
    int64_t ns;         /* a step */
    struct plan_fit fit;
};

struct sensitivity {
    int64_t faster_ns[N_DEVICE_PARTS]; /* a step, if this part is faster */
    int64_t slow_ns;                   /* if one rank of the busiest stage is slower */
    struct other_layout halved;        /* with half as many micro-batches, of twice the size */
    /* The fastest by one change (changes.h) of those that do not fit, but would with more memory;
     * change is NULL where none is faster than the plan, or the plan itself does not fit. */
    struct other_layout roomier;
};

/*
 * time: of this plan on this cluster. Texts are in the arena. The plan has a pool, whose threads
 * predict. Returns 0, or -1 and ERR_FAILED.
 */
int sensitivity_find(struct sensitivity *sensitivity, const struct plan *plan,
                     const struct cluster *cluster, const struct step_time *time,
                     struct arena *arena, struct err *err);

#endif
