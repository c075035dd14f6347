/*
 * plan.h - a job compiled to be looked at
 */
#ifndef CMD_PLAN_H
#define CMD_PLAN_H

#include "kernels/kernels.h"
#include "train/trainer.h"

/* A compiled job, and the CPU's kernels that were asked for their scratch. */
struct plan {
    const struct job *job;
    struct pool *pool;
    struct kernels *kernels;
    struct program *programs; /* [pp], in the arena */
    int shown;                /* the pipeline rank whose memory and program are */
    struct arena arena;
};

/* The pipeline's ranks: layers, memory, work, and how long they wait for each other. */
void plan_print_stages(const struct plan *plan, struct str *out);

#endif
