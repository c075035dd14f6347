/*
 * neighbours_test.c - sends and receives by NCCL on queues: rings of ranks, calls that do not match
 *
 * Ranks are threads, each with an emulated GPU of its own (support/gpu_ranks.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <string.h>

#include <cmocka.h>

#include "support/gpu_ranks.h"

enum { N_RUNS = 3 };

enum { N_ELEMENTS = 1000 };

/* A rank sends to its next and previous, and receives from both, each on a queue of its own. */
struct exchange {
    enum op_kind kind;
    int step; /* to or from which neighbour */
};
static const struct exchange exchanges[] = {
    { OP_SEND, 1 }, { OP_SEND, -1 }, { OP_RECEIVE, -1 }, { OP_RECEIVE, 1 }
};

static float ring_number(int from, int to_next, int run, int i)
{
    return (float)(from * 100000 + to_next * 50000 + run * 1000 + i);
}

static void enqueue_exchange(const struct gpu_rank *p, int rank, int size, int k, void *memory)
{
    const struct exchange *e = &exchanges[k];
    struct comm_call call = { e->kind == OP_SEND ? COMM_SEND : COMM_RECEIVE, memory, memory,
                              N_ELEMENTS * sizeof(float), (rank + e->step + size) % size };
    struct err err;

    CHECK(comm_enqueue(p->group, &call, DEVICE_TRAFFIC + 5 + k, &err) == 0);
}

static void *ring_rank(void *argument)
{
    struct gpu_rank_of *me = argument;
    const struct gpu_ranks *ranks = me->ranks;
    struct gpu_rank p = gpu_rank_open(ranks, me->rank);
    size_t n_bytes = N_ELEMENTS * sizeof(float);
    float *host = gpu_rank_allocate_pinned(&p, 4 * n_bytes);
    struct device_event *events[5];
    char *there = gpu_rank_allocate(&p, 4 * n_bytes);
    struct err err;

    for (int k = 0; k < 5; k++)
        CHECK(p.device->ops->event_create(p.device, 0, &events[k], &err) == 0);
    for (int run = 0; run < N_RUNS; run++) {
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < N_ELEMENTS; i++)
                host[k * N_ELEMENTS + i] = ring_number(me->rank, k == 0, run, i);
        gpu_rank_copy(&p, there, host, 2 * n_bytes);
        p.device->ops->event_record(p.device, DEVICE_COMPUTE, events[4]);
        for (int k = 0; k < 4; k++) {
            p.device->ops->event_wait(p.device, DEVICE_TRAFFIC + 5 + k, events[4]);
            enqueue_exchange(&p, me->rank, ranks->size, k, there + (size_t)k * n_bytes);
            p.device->ops->event_record(p.device, DEVICE_TRAFFIC + 5 + k, events[k]);
            p.device->ops->event_wait(p.device, DEVICE_COMPUTE, events[k]);
        }
        gpu_rank_copy(&p, host, there, 4 * n_bytes);
        CHECK(p.device->ops->wait(p.device, DEVICE_COMPUTE, &err) == 0);
        for (int k = 2; k < 4; k++)
            for (int i = 0; i < N_ELEMENTS; i++)
                CHECK(host[k * N_ELEMENTS + i] ==
                      ring_number((me->rank + exchanges[k].step + ranks->size) % ranks->size,
                                  k == 2, run, i));
    }
    CHECK(comm_check(p.comm, &err) == 0);
    for (int k = 0; k < 5; k++)
        p.device->ops->event_destroy(p.device, events[k]);
    p.device->ops->release(p.device, there);
    p.device->ops->release_pinned(p.device, host);
    gpu_rank_close(&p);
    return NULL;
}

/* No send waits for another's receive that is behind it. Of two ranks next and previous are one. */
static void ring(void **state)
{
    static const int sizes[] = { 3, 4, 8 };

    (void)state;
    for (int s = 0; s < 3; s++)
        for (int i = 0; i < GPU_N_ORDERS; i++) {
            struct gpu_ranks ranks = { .size = sizes[s], .way = ENQUEUED };

            gpu_set_order(i);
            gpu_ranks_run(&ranks, ring_rank, NULL);
        }
}

/* Unequal calls: who comes second is told at once, the first when he asks how it goes. */
static void *unequal_rank(void *argument)
{
    struct gpu_rank_of *me = argument;
    struct gpu_rank p = gpu_rank_open(me->ranks, me->rank);
    void *memory = gpu_rank_allocate(&p, 64);
    struct comm_call call = { COMM_ALL_GATHER, memory, memory, me->rank ? 16 : 8, 0 };
    struct err err = { .code = ERR_NONE };

    int status = comm_enqueue(p.group, &call, GPU_RANK_QUEUE, &err);
    CHECK(comm_barrier(p.group, &err) == 0);
    CHECK(comm_check(p.comm, &err) < 0);
    CHECK(err.code == ERR_PEER);
    CHECK(strstr(err.text, "mismatch"));
    /* It was given up: nobody waits for the others any more. */
    CHECK(p.device->ops->wait(p.device, GPU_RANK_QUEUE, &err) == 0);
    p.device->ops->release(p.device, memory);
    gpu_rank_close(&p);
    return (void *)(intptr_t)status;
}

static void unequal_calls(void **state)
{
    struct gpu_ranks ranks = { .size = 2, .way = ENQUEUED };

    (void)state;
    gpu_ranks_run(&ranks, unequal_rank, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring),
        cmocka_unit_test(unequal_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
