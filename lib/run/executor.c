/*
 * executor.c - walk the actions of an entry
 *
 * What waits for what is order.h's; here it is done. A given op (a collective, a copy) goes to its
 * stream and the walk goes on; the op that uses one of its values next comes after it. Two ways:
 *
 *   host memory, or staged through it: the comm thread does given ops, this thread waits
 *     1. this thread     posts all_gather %7 (ticket 5), runs an op that does not touch %7
 *     2. the comm thread takes turns at ticket 5, between those of other streams
 *     3. this thread     comes to linear %7: worker_wait(5), then runs it
 *
 *   enqueued (GPUs with NCCL): queues wait for events, this thread for nothing
 *     1. compute queue   ..., event `given`
 *     2. stream's queue  waits for `given` and for `done` of users on other streams; all_gather; event `done`
 *     3. compute queue   waits for `done`; linear
 *   All of it is enqueued long before it is executed. An event holds its last recording: an op's next
 *   run records `given` again only behind the wait of (2), which is enqueued already.
 *
 * A host op beside a GPU is this thread's: it waits for the users of its operands and for all that
 * the compute queue was given, so that it comes after what an op of that queue would come after.
 *
 * Ranges (struct op_range): consecutive ops of a function that are run at once and of which only
 * the first waits for a given op. On a GPU a range runs op by op the first time, as libraries load
 * code at a first call; the second time it is captured; from then on it is one graph launch. Graphs
 * are kept by whether accumulators start at nothing (KERNELS_FIRST is an argument of kernels), for
 * each set of slots.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/num.h"
#include "run/one_by_one.h"
#include "run/run_impl.h"

size_t run_scratch_bytes(void *context, const struct op_shape *shape)
{
    const struct run_scratch *scratch = context;

    if (op_is_collective(shape->kind)) {
        enum mesh_axis axis = shape->attributes.axis;
        int size = mesh_size(&scratch->mesh, axis);

        if (scratch->fast && collective_may_be_fast(shape))
            return collective_scratch_bytes(shape, size, true);
        return collective_nodes_scratch_bytes(
            shape, size, mesh_node_members(&scratch->mesh, axis, scratch->node_ranks));
    }
    return scratch->kernels && op_has_kernel(shape->kind)
               ? kernels_scratch_bytes(scratch->kernels, shape)
               : 0;
}

/* What no value has been written to: not cells, nor what the host fills. */
static void poison_all(struct run *run)
{
    static const enum segment segments[] = { SEGMENT_STASH,      SEGMENT_SCRATCH,
                                             SEGMENT_COMM,       SEGMENT_LIBRARY,
                                             SEGMENT_HOST_STASH, SEGMENT_HOST_SCRATCH };

    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++)
        if (run->memory.segment[segments[i]])
            run->device->ops->fill(run->device, DEVICE_COMPUTE, run->memory.segment[segments[i]],
                                   0xff, run->program->segment_bytes[segments[i]]);
}

int run_create(struct run **out, const struct run_options *options, struct err *err)
{
    struct run *run = calloc(1, sizeof *run);

    if (!run)
        return err_set(err, ERR_DEVICE, "out of host memory");
    run->options = *options;
    run->program = options->program;
    run->progress = options->progress;
    run->device = options->kernels->device;
    run->enqueues = traffic_is_enqueued(run);
    run->is_one_by_one = one_by_one_is_wanted(run->device);
    CHECK(!options->fast || mesh_world_size(&run->program->mesh) == 1 ||
          (run->enqueues && comm_sums(options->comm)));
    CHECK(mesh_world_size(&run->program->mesh) == 1 || (options->comm && options->worker));
    run->worker = options->worker;
    run->owns_worker = !run->worker && copies_are_posted(run) && order_has_async(run->program);
    if (run->owns_worker && copies_start_worker(run, err) < 0) {
        run->owns_worker = run->worker != NULL;
        run_destroy(run);
        return -1;
    }
    if (!device_is_host(run->device) && program_has_host_ops(run->program)) {
        CHECK(options->pool);
        if (kernels_cpu_create(&run->host_kernels, options->pool, NULL, err) < 0) {
            run_destroy(run);
            return -1;
        }
    }
    /* Groups first: what only one rank may lack must not keep the others waiting for it. */
    if (run_make_groups(run, err) < 0 ||
        run_memory_create(&run->memory, run->device, run->program, options->file_folder,
                          options->poison, err) < 0 ||
        copies_create(run, err) < 0 || transfer_create(run, err) < 0 || resolve(run, err) < 0 ||
        traffic_create(run, err) < 0) {
        run_destroy(run);
        return -1;
    }
    if (options->poison)
        poison_all(run);
    *out = run;
    return 0;
}

