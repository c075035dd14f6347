/*
 * plan.h - what a resolved job takes: its programs compiled for every pipeline rank, and sums over
 * them
 *
 * Pure but for what kernels ask of the machine: nothing is allocated on a device, no rank is
 * started.
 */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H

#include "base/arena.h"
#include "config/job.h"
#include "device/pool.h"
#include "kernels/kernels.h"
#include "program/program.h"

struct memory_fit;

struct plan {
    const struct job *job;     /* the caller's, or with the choice of memory_fit.h, in the arena */
    struct memory_fit *memory; /* that choice; NULL: the job leaves none open */
    struct pool *pool;         /* NULL: kernels are the caller's */
    struct kernels *kernels;   /* those that would run here; a GPU's say sizes and need no GPU */
    struct program *programs;  /* [pp], in the arena */
    int shown;                 /* the pipeline rank whose memory and program are of interest */
    struct arena arena;
};

/*
 * Compile a resolved job. n_threads: of a rank where the job does not say (scratch grows with
 * them). rank: which is shown, or -1 for the pipeline rank with the highest memory use. Returns 0,
 * or -1 with err; plan_close in any case. The job outlives the plan.
 */
int plan_open(struct plan *plan, const struct job *job, int n_threads, int rank, struct err *err);
/*
 * The same for kernels of the caller's, which outlive the plan, to look at and not to run: programs
 * are not verified together. shown is the pipeline rank with the highest memory use.
 */
int plan_open_with(struct plan *plan, const struct job *job, struct kernels *kernels,
                   struct err *err);
void plan_close(struct plan *plan);

/* Bytes that the memory of the rank's device must have room for: on a CPU what lies in host memory,
 * too; what lies in a file never. */
size_t plan_needed_bytes(const struct program *program, const struct kernels *kernels);

/* FLOPs of a step, by all ranks. */
struct plan_flops {
    double executed;      /* by all ops of the programs, recomputation included */
    double model;         /* 6 N_matmul + 6 L d T a token: MFU's (model_spec_flops_per_token) */
    double megatron;      /* by the formula of Narayanan et al. 2021 */
    double newton_schulz; /* of those executed: muon's steps */
};
struct plan_flops plan_count_flops(const struct plan *plan);

/* What train.recheck_every adds to a step that it falls on. */
struct plan_recheck {
    double flops;        /* by all ranks */
    size_t hashed_bytes; /* results, by a rank of the shown program */
    size_t device_bytes; /* of its memory, in which another rank's update is computed again */
    size_t host_bytes;   /* for what that reads, on two ranks */
};
struct plan_recheck plan_count_recheck(const struct plan *plan);

/*
 * Bytes that the libraries of a GPU of device_bytes take beside the shown program's segments:
 * cuDNN's largest workspace; without the CUDA context (GPU_CONTEXT_BYTES).
 */
size_t plan_library_bytes(const struct plan *plan, size_t device_bytes);

#endif
