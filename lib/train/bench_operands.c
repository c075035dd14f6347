/*
 * bench_operands.c - memory of exchanges between ranks, their groups, and their time
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "progress/progress.h"
#include "train/bench_impl.h"

#define AWAIT_MICROSECONDS 10000

/* Some per cent of the compute between two collectives of a small step; what it costs hardly
 * depends on it. */
#define LATE_SECONDS 300e-6

/* ---- groups ---- */

struct meeting {
    struct engine *engine;
    struct comm_group *group, *world;
    const int *ranks;
    int n_ranks, channel;
    unsigned uses;
    double number;
};

static bool is_in(const struct meeting *q)
{
    for (int i = 0; i < q->n_ranks; i++)
        if (q->ranks[i] == q->engine->rank.world_rank)
            return true;
    return false;
}

static int open_group(void *argument, struct err *err)
{
    struct meeting *q = argument;
    bool mine = is_in(q);

    if (mine &&
        comm_group_create(&q->group, q->engine->comm, q->ranks, q->n_ranks, q->channel, err) < 0)
        return -1;
    if (!q->world || !comm_enqueues(q->engine->comm))
        return 0;
    return comm_connect(q->world, q->group, mine ? q->uses : 0, err);
}

int bench_group_open(struct comm_group **group, struct engine *engine, struct comm_group *world,
                     const int *ranks, int n_ranks, int channel, unsigned uses, struct err *err)
{
    struct meeting q = { engine, NULL, world, ranks, n_ranks, channel, uses, 0 };
    int status = worker_call(engine->worker, open_group, &q, err);

    *group = q.group;
    return status;
}

static int disconnect(void *argument, struct err *err)
{
    (void)err;
    comm_disconnect(argument);
    return 0;
}

int bench_group_close(struct engine *engine, struct comm_group *group, struct err *err)
{
    return group ? worker_call(engine->worker, disconnect, group, err) : 0;
}

int bench_group_open_world(struct comm_group **world, struct engine *engine, struct err *err)
{
    int n = engine->rank.world_size, ranks[BENCH_RANKS_MAX];

    if (n > BENCH_RANKS_MAX)
        return err_set(err, ERR_CONFIG, "%d ranks are more than %d", n, BENCH_RANKS_MAX);
    for (int i = 0; i < n; i++)
        ranks[i] = i;
    return bench_group_open(world, engine, NULL, ranks, n, BENCH_CHANNEL_WORLD, 0, err);
}

static int meet(void *argument, struct err *err)
{
    return comm_barrier(((struct meeting *)argument)->group, err);
}

int bench_barrier(struct engine *engine, struct comm_group *group, struct err *err)
{
    struct meeting q = { .group = group };

    return worker_call(engine->worker, meet, &q, err);
}

int bench_await(struct engine *engine, struct comm_group *group, struct err *err)
{
    struct progress_slot *slot = progress_join(engine->rank.local_rank);
    struct meeting meeting = { .group = group };

    progress_phase(slot, "waiting for a rank that measures alone");
    uint64_t ticket = worker_post(engine->worker, 0, meet, &meeting);
    while (!worker_done(engine->worker, ticket)) {
        progress_beat(slot);
        usleep(AWAIT_MICROSECONDS);
    }
    return worker_wait(engine->worker, ticket, err);
}

static int find_largest(void *argument, struct err *err)
{
    struct meeting *q = argument;
    int64_t picos = (int64_t)(q->number * 1e12);
    int status = comm_agree(q->group, COMM_MAX, &picos, err);

    q->number = 1e-12 * (double)picos;
    return status;
}

int bench_largest(struct engine *engine, struct comm_group *group, double *number, struct err *err)
{
    struct meeting q = { .group = group, .number = *number };
    int status = worker_call(engine->worker, find_largest, &q, err);

    *number = q.number;
    return status;
}

/* ---- memory ---- */

static unsigned char *touched_memory(size_t n_bytes)
{
    unsigned char *memory = aligned_alloc(64, n_bytes);

    if (memory)
        memset(memory, 0, n_bytes);
    return memory;
}

static int allocate_on_host(struct bench_operands *o, size_t data_bytes, size_t scratch_bytes,
                            struct err *err)
{
    o->data[0] = touched_memory(data_bytes);
    o->data[1] = touched_memory(data_bytes);
    o->scratch = touched_memory(scratch_bytes);
    return o->data[0] && o->data[1] && o->scratch ? 0
                                                  : err_set(err, ERR_DEVICE, "out of host memory");
}

static int allocate_on_gpu(struct bench_operands *o, size_t data_bytes, size_t scratch_bytes,
                           struct err *err)
{
    struct device *device = o->engine->device;
    const struct device_ops *ops = device->ops;
    void *memory[5] = { NULL };
    int status = ops->open_queue(device, DEVICE_TRAFFIC, err);