#define ALL_STREAMS ((1u << N_STREAMS) - 1)
static int run_drain(struct run *run, unsigned streams, struct err *err);

void run_destroy(struct run *run)
{
    struct err ignored;

    if (!run)
        return;
    /* After an error collectives may be under way, which use the memory. */
    run_drain(run, ALL_STREAMS, &ignored);
    run->device->ops->wait(run->device, DEVICE_COMPUTE, &ignored);
    op_hashes_close(run);
    own_time_release(run);
    traffic_release(run);
    resolve_release(run);
    transfer_release(run);
    copies_release(run);
    run_memory_release(&run->memory);
    if (run->owns_worker)
        worker_destroy(run->worker);
    kernels_destroy(run->host_kernels);
    arena_release(&run->arena);
    free(run);
}

void run_beat(struct run *run)
{
    progress_beat(run->progress);
}

/* Publish the op that is waited for; of a collective also the ranks along its axis, which must
 * begin it too. */
static void publish_wait(struct run *run, const struct resolved_op *op)
{
    struct progress_meeting meeting = { 0 };

    if (op_is_collective(op->call.op.kind)) {
        meeting = run->meetings[op->call.op.attributes.axis];
        meeting.position = op->position;
    }
    progress_wait(run->progress, op->text, &meeting);
}

static bool is_done(const struct run *run, const struct resolved_op *op)
{
    return op->is_posted ? worker_done(run->worker, op->ticket) : traffic_is_done(run, op);
}

/* Wait for an op that was given, NULL for none, under its own name. */
static int wait_for(struct run *run, const struct resolved_op *op, struct err *err)
{
    if (!op || is_done(run, op))
        return 0;
    publish_wait(run, op);
    own_time_leave(run);
    double begin = clock_seconds();
    int status =
        op->is_posted ? worker_wait(run->worker, op->ticket, err) : traffic_wait(run, op, err);
    double end = clock_seconds();
    own_time_return(run);
    run->wait_seconds += end - begin;
    /* What is enqueued behind kernels is waited for with them. */
    if (op->is_posted)
        run->exposed[op->call.op.kind][op->call.op.attributes.axis] += end - begin;
    run_trace_wait(run, op, begin, end);
    progress_publish(run->progress, op->text, 0);
    return status;
}

/* What is done on the compute queue from now on comes after the op: awaited here, or there. */
static int come_after(struct run *run, const struct resolved_op *op, struct err *err)
{
    if (!op || op->is_posted)
        return wait_for(run, op, err);
    own_time_leave(run);
    run_trace_begin(run, DEVICE_COMPUTE);
    traffic_before_compute(run, op);
    run_trace_finish_wait(run, op, DEVICE_COMPUTE);
    own_time_return(run);
    return 0;
}

/*
 * Come after the users of what the op touches. That values share memory (place.c) rests on this and
 * on list_after: program/order.h.
 */
static int wait_for_users(struct run *run, const struct resolved_op *op, struct err *err)
{
    for (int k = 0; k < op->n_users; k++)
        if (come_after(run, run->users[op->users[k]], err) < 0)
            return -1;
    return 0;
}

/* The same of a host op beside a GPU, which is no queue's. */
static int wait_on_host(struct run *run, const struct resolved_op *op, struct err *err)
{
    for (int k = 0; k < op->n_users; k++)
        if (wait_for(run, run->users[op->users[k]], err) < 0)
            return -1;
    return run->device->ops->wait(run->device, DEVICE_COMPUTE, err);
}

/* The users of what it touches come first; those of its own stream do so anyway. */
static void list_after(struct run *run, struct resolved_op *op)
{
    struct stream_op *s = &op->stream_op;

    s->n_after = s->n_after_queued = 0;
    for (int k = 0; k < op->n_users; k++) {
        const struct resolved_op *user = run->users[op->users[k]];

        if (!user || user->stream == op->stream || is_done(run, user))
            continue;
        CHECK(s->n_after + s->n_after_queued < ORDER_MAX_AFTER);
        if (!user->is_posted) {
            s->after_queued[s->n_after_queued++] = user->stream_op.done;
            continue;
        }
        s->after[s->n_after++] = user->ticket;
    }
}

