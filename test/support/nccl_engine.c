/*
 * nccl_engine.c - see the header
 */
#include "support/nccl_engine.h"

#include "support/test_device.h"

struct joining {
    struct engine *engine;
    struct comm_hub *hub;
};

static int join(void *argument, struct err *err)
{
    struct joining *j = argument;
    struct engine *engine = j->engine;

    if (comm_thread_create(&engine->comm, j->hub, engine->rank.world_rank, err) < 0)
        return -1;
    return comm_nccl_create(&engine->comm, engine->comm, engine->device, err);
}

static int leave(void *argument, struct err *err)
{
    (void)err;
    comm_destroy(argument);
    return 0;
}

void nccl_engine_open(struct engine *engine, struct comm_hub *hub)
{
    struct joining joining = { engine, hub };
    struct err err;

    CHECK(pool_create(&engine->pool, 1, NULL, &err) == 0);
    CHECK(test_device_create(&engine->device, &engine->kernels, engine->pool, &err) == 0);
    CHECK(worker_create(&engine->worker, -1, &err) == 0);
    CHECK(worker_call(engine->worker, join, &joining, &err) == 0);
}

void nccl_engine_close(struct engine *engine)
{
    struct err err;

    CHECK(worker_call(engine->worker, leave, engine->comm, &err) == 0);
    worker_destroy(engine->worker);
    kernels_destroy(engine->kernels);
    device_destroy(engine->device);
    pool_destroy(engine->pool);
}
