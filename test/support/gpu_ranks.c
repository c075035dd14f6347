/*
 * gpu_ranks.c - see the header
 */
#include "support/gpu_ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

const char *const gpu_way_names[] = { "on the host", "staged", "enqueued", "fast" };
const char *const gpu_orders[GPU_N_ORDERS] = { "eager", "lazy", "1", "2" };

void *gpu_rank_allocate(const struct gpu_rank *p, size_t n_bytes)
{
    struct err err;
    void *memory;

    CHECK(p->device->ops->allocate(p->device, n_bytes, &memory, &err) == 0);
    return memory;
}

void *gpu_rank_allocate_pinned(const struct gpu_rank *p, size_t n_bytes)
{
    struct err err;
    void *memory;

    CHECK(p->device->ops->allocate_pinned(p->device, n_bytes, &memory, &err) == 0);
    return memory;
}

void gpu_rank_copy(const struct gpu_rank *p, void *to, const void *from, size_t n_bytes)
{
    p->device->ops->copy(p->device, DEVICE_COMPUTE, to, from, n_bytes);
}

struct gpu_rank gpu_rank_open(const struct gpu_ranks *ranks, int rank)
{
    struct gpu_rank p = { .device = device_host() };
    int all[GPU_RANKS_MAX];
    struct err err;

    for (int r = 0; r < ranks->size; r++)
        all[r] = r;
    CHECK(comm_thread_create(&p.comm, ranks->hub, rank, &err) == 0);
    if (ranks->way != ON_HOST) {
        CHECK(device_cuda_open(&p.device, 0, &err) == 0);
        for (int i = GPU_RANK_QUEUE; i < GPU_RANK_QUEUE + 8; i++)
            CHECK(p.device->ops->open_queue(p.device, i, &err) == 0);
        CHECK(kernels_cuda_create(&p.kernels, p.device, &err) == 0);
    }
    if (ranks->way >= ENQUEUED)
        CHECK(comm_nccl_create(&p.comm, p.comm, p.device, &err) == 0);
    CHECK(comm_group_create(&p.group, p.comm, all, ranks->size, 0, &err) == 0);
    unsigned sums = ranks->way == FAST ? COMM_SUMS : 0;
    if (ranks->way >= ENQUEUED)
        CHECK(comm_connect(p.group, p.group, COMM_TOGETHER | COMM_TO_NEXT | COMM_TO_PREVIOUS | sums,
                           &err) == 0);
    return p;
}

void gpu_rank_close(struct gpu_rank *p)
{
    struct err err;

    CHECK(comm_barrier(p->group, &err) == 0);
    comm_destroy(p->comm);
    kernels_destroy(p->kernels);
    device_destroy(p->device);
}

void gpu_set_order(int order)
{
    setenv("LMTRAIN_EMULATE_STREAMS", gpu_orders[order], 1);
}

void gpu_ranks_run(struct gpu_ranks *ranks, void *(*fn)(void *), void *context)
{
    struct gpu_rank_of each[GPU_RANKS_MAX];
    pthread_t threads[GPU_RANKS_MAX];
    struct err err;

    assert_int_equal(comm_hub_create(&ranks->hub, ranks->size, &err), 0);
    for (int r = 0; r < ranks->size; r++) {
        each[r] = (struct gpu_rank_of){ ranks, r, context };
        assert_int_equal(pthread_create(&threads[r], NULL, fn, &each[r]), 0);
    }
    for (int r = 0; r < ranks->size; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(ranks->hub);
}