/* What LMTRAIN_FAULT says of the op. Where a micro-batch is computed again, only what lasts. */
static enum fault fault_of(const struct run *run, const struct resolved_op *op)
{
    const struct progress_slot *at = run->progress;
    return at ? fault_at_op(op->text, atomic_load_explicit(&at->step, memory_order_relaxed),
                            run->is_recheck)
              : FAULT_NONE;
}

/* A rank that ends or stands still from here on does so in the op, where the others meet it. */
static void enter(struct run *run, struct resolved_op *op)
{
    op->position = progress_advance(run->progress);
    progress_publish(run->progress, op->text, 0);
}

/* Post the op on the comm thread. Its stream_op is one struct for all of its runs, so the last
 * run must be done before `first` and `after` are overwritten. */
static int hand_over(struct run *run, struct resolved_op *op, int first, struct err *err)
{
    struct stream_op *s = &op->stream_op;

    if (op->ticket && wait_for(run, op, err) < 0)
        return -1;
    run_trace_done(run, op);
    list_after(run, op);
    s->ready_at = clock_seconds();
    s->first = first;
    enter(run, op);
    s->flips = fault_of(run, op) == FAULT_FLIP;
    if (s->given)
        run->device->ops->event_record(run->device, DEVICE_COMPUTE, s->given);
    op->ticket = worker_post(run->worker, (int)op->stream, stream_op_run, s);
    return 0;
}

/* No queue waits for the comm thread: what is enqueued behind its ops is so once they are done. */
static int wait_for_posted(struct run *run, const struct resolved_op *op, struct err *err)
{
    for (int k = 0; k < op->n_users; k++) {
        const struct resolved_op *user = run->users[op->users[k]];

        if (user && user->is_posted && wait_for(run, user, err) < 0)
            return -1;
    }
    return 0;
}

static int post(struct run *run, struct resolved_op *op, const struct op *source, int index,
                int first, struct err *err)
{
    if (op_hashes_captures(run, source) &&
        (wait_for_users(run, op, err) < 0 || op_hashes_capture(run, op, err) < 0))
        return -1;
    if (!op->is_posted) {
        if (wait_for_posted(run, op, err) < 0)
            return -1;
        op->stream_op.first = first;
        enter(run, op);
        if (traffic_enqueue(run, op, index, err) < 0)
            return -1;
    } else if (hand_over(run, op, first, err) < 0) {
        return -1;
    }
    run_trace_post(run, op, index);
    run->last_given[op->stream] = op;
    for (int k = 0; k < op->n_users; k++)
        run->users[op->users[k]] = op;
    return 0;
}

/* Alone on the device: events stand right around it. */
static int run_timed(struct run *run, struct resolved_op *op, int first, struct err *err)
{
    struct device *device = run->device;

    if (device_is_host(device) || op->is_on_host) {
        struct kernels *kernels = run_kernels_of(run, op);
        const struct pool *pool = kernels->pool;
        double cpu = run->is_timed ? pool_cpu_seconds(pool) : 0, begin = clock_seconds();

        kernels_run(kernels, &op->call, first);
        double end = clock_seconds();
        op->seconds += end - begin;
        op->cpu_seconds += run->is_timed ? pool_cpu_seconds(pool) - cpu : 0;
        return 0;
    }
    device->ops->event_record(device, DEVICE_COMPUTE, run->begin);
    kernels_run(run->options.kernels, &op->call, first);
    device->ops->event_record(device, DEVICE_COMPUTE, run->end);
    if (device->ops->wait(device, DEVICE_COMPUTE, err) < 0)
        return -1;
    op->seconds += device->ops->seconds(device, run->begin, run->end);
    return 0;
}

