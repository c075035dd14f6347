/*
 * traffic.c - collectives of values in a device's memory
 */
#include "run/traffic.h"

#include "base/num.h"
#include "comm/pause.h"
#include "run/run_impl.h"

#define ALIGNMENT ((size_t)256)

int traffic_is_enqueued(const struct run *run)
{
    return run->options.comm && !device_is_host(run->device) && comm_enqueues(run->options.comm) &&
           run->options.kernels->backend->traffic;
}

/* Call fn for every collective there is, until one fails. */
static int for_each(struct run *run, int (*fn)(struct run *, struct resolved_op *, struct err *),
                    struct err *err)
{
    int n = run->program->n_functions * (1 + run->options.n_shorter);

    for (int f = 0; run->functions && f < n; f++)
        for (int m = 0; m < run->functions[f].n; m++) {
            struct resolved_function *r = &run->functions[f].list[m];

            for (int i = 0; i < r->n_ops; i++)
                if (r->ops[i].is_async && fn(run, &r->ops[i], err) < 0)
                    return -1;
        }
    return 0;
}

/* ---- what each is given ---- */

static size_t scratch_bytes(const struct resolved_op *op)
{
    return collective_scratch_bytes(&op->call.op, comm_group_size(op->collective.group), 0);
}

static size_t staging_bytes(const struct resolved_op *op)
{
    return align_up(collective_extent(&op->call.op.in[0]), ALIGNMENT) +
           align_up(collective_extent(&op->call.op.out[0]), ALIGNMENT) + scratch_bytes(op);
}

static int measure(struct run *run, struct resolved_op *op, struct err *err)
{
    size_t n_bytes = staging_bytes(op);

    (void)err;
    if (n_bytes > run->staging_bytes[op->stream])
        run->staging_bytes[op->stream] = n_bytes;
    return 0;
}

static int allocate(struct run *run, struct err *err)
{
    struct device *device = run->device;

    for (int s = 0; s < N_STREAMS; s++) {
        void *block;

        if (!run->staging_bytes[s])
            continue;
        if (device->ops->allocate_pinned(device, run->staging_bytes[s], &block, err) < 0)
            return err_add(err, "host memory for collectives");
        run->staging[s] = block;
    }
    return 0;
}

/* In, out, scratch, one behind the other. */
static void stage(struct run *run, struct resolved_op *op)
{
    struct collective *c = &op->collective;
    unsigned char *at = run->staging[op->stream];

    c->device_in = c->in;
    c->device_out = c->out;
    c->in.data = at;
    at += align_up(collective_extent(&c->in), ALIGNMENT);
    c->out.data = at;
    at += align_up(collective_extent(&c->out), ALIGNMENT);
    c->scratch = at;
}

static int give(struct run *run, struct resolved_op *op, struct err *err)
{
    struct collective *c = &op->collective;
    struct device *device = run->device;

    CHECK(DEVICE_TRAFFIC + (int)op->stream < DEVICE_N_QUEUES);
    c->kernels = run->options.kernels;
    c->queue = DEVICE_TRAFFIC + (int)op->stream;
    c->is_fast = run->options.fast && collective_may_be_fast(&op->call.op);
    if (device->ops->open_queue(device, c->queue, err) < 0)
        return -1;
    if (!run->enqueues)
        stage(run, op);
    int is_timed = run->enqueues && run->options.timed;
    if (device->ops->mark_create(device, 0, &c->given, err) < 0 ||
        device->ops->mark_create(device, is_timed, &c->done, err) < 0)
        return -1;
    return is_timed ? device->ops->mark_create(device, 1, &c->begun, err) : 0;
}

int traffic_create(struct run *run, struct err *err)
{
    if (device_is_host(run->device))
        return 0;
    if (!run->enqueues && (for_each(run, measure, err) < 0 || allocate(run, err) < 0))
        return -1;
    if (run->enqueues)
        run->options.kernels->backend->traffic->load(run->options.kernels, DEVICE_COMPUTE);
    return for_each(run, give, err);
}

static int take_back(struct run *run, struct resolved_op *op, struct err *err)
{
    struct device *device = run->device;

    (void)err;
    if (!op->collective.kernels)
        return 0;
    device->ops->mark_destroy(device, op->collective.given);
    device->ops->mark_destroy(device, op->collective.done);
    device->ops->mark_destroy(device, op->collective.begun);
    return 0;
}

void traffic_release(struct run *run)
{
    struct device *device = run->device;

    if (device_is_host(device))
        return;
    for_each(run, take_back, NULL);
    for (int s = 0; s < N_STREAMS; s++)
        if (run->staging[s])
            device->ops->release_pinned(device, run->staging[s]);
}

/* ---- on queues ---- */

/* How long the op's last run took, once it is done: marks hold one. */
static int tell_time(struct run *run, struct resolved_op *op, struct err *err)
{
    struct collective *c = &op->collective;

    if (!c->is_untold)
        return 0;
    if (traffic_wait(run, op, err) < 0)
        return -1;
    c->seconds += run->device->ops->seconds(run->device, c->begun, c->done);
    c->is_untold = 0;
    return 0;
}

int traffic_tell_times(struct run *run, struct err *err)
{
    return run->enqueues && run->is_timed ? for_each(run, tell_time, err) : 0;
}

int traffic_enqueue(struct run *run, struct resolved_op *op, struct err *err)
{
    struct device *device = run->device;
    struct collective *c = &op->collective;

    if (tell_time(run, op, err) < 0)
        return -1;
    device->ops->mark(device, DEVICE_COMPUTE, c->given);
    device->ops->wait_mark(device, c->queue, c->given);
    for (int k = 0; k < op->n_users; k++) {
        const struct resolved_op *user = run->users[op->users[k]];

        if (user && user->stream != op->stream)
            device->ops->wait_mark(device, c->queue, user->collective.done);
    }
    if (run->is_timed)
        device->ops->mark(device, c->queue, c->begun);
    if (collective_enqueue(c, err) < 0)
        return -1;
    device->ops->mark(device, c->queue, c->done);
    c->is_untold = run->is_timed;
    return 0;
}

void traffic_before_compute(struct run *run, const struct resolved_op *op)
{
    run->device->ops->wait_mark(run->device, DEVICE_COMPUTE, op->collective.done);
}

int traffic_is_done(const struct run *run, const struct resolved_op *op)
{
    return run->device->ops->mark_done(run->device, op->collective.done);
}

int traffic_wait(struct run *run, const struct resolved_op *op, struct err *err)
{
    struct comm_pause pause;

    comm_pause_begin(&pause);
    while (!traffic_is_done(run, op)) {
        if (comm_check(run->options.comm, err) < 0)
            return -1;
        comm_pause(&pause, COMM_WAITING);
    }
    return comm_check(run->options.comm, err);
}
