/*
 * traffic.c - given ops whose values lie in a device's memory
 */
#include "run/traffic.h"

#include "base/num.h"
#include "comm/pause.h"
#include "run/run_impl.h"

_Static_assert((int)N_STREAMS <= (int)WORKER_STREAMS &&
                   (int)DEVICE_TRAFFIC + (int)N_STREAMS < (int)DEVICE_N_QUEUES,
               "each stream has a queue, and saving has one (weights/cells.c)");

#define ALIGNMENT ((size_t)256)

int traffic_is_enqueued(const struct run *run)
{
    const struct comm *comm = run->options.comm;

    if (device_is_host(run->device))
        return 0;
    return !comm || (comm_enqueues(comm) && run->options.kernels->backend->traffic);
}

/* Call fn for every op there is that is given, until one fails. */
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
    const struct collective *c = &op->collective;
    int size = comm_group_size(c->group);

    return c->nodes.node
               ? collective_nodes_scratch_bytes(&op->call.op, size, comm_group_size(c->nodes.node))
               : collective_scratch_bytes(&op->call.op, size, 0);
}

/* Copies are between the two memories anyway. */
static size_t staging_bytes(const struct resolved_op *op)
{
    if (!op_is_collective(op->call.op.kind))
        return 0;
    return align_up(collective_extent(&op->collective.in), ALIGNMENT) +
           align_up(collective_extent(&op->collective.choices), ALIGNMENT) +
           align_up(collective_extent(&op->collective.out), ALIGNMENT) + scratch_bytes(op);
}

/* What of an enqueued collective is the host's. */
static size_t table_bytes(const struct resolved_op *op)
{
    return op_is_collective(op->call.op.kind)
               ? collective_host_bytes(&op->call.op, comm_group_size(op->collective.group))
               : 0;
}

static int measure(struct run *run, struct resolved_op *op, struct err *err)
{
    size_t n_bytes = run->enqueues ? table_bytes(op) : staging_bytes(op);

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

/* In, choices, out, scratch, one behind the other. */
static void stage(struct run *run, struct resolved_op *op)
{
    struct collective *c = &op->collective;
    unsigned char *at = run->staging[op->stream];

    c->device_in = c->in;
    c->device_out = c->out;
    c->device_choices = c->choices;
    c->in.data = at;
    at += align_up(collective_extent(&c->in), ALIGNMENT);
    c->choices.data = at;
    at += align_up(collective_extent(&c->choices), ALIGNMENT);
    c->out.data = at;
    at += align_up(collective_extent(&c->out), ALIGNMENT);
    c->scratch = at;
}

static void give_collective(struct run *run, struct resolved_op *op)
{
    op->collective.kernels = run->options.kernels;
    op->collective.is_fast = run->options.fast && collective_may_be_fast(&op->call.op);
    if (!run->enqueues)
        stage(run, op);
    else if (table_bytes(op))
        op->collective.host_tables = run->staging[op->stream];
}

static int give(struct run *run, struct resolved_op *op, struct err *err)
{
    struct stream_op *s = &op->stream_op;
    struct device *device = run->device;

    s->device = device;
    s->queue = DEVICE_TRAFFIC + (int)op->stream;
    if (op_is_collective(op->call.op.kind))
        give_collective(run, op);
    if (device->ops->open_queue(device, s->queue, err) < 0)
        return -1;
    bool is_timed = run->enqueues && run->options.timed;
    if (device->ops->event_create(device, 0, &s->given, err) < 0 ||
        device->ops->event_create(device, is_timed, &s->done, err) < 0)
        return -1;
    return is_timed ? device->ops->event_create(device, 1, &s->begun, err) : 0;
}

int traffic_create(struct run *run, struct err *err)
{
    if (device_is_host(run->device))
        return 0;
    if (for_each(run, measure, err) < 0 || allocate(run, err) < 0)
        return -1;
    if (run->enqueues && run->options.comm)
        run->options.kernels->backend->traffic->load(run->options.kernels, DEVICE_COMPUTE);
    return for_each(run, give, err);
}

static int take_back(struct run *run, struct resolved_op *op, struct err *err)
{
    struct device *device = run->device;

    (void)err;
    if (!op->stream_op.device)
        return 0;
    device->ops->event_destroy(device, op->stream_op.given);
    device->ops->event_destroy(device, op->stream_op.done);
    device->ops->event_destroy(device, op->stream_op.begun);
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

/* How long the op's last run took, once it is done: events hold one. */
static int tell_time(struct run *run, struct resolved_op *op, struct err *err)
{
    struct stream_op *s = &op->stream_op;

    if (!s->is_untold)
        return 0;
    if (traffic_wait(run, op, err) < 0)
        return -1;
    s->seconds += run->device->ops->seconds(run->device, s->begun, s->done);
    s->is_untold = false;
    return 0;
}

int traffic_tell_times(struct run *run, struct err *err)
{
    return run->enqueues && run->is_timed ? for_each(run, tell_time, err) : 0;
}

int traffic_enqueue(struct run *run, struct resolved_op *op, int index, struct err *err)
{
    struct device *device = run->device;
    struct stream_op *s = &op->stream_op;

    if (tell_time(run, op, err) < 0)
        return -1;
    device->ops->event_record(device, DEVICE_COMPUTE, s->given);
    device->ops->event_wait(device, s->queue, s->given);
    for (int k = 0; k < op->n_users; k++) {
        const struct resolved_op *user = run->users[op->users[k]];

        if (user && user->stream != op->stream)
            device->ops->event_wait(device, s->queue, user->stream_op.done);
    }
    if (run->is_timed)
        device->ops->event_record(device, s->queue, s->begun);
    run_trace_begin(run, s->queue);
    if (s->mover->enqueue(s, err) < 0)
        return -1;
    run_trace_finish(run, index, op->stream, s->queue);
    device->ops->event_record(device, s->queue, s->done);
    s->is_untold = run->is_timed;
    return 0;
}

void traffic_before_compute(struct run *run, const struct resolved_op *op)
{
    run->device->ops->event_wait(run->device, DEVICE_COMPUTE, op->stream_op.done);
}

int traffic_is_done(const struct run *run, const struct resolved_op *op)
{
    return run->device->ops->event_done(run->device, op->stream_op.done);
}

static int check_peers(const struct run *run, struct err *err)
{
    return run->options.comm ? comm_check(run->options.comm, err) : 0;
}

int traffic_wait(struct run *run, const struct resolved_op *op, struct err *err)
{
    struct comm_pause pause;

    comm_pause_begin(&pause);
    while (!traffic_is_done(run, op)) {
        if (check_peers(run, err) < 0)
            return -1;
        comm_pause(&pause, COMM_WAITING);
    }
    return check_peers(run, err);
}