static int run_op(struct run *run, struct resolved_op *op, const struct op *source, int index,
                  int first, struct err *err)
{
    if (op->first == FIRST_NEVER)
        first = 0;
    first = first ? KERNELS_FIRST : op->always;
    if (op->is_async)
        return post(run, op, source, index, first, err);
    if (op->is_on_host ? wait_on_host(run, op, err) < 0
                       : op->n_users && wait_for_users(run, op, err) < 0)
        return -1;
    if (run->progress) {
        atomic_store_explicit(&run->progress->op, index, memory_order_relaxed);
        progress_advance(run->progress);
        progress_publish(run->progress, op->text, 0);
    }
    if (run->hashes || fault_watches_ops())
        return op_hashes_run(run, op, source, first, fault_of(run, op) == FAULT_FLIP, err);
    if (run->is_timed)
        return run_timed(run, op, first, err);
    if (op->is_on_host) {
        double begin = clock_seconds();

        kernels_run(run->host_kernels, &op->call, first);
        run_trace_host(run, index, begin, clock_seconds());
        return 0;
    }
    run_trace_begin(run, DEVICE_COMPUTE);
    double begin = run->is_step_timed ? clock_seconds() : 0;
    kernels_run(run->options.kernels, &op->call, first);
    if (run->is_step_timed)
        run->op_times.seconds[op->call.op.kind] += clock_seconds() - begin;
    run_trace_finish(run, index, STREAM_COMPUTE, DEVICE_COMPUTE);
    return one_by_one_wait(run, op, DEVICE_COMPUTE, err);
}

/* A function's end: what follows comes after its streams' collectives. */
static int come_after_streams(struct run *run, unsigned streams, struct err *err)
{
    for (int stream = 0; stream < N_STREAMS; stream++)
        if ((streams >> stream & 1) && come_after(run, run->last_given[stream], err) < 0)
            return -1;
    return 0;
}

static int run_drain(struct run *run, unsigned streams, struct err *err)
{
    for (int stream = 0; stream < N_STREAMS; stream++)
        if ((streams >> stream & 1) && wait_for(run, run->last_given[stream], err) < 0)
            return -1;
    return 0;
}

/* What the range's ops do is recorded, and done by launching that. */
static int record(struct run *run, struct resolved_function *f, const struct op_range *range,
                  int first, struct device_graph **graph, struct err *err)
{
    struct device *device = run->device;

    if (device->ops->graph_begin(device, err) < 0)
        return -1;
    for (int i = range->begin; i < range->end; i++) {
        const struct resolved_op *op = &f->ops[i];
        int starts = first && op->first != FIRST_NEVER;

        kernels_run(run->options.kernels, &op->call, starts ? KERNELS_FIRST : op->always);
    }
    return device->ops->graph_end(device, graph, err);
}

/* The range that begins at this op; returns how many ops that were, or -1. */
static int run_range(struct run *run, struct resolved_function *f, struct op_range *range,
                     int first, struct err *err)
{
    struct resolved_op *op = &f->ops[range->begin];
    struct device_graph **graph = &range->graphs[first != 0];

    if (op->n_users && wait_for_users(run, op, err) < 0)
        return -1;
    if (!*graph && record(run, f, range, first, graph, err) < 0)
        return -1;
    if (run->progress) {
        atomic_store_explicit(&run->progress->op, range->begin, memory_order_relaxed);
        progress_advance(run->progress);
        progress_publish(run->progress, op->text, 0);
    }
    run->device->ops->graph_launch(run->device, *graph);
    return range->end - range->begin;
}

/*
 * The range that begins at op i, NULL if none does. The first time a range's ops run one by one:
 * what libraries load at a first call is not to be recorded.
 */
static struct op_range *range_at(struct resolved_function *f, int i, int first, int *next)
{
    if (*next >= f->n_ranges || f->ranges[*next].begin != i)
        return NULL;
    struct op_range *range = &f->ranges[(*next)++];
    if (range->has_run[first != 0])
        return range;
    range->has_run[first != 0] = true;
    return NULL;
}

static int run_function(struct run *run, const struct action *action, int first,
                        const struct run_hooks *hooks, struct err *err)
{
    int program = run->options.n_shorter && hooks && hooks->choose && action->micro_batch >= 0
                      ? hooks->choose(hooks->context, action->micro_batch)
                      : 0;
    struct resolved_function *f = resolved(run, program, action->function, action->micro_batch);
    const struct function *source =
        &(program ? &run->options.shorter[program - 1] : run->program)->functions[action->function];
    bool is_single = run->is_timed || run->trace || run->hashes || fault_watches_ops();

    for (int i = 0, next = 0; i < f->n_ops; i++) {
        struct op_range *range = is_single ? NULL : range_at(f, i, first, &next);

        if (range) {
            int n = run_range(run, f, range, first, err);

            if (n < 0)
                return -1;
            i += n - 1;
            continue;
        }
        if (run_op(run, &f->ops[i], &source->ops[i], i, first, err) < 0)
            return -1;
        for (int k = 0; k < f->ops[i].n_dead; k++)
            run->device->ops->fill(run->device, DEVICE_COMPUTE, f->ops[i].dead[k].data, 0xff,
                                   f->ops[i].dead[k].n_bytes);
    }
    return come_after_streams(run, f->drains, err);
}

