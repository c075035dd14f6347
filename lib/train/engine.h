/*
 * engine.h - the resources of a rank: cores, threads, device, kernels, communication
 */
#ifndef TRAIN_ENGINE_H
#define TRAIN_ENGINE_H

#include "comm/comm.h"
#include "comm/worker.h"
#include "config/job.h"
#include "kernels/kernels.h"
#include "launch/launch.h"

struct engine {
    struct launch_rank rank;
    struct device *device; /* the host, or one of its GPUs */
    char gpu[32];          /* PCI address of that GPU; "": none, or unknown */
    int n_sharing;         /* number of ranks that share this GPU, this one included */
    struct pool *pool;     /* the host's threads */
    struct kernels *kernels;
    const char *isa_note;      /* "" or what instruction set is missing */
    struct comm_wireup wireup; /* how comm's ranks find each other without MPI */
    struct comm
        *comm; /* comm_self for one rank, else MPI or sockets, with NCCL if each rank has a GPU */
    struct worker *worker; /* the only thread that uses comm; NULL if there is no other rank */
};

struct engine_request {
    int n_threads;          /* 0: this rank's share of the cores */
    enum job_device device; /* GPUs are assigned round-robin to the ranks of a machine */
};

/*
 * Collective (ranks are connected). Returns 0, or -1 and ERR_DEVICE or ERR_PEER; nothing is left
 * then.
 */
int engine_open(struct engine *engine, const struct launch_rank *rank,
                const struct engine_request *name, struct err *err);
void engine_close(struct engine *engine);

/*
 * Replace settings of the job that are not available: reductions fast becomes fixed
 * without NCCL. Rank 0 logs it.
 */
void engine_settle(const struct engine *engine, struct job *job);

/*
 * Fill in job->node_ranks, by which sums go by node, where the ranks lie on several nodes of
 * equally many neighbours; else rank 0 logs why they do not. Collective. Returns 0, or -1 and
 * ERR_PEER.
 */
int engine_find_nodes(struct engine *engine, struct job *job, struct err *err);

/* One rank's contribution to the denominator of MFU (peak.h) in FLOP/s: for a known GPU the
 * vendor's dense peak of the dtype (engine_stated_flops), else measured by engine_peak_flops, with
 * a quarter of its rounds, because every run waits for it at its start. */
int engine_mfu_flops(struct engine *engine, enum dtype dtype, double *flops, struct err *err);

/* Whether peak measurements need matrices of thousands of rows: GPUs, except the emulated one. */
int engine_is_large(const struct engine *engine);

/* 0 for an unknown device. */
double engine_stated_flops(const struct engine *engine, enum dtype dtype);

/* Best measured speed of this rank's square GEMM, in FLOP/s; takes about 30 ms. */
int engine_peak_flops(struct engine *engine, enum dtype dtype, double *flops, struct err *err);

/*
 * FLOP done in each of n windows by products of engine_peak_flops' shape. agree sets when the next
 * window begins, on the clock of clock_seconds; what is not done at its end counts in part.
 */
struct engine_windows {
    int n;
    double seconds;
    int (*agree)(void *context, double *start, struct err *err);
    void *context;
};
int engine_window_flops(struct engine *engine, enum dtype dtype,
                        const struct engine_windows *windows, double *flops, struct err *err);

/*
 * The same for y[rows x n] = x[rows x k] w[n x k]', the best of n_rounds; shapes that do not fit
 * the caches tell more of what large products reach.
 */
int engine_product_flops(struct engine *engine, enum dtype dtype, const int64_t shape[3],
                         int n_rounds, double *flops, struct err *err);

/*
 * Sustained speed of a square matrix product, in FLOP/s: repeated for `seconds` without pauses, so
 * that power and thermal limits apply; `best` and `last` are windows of about 50 ms. size: rows of
 * the square.
 */
struct engine_sustained {
    int64_t size;
    double seconds, flops, best_flops, last_flops;
};
int engine_sustained_flops(struct engine *engine, enum dtype dtype, double seconds,
                           struct engine_sustained *sustained, struct err *err);

/* Device memory that one of the ranks that share it can allocate now: 1 if there is none,
 * 0 if unknown. */
size_t engine_available_bytes(const struct engine *engine);

#endif
