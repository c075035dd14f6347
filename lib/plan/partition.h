/*
 * partition.h - a chain of layers cut into stages on a row of devices, exactly
 *
 * N layers, in order, go to stages on K devices, in order: a stage has layers begin .. end - 1 and
 * n neighbouring devices from `device` on, and takes a time that the caller says. Devices may be of
 * different kinds and the time of any form; a stage that is not possible (it does not fit) takes
 * PARTITION_NEVER.
 *
 * Two objectives, both by dynamic programming over (layers, devices) left, built from the last
 * stage so that a stage's time may depend on how many stages are behind it (what 1F1B keeps alive):
 *
 *   throughput  the slowest stage, O(K^2 N^2) for each number of stages; the pipelines of
 *               Tarnawski et al. 2020 (arXiv:2006.16423), section 5, for chains. With one device a
 *               stage, all used, there is one number, and O(K N^2)
 *   step        sum of all stages + (micro-batches - 1) * the slowest: one flush. The sum is
 *               minimised below each cap on the slowest, from the best throughput on, until no
 *               higher cap can win
 */
#ifndef PLAN_PARTITION_H
#define PLAN_PARTITION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

#define PARTITION_NEVER (INT64_MAX / 4)

struct partition_stage {
    int begin, end; /* layers */
    int device, n;  /* its first device, and how many it has */
};

struct partition_problem {
    int n_layers, n_devices;
    int most_per_stage;      /* devices of a stage */
    bool may_idle;           /* the last devices may be left out */
    bool is_monotone;        /* no stage takes less with one more layer: found faster */
    int64_t n_micro_batches; /* 0: throughput; else step */
    /* ns of a stage with n_behind stages behind it. Called often: O(1). */
    int64_t (*cost)(void *context, const struct partition_stage *stage, int n_behind);
    void *context;
};

struct partition {
    struct partition_stage *stages; /* [n], in the arena */
    int n;
    int64_t slowest, sum;
    int64_t objective; /* PARTITION_NEVER: there is no partition; then n is 0 */
};

void partition_find(struct partition *partition, const struct partition_problem *problem,
                    struct arena *arena);

#endif
