/*
 * gpu_ranks.h - ranks that are threads, each with a comm, a group of all and an emulated GPU of its
 * own
 *
 * What runs in a rank's thread may not use cmocka: it CHECKs.
 */
#ifndef TEST_SUPPORT_GPU_RANKS_H
#define TEST_SUPPORT_GPU_RANKS_H

#include "comm/comm.h"
#include "kernels/kernels.h"

enum { GPU_RANKS_MAX = 8, GPU_RANK_QUEUE = DEVICE_TRAFFIC + 3 /* and seven more */ };

/* fast: enqueued, and NCCL adds. */
enum gpu_way { ON_HOST, STAGED, ENQUEUED, FAST, N_GPU_WAYS };
extern const char *const gpu_way_names[];

/* LMTRAIN_EMULATE_STREAMS: the orders in which queues may run. */
enum { GPU_N_ORDERS = 4 };
extern const char *const gpu_orders[GPU_N_ORDERS];
void gpu_set_order(int order);

struct gpu_ranks {
    int size;
    enum gpu_way way; /* ON_HOST: without GPUs; from ENQUEUED on with NCCL */
    struct comm_hub *hub;
};

/* What a rank's thread is given. */
struct gpu_rank_of {
    struct gpu_ranks *ranks;
    int rank;
    void *context;
};

/* One thread a rank, until all have returned; fn's argument is a struct gpu_rank_of. */
void gpu_ranks_run(struct gpu_ranks *ranks, void *(*fn)(void *), void *context);

struct gpu_rank {
    struct comm *comm;
    struct comm_group *group; /* all ranks */
    struct device *device;
    struct kernels *kernels; /* NULL on the host */
};

struct gpu_rank gpu_rank_open(const struct gpu_ranks *ranks, int rank);
void gpu_rank_close(struct gpu_rank *p); /* together */

void *gpu_rank_allocate(const struct gpu_rank *p, size_t n_bytes);
void *gpu_rank_allocate_pinned(const struct gpu_rank *p, size_t n_bytes);

/* On the compute queue. */
void gpu_rank_copy(const struct gpu_rank *p, void *to, const void *from, size_t n_bytes);

#endif
