/*
 * engine.h - what a rank computes and talks with: cores, threads, kernels, the comm thread
 */
#ifndef TRAIN_ENGINE_H
#define TRAIN_ENGINE_H

#include "comm/comm.h"
#include "comm/worker.h"
#include "kernels/kernels.h"
#include "launch/launch.h"

struct engine {
    struct launch_rank rank;
    struct pool *pool;
    struct kernels *kernels;
    const char *isa_note; /* "" or what instruction set is missing */
    struct comm *comm;    /* itself alone, else MPI */
    struct worker
        *worker; /* the thread that alone uses comm; NULL where nobody is to be waited for */
};

/*
 * n_threads 0: this rank's share of the cores. Collective (MPI starts). Returns 0, or -1 and
 * ERR_DEVICE or ERR_PEER; nothing is left then.
 */
int engine_open(struct engine *engine, const struct launch_rank *rank, int n_threads,
                struct err *err);
void engine_close(struct engine *engine);

/*
 * What this rank's GEMM reaches at best on a square of bf16 or fp32, in FLOP/s: MFU's denominator,
 * measured in some 30 ms.
 */
int engine_peak_flops(struct engine *engine, enum dtype dtype, double *flops, struct err *err);

/*
 * The same for y[rows x n] = x[rows x k] w[n x k]', the best of n_rounds; shapes that do not fit
 * the caches tell more of what large products reach.
 */
int engine_product_flops(struct engine *engine, enum dtype dtype, const int64_t shape[3],
                         int n_rounds, double *flops, struct err *err);

/* Memory that one of local_size ranks may take now: 1 where there is none, and 0 if the system does
 * not say. */
size_t engine_available_bytes(const struct engine *engine);

#endif