    if (!status)
        status = ops->event_create(device, 0, &o->given, err);
    if (!status)
        status = ops->event_create(device, 0, &o->done, err);
    for (int i = 0; i < 2 && !status; i++)
        status = ops->allocate(device, data_bytes, &memory[i], err);
    if (!status && o->enqueues)
        status = ops->allocate(device, scratch_bytes, &memory[2], err);
    else if (!status)
        status = ops->allocate_pinned(device, scratch_bytes, &memory[2], err);
    for (int i = 3; i < 5 && !status && !o->enqueues; i++)
        status = ops->allocate_pinned(device, data_bytes, &memory[i], err);
    o->data[0] = memory[0];
    o->data[1] = memory[1];
    o->scratch = memory[2];
    o->staging[0] = memory[3];
    o->staging[1] = memory[4];
    return status;
}

int bench_operands_open(struct bench_operands *operands, struct engine *engine, size_t data_bytes,
                        size_t scratch_bytes, struct err *err)
{
    bool is_host = device_is_host(engine->device);

    *operands = (struct bench_operands){ .engine = engine,
                                         .enqueues = !is_host && comm_enqueues(engine->comm) };
    return is_host ? allocate_on_host(operands, data_bytes, scratch_bytes, err)
                   : allocate_on_gpu(operands, data_bytes, scratch_bytes, err);
}

void bench_operands_close(struct bench_operands *o)
{
    struct device *device = o->engine->device;
    const struct device_ops *ops = device->ops;

    if (device_is_host(device)) {
        free(o->data[0]);
        free(o->data[1]);
        free(o->scratch);
        return;
    }
    for (int i = 0; i < 2; i++) {
        ops->release(device, o->data[i]);
        if (o->staging[i])
            ops->release_pinned(device, o->staging[i]);
    }
    if (o->enqueues)
        ops->release(device, o->scratch);
    else if (o->scratch)
        ops->release_pinned(device, o->scratch);
    ops->event_destroy(device, o->given);
    ops->event_destroy(device, o->done);
}

struct collective bench_operands_exchange(const struct bench_operands *o,
                                          const struct op_shape *shape, struct comm_group *group)
{
    struct collective c = collective_of(shape, group, o->scratch);

    c.base.first = 1;
    c.in.data = o->data[0];
    c.out.data = o->data[1];
    if (device_is_host(o->engine->device))
        return c;
    c.kernels = o->engine->kernels;
    c.base.device = o->engine->device;
    c.base.queue = DEVICE_TRAFFIC;
    c.base.given = o->given;
    c.base.done = o->done;
    if (o->enqueues)
        return c;
    c.device_in = c.in;
    c.device_out = c.out;
    c.in.data = o->staging[0];
    c.out.data = o->staging[1];
    return c;
}

struct collective bench_operands_transfer(const struct bench_operands *operands,
                                          struct comm_group *pair, int from, size_t n_bytes)
{
    int64_t n = (int64_t)(n_bytes / sizeof(float));
    bool sends = comm_group_rank(pair) == from;
    struct op_shape shape = { .kind = sends ? OP_SEND : OP_RECEIVE };

    (sends ? shape.in : shape.out)[0] = (struct tensor){ NULL, 1, n, n, DTYPE_F32 };
    struct collective c = bench_operands_exchange(operands, &shape, pair);
    c.peer = sends ? 1 - from : from;
    return c;
}

/* ---- time ---- */

struct enqueued {
    struct stream_op *op;
    struct device *device;
};

static int enqueue(void *argument, struct err *err)
{
    const struct enqueued *e = argument;

    return e->op->mover->enqueue(e->op, err) < 0
               ? -1
               : e->device->ops->wait(e->device, e->op->queue, err);
}

static int run_to_end(const struct bench_operands *o, struct stream_op *op, struct err *err)
{
    struct enqueued enqueued = { op, o->engine->device };

    if (o->enqueues)
        return worker_call(o->engine->worker, enqueue, &enqueued, err);
    if (op->device)
        op->device->ops->event_record(op->device, DEVICE_COMPUTE, op->given);
    return worker_wait(o->engine->worker, worker_post(o->engine->worker, 1, stream_op_run, op),
                       err);
}

int bench_time_exchange(const struct bench_operands *o, struct collective *exchange,
                        struct comm_group *group, int late, double *seconds, struct err *err)
{
    double wait = late == BENCH_PROMPT ? 0 : LATE_SECONDS;

    if (bench_barrier(o->engine, group, err) < 0)
        return -1;
    double begin = clock_seconds();
    while (comm_group_rank(group) == late && clock_seconds() < begin + wait)
        ;
    if (run_to_end(o, &exchange->base, err) < 0)
        return -1;
    *seconds = clock_seconds() - begin - wait;
    *seconds = *seconds > 0 ? *seconds : 0;
    return bench_largest(o->engine, group, seconds, err);
}

int bench_time_exchanges(const struct bench_operands *o, struct collective *exchange,
                         struct comm_group *group, int n, double *seconds, struct err *err)
{
    if (bench_barrier(o->engine, group, err) < 0)
        return -1;
    double begin = clock_seconds();
    for (int i = 0; i < n; i++)
        if (run_to_end(o, &exchange->base, err) < 0)
            return -1;
    *seconds = (clock_seconds() - begin) / n;
    return bench_largest(o->engine, group, seconds, err);
}
