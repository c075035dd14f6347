/*
 * suggest.h - what would fit, when a job's plan does not
 *
 * Planning is pure and takes milliseconds, so that alternatives are really planned and their sizes
 * said, instead of advice in general.
 */
#ifndef PLAN_SUGGEST_H
#define PLAN_SUGGEST_H

#include "base/str.h"
#include "config/job.h"
#include "kernels/kernels.h"

#define SUGGEST_MAX 8

/* Changes of a job that make it fit, each compiled. */
struct suggestions {
    struct {
        const char *change; /* "recompute: full", in the arena */
        size_t bytes;       /* that a rank then needs of its device */
        size_t host_bytes;  /* and of its host, for what leaves */
    } found[SUGGEST_MAX];
    int n;
    /* Where none does: the one that needs least; NULL: none needs less than the job. */
    const char *smallest;
    size_t smallest_bytes;
};

/*
 * Refuse a plan of `planned` bytes a rank where fewer are available (0: it is not known). Returns
 * 0, or -1 and ERR_DEVICE with the changes of the resolved job that bring it under that, each with
 * the bytes that it then takes: "recompute: full takes 1.2 GiB, or train.micro_batch: 2 takes
 * 900 MiB". Where none does, with what the smallest of them takes.
 */
int suggest_check(const struct job *job, struct kernels *kernels, size_t planned, size_t available,
                  struct err *err);

/*
 * The changes of the resolved job that bring a plan of `planned` bytes a rank under `available`:
 * sharding, recomputation, smaller micro-batches, parts of a long sequence for ranks that have
 * sequences of their own, gradients of bf16, split masters, alone, else together; up to n_ranks_max
 * (0: as many as the job has) the least ranks that do; and on GPUs recompute: auto, else
 * memory.offload: auto.
 */
void suggest_find(struct suggestions *suggestions, const struct job *job, struct kernels *kernels,
                  size_t planned, size_t available, int n_ranks_max, struct arena *arena);

/* Append "recompute: full needs 1.2 GiB, or train.micro_batch: 2 needs 900 MiB", or that none does.
 */
void suggest_print(const struct suggestions *suggestions, struct str *out);

#endif