/* The hook may write inputs only once no collective reads them any more. */
static int run_load(struct run *run, const struct action *action, const struct run_hooks *hooks,
                    struct err *err)
{
    for (int i = 0; i < run->order.n_inputs; i++) {
        int users[PROGRAM_MAX_PARTS];
        int n = order_users_of(&run->order, run->order.inputs[i], action->micro_batch, users);

        for (int k = 0; k < n; k++)
            if (come_after(run, run->users[users[k]], err) < 0)
                return -1;
    }
    /* A file system that hangs is to be seen as such. */
    progress_publish(run->progress, "reading data", 0);
    return hooks->load(hooks->context, action->micro_batch, err);
}

/* The hook may talk to all ranks, and no stream goes on while it does: some would wait for what it
 * keeps from coming. */
static int run_gate(struct run *run, const struct action *action, const struct run_hooks *hooks,
                    struct err *err)
{
    int (*hook)(void *context, struct err *err) = action->first ? hooks->decide : hooks->gate;

    if (!hook)
        return 0;
    if (run_drain(run, ALL_STREAMS, err) < 0)
        return -1;
    own_time_leave(run);
    int status = hook(hooks->context, err);
    own_time_return(run);
    return status;
}

int run_entry(struct run *run, enum entry_kind entry, int first, const struct run_hooks *hooks,
              struct err *err)
{
    const struct entry *e = &run->program->entries[entry];

    run->is_recheck = entry == ENTRY_RECHECK;
    if (transfer_check(run, err) < 0 || run_trace_start(run, err) < 0)
        return -1;
    if (entry_is_step(entry) && entry != ENTRY_RERUN) {
        memset(run->exposed, 0, sizeof run->exposed);
        run_choose_timed(run);
    }
    run->is_step_timed &= entry_is_step(entry);
    own_time_begin(run, entry);
    for (int i = 0; i < e->n_actions; i++) {
        const struct action *a = &e->actions[i];
        int status = 0;

        if (run->trace)
            run->trace->action = i;
        if (run->progress)
            atomic_store_explicit(&run->progress->micro_batch, a->micro_batch,
                                  memory_order_relaxed);
        run->hashes = op_hashes_of(run, a);
        if (a->kind == ACTION_RUN)
            status = run_function(run, a, entry_is_step(entry) ? a->first : first, hooks, err);
        else if (a->kind == ACTION_LOAD && hooks && hooks->load)
            status = run_load(run, a, hooks, err);
        else if (a->kind == ACTION_GATE && hooks)
            status = run_gate(run, a, hooks, err);
        if (status < 0)
            return -1;
    }
    run->hashes = NULL;
    if (run_drain(run, ALL_STREAMS, err) < 0)
        return -1;
    own_time_end(run);
    if (run_trace_end(run, err) < 0)
        return -1;
    return traffic_tell_times(run, err);
}

/* ---- what it took ---- */

void run_set_timed(struct run *run, int timed)
{
    CHECK(run->options.timed);
    run->is_timed = timed;
}

double run_op_seconds(const struct run *run, int function, int op)
{
    double seconds = 0;

    CHECK(run->options.timed);
    for (int i = 0; i < run->functions[function].n; i++) {
        const struct resolved_op *r = &run->functions[function].list[i].ops[op];

        seconds += r->is_async ? r->stream_op.seconds : r->seconds;
    }
    return seconds;
}

double run_op_cpu_seconds(const struct run *run, int function, int op)
{
    double seconds = 0;

    CHECK(run->options.timed);
    for (int i = 0; i < run->functions[function].n; i++)
        seconds += run->functions[function].list[i].ops[op].cpu_seconds;
    return seconds;
}

double run_wait_seconds(const struct run *run)
{
    return run->wait_seconds;
}

void run_clear_times(struct run *run)
{
    run->wait_seconds = 0;
    for (int f = 0; f < run->program->n_functions * (1 + run->options.n_shorter); f++)
        for (int k = 0; k < run->functions[f].n; k++) {
            struct resolved_function *r = &run->functions[f].list[k];

            for (int i = 0; i < r->n_ops; i++)
                r->ops[i].seconds = r->ops[i].cpu_seconds = r->ops[i].stream_op.seconds = 0;
        }
}
