/*
 * engine.h - what a rank computes and talks with: cores, threads, kernels, the comm thread
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
    char gpu[32];          /* that GPU's PCI address; "": none, or not known */
    int n_sharing;         /* ranks that have this GPU, itself among them */
    struct pool *pool;     /* the host's threads */
    struct kernels *kernels;
    const char *isa_note;      /* "" or what instruction set is missing */
    struct comm_wireup wireup; /* how comm's ranks find each other without MPI */
    struct comm
        *comm; /* itself alone, else MPI or sockets, and NCCL with it where each rank has a GPU */
    struct worker *worker; /* the only thread that uses comm; NULL if there is no other rank */
};

struct engine_wish {
    int n_threads;          /* 0: this rank's share of the cores */
    enum job_device device; /* a GPU goes to the ranks of a machine by turns */
};

/*
 * Collective (ranks are connected). Returns 0, or -1 and ERR_DEVICE or ERR_PEER; nothing is left
 * then.
 */
int engine_open(struct engine *engine, const struct launch_rank *rank,
                const struct engine_wish *wish, struct err *err);
void engine_close(struct engine *engine);

/*
 * What the job asks for and is not to be had here becomes what there is: reductions: fast is fixed
 * where ranks do not talk by NCCL. Rank 0 says so.
 */
void engine_settle(const struct engine *engine, struct job *job);

/* A lone rank's part of MFU's denominator (peak.h) in FLOP/s: of a GPU that is known what its maker
 * states for dense products of the dtype (engine_stated_flops), else what engine_peak_flops
 * measures, in a quarter of its rounds: every run waits for it as it starts. */
int engine_mfu_flops(struct engine *engine, enum dtype dtype, double *flops, struct err *err);

/* Whether it takes products of thousands to tell what it can: GPUs, but for the emulated one. */
int engine_is_large(const struct engine *engine);

/* 0 where the device is not known. */
double engine_stated_flops(const struct engine *engine, enum dtype dtype);

/* What this rank's GEMM reaches at best on a square, in FLOP/s; measured in some 30 ms. */
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
 * What a square product keeps up, in FLOP/s: the same one for this long, without pauses, so that
 * power and heat count; `best` and `last` are of windows of some 50 ms. size: rows of the square.
 */
struct engine_sustained {
    int64_t size;
    double seconds, flops, best_flops, last_flops;
};
int engine_sustained_flops(struct engine *engine, enum dtype dtype, double seconds,
                           struct engine_sustained *sustained, struct err *err);

/* Memory of the device that one of the ranks that share it may take now: 1 where there is none, and
 * 0 if the system does not say. */
size_t engine_available_bytes(const struct engine *engine);

#endif
