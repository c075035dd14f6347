/*
 * bench_collectives.c - the executor's collectives by size and number of ranks
 *
 * Everything runs in one visit to the comm thread. Each round begins with a barrier of all who take
 * part and ends, for the clock, when the slowest is done; the barrier's own time is not counted. On
 * GPUs operands lie in their memory, and collectives are enqueued or staged, as run has them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "comm/pause.h"
#include "progress/progress.h"
#include "run/collective.h"
#include "train/bench_impl.h"

#define FIRST_CHANNEL (N_AXES + 1) /* after those of the axes and the trainer's */
#define LEAST_BYTES 4096
#define N_RANKS_MAX 4096

static const enum op_kind kinds[] = { OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE,
                                      OP_ALL_REDUCE_SCALAR };
#define N_KINDS (int)(sizeof kinds / sizeof *kinds)

struct collective_benchmark {
    struct engine *engine;
    int n_rounds;
    struct bench_collective *list;
    int n;
    double *samples;           /* [n_rounds] */
    unsigned char *operand[2]; /* in, out */
    unsigned char *scratch;
    /* On a GPU: */
    int enqueues;
    unsigned char *staging[2]; /* pinned, of the operands where they are staged; scratch is, too */
    struct device_event *given, *done;
};

/* Bytes that a rank's link carries: NCCL's "bus bandwidth" of the same collective. */
static double bus_bytes(const struct bench_collective *c)
{
    double share = (double)(c->n_ranks - 1) / c->n_ranks;

    int sums_for_all = c->kind == OP_ALL_REDUCE || c->kind == OP_ALL_REDUCE_SCALAR;

    return (sums_for_all ? 2 : 1) * share * (double)c->n_bytes;
}

/* The operands of an entry, without their memory. */
static void shape_of(const struct bench_collective *b, struct op_shape *shape)
{
    int64_t n = (int64_t)(b->n_bytes / sizeof(float)), n_own = n / b->n_ranks;
    struct tensor whole = { NULL, 1, n, n, DTYPE_F32 };
    struct tensor own = { NULL, 1, n_own, n_own, DTYPE_F32 };
    struct tensor scalars = { NULL, 1, n / 2, n / 2, DTYPE_F64 };

    *shape = (struct op_shape){ .kind = b->kind };
    shape->in[0] = b->kind == OP_ALL_REDUCE_SCALAR ? scalars
                   : b->kind == OP_ALL_GATHER      ? own
                                                   : whole;
    shape->out[0] = b->kind == OP_ALL_REDUCE_SCALAR ? scalars
                    : b->kind == OP_REDUCE_SCATTER  ? own
                                                    : whole;
}

/* As the worker does it, with nothing else to do meanwhile; or given to the queue, and waited
 * for. */
static int run_to_end(const struct collective_benchmark *r, struct stream_op *op, struct err *err)
{
    struct device *device = r->engine->device;
    struct comm_pause pause;
    int progress;

    if (r->enqueues)
        return op->mover->enqueue(op, err) < 0 ? -1 : device->ops->wait(device, op->queue, err);
    if (op->device)
        device->ops->event_record(device, DEVICE_COMPUTE, op->given);
    comm_pause_begin(&pause);
    while ((progress = stream_op_run(op, err)) > COMM_DONE)
        comm_pause(&pause, progress);
    return progress;
}

/* Where a GPU's operands are, and what they are moved by. */
static void give(const struct collective_benchmark *r, struct collective *c)
{
    if (device_is_host(r->engine->device))
        return;
    c->kernels = r->engine->kernels;
    c->base.device = r->engine->device;
    c->base.queue = DEVICE_TRAFFIC;
    c->base.given = r->given;
    c->base.done = r->done;
    if (r->enqueues)
        return;
    c->device_in = c->in;
    c->device_out = c->out;
    c->in.data = r->staging[0];
    c->out.data = r->staging[1];
}

static int time_one(struct collective_benchmark *r, struct bench_collective *b,
                    struct comm_group *group, struct err *err)
{
    struct op_shape shape;

    shape_of(b, &shape);
    struct collective c = collective_of(&shape, group, r->scratch);
    c.base.first = 1;
    c.in.data = r->operand[0];
    c.out.data = r->operand[1];
    give(r, &c);
    for (int round = -1; round < r->n_rounds; round++) {
        if (comm_barrier(group, err) < 0)
            return -1;
        double begin = clock_seconds();
        if (run_to_end(r, &c.base, err) < 0)
            return -1;
        int64_t ns = (int64_t)((clock_seconds() - begin) * 1e9);
        if (comm_agree(group, COMM_MAX, &ns, err) < 0)
            return -1;
        if (round >= 0)
            r->samples[round] = 1e-9 * (double)ns;
    }
    b->seconds = bench_median(r->samples, r->n_rounds);
    b->best_seconds = r->samples[0];
    b->bus_bytes_per_second = bus_bytes(b) / b->best_seconds;
    return 0;
}

/* Make the group of the first n_ranks ranks: NULL on the others, which it is connected with,
 * too. */
static int open_group(struct collective_benchmark *r, struct comm_group *world, int n_ranks,
                      int channel, struct comm_group **group, struct err *err)
{
    int ranks[N_RANKS_MAX], is_in = r->engine->rank.world_rank < n_ranks;

    *group = NULL;
    for (int i = 0; i < n_ranks; i++)
        ranks[i] = i;
    if (is_in && comm_group_create(group, r->engine->comm, ranks, n_ranks, channel, err) < 0)
        return -1;
    return r->enqueues ? comm_connect(world, *group, is_in ? COMM_TOGETHER : 0, err) : 0;
}

/* The group measures all entries of its size; the other ranks wait at the next barrier. */
static int time_group(struct collective_benchmark *r, struct comm_group *group, struct err *err)
{
    int n_ranks = group ? comm_group_size(group) : 0;

    for (int i = 0; i < r->n && group; i++) {
        if (r->list[i].n_ranks != n_ranks)
            continue;
        if (time_one(r, &r->list[i], group, err) < 0)
            return -1;
        progress_beat(progress_join(r->engine->rank.local_rank));
    }
    return 0;
}

static int time_all(void *argument, struct err *err)
{
    struct collective_benchmark *r = argument;
    int world_size = r->engine->rank.world_size, all[N_RANKS_MAX], channel = FIRST_CHANNEL;
    struct comm_group *world, *group;

    for (int i = 0; i < world_size; i++)
        all[i] = i;
    if (comm_group_create(&world, r->engine->comm, all, world_size, channel++, err) < 0)
        return -1;
    for (int n_ranks = 2; n_ranks < 2 * world_size; n_ranks *= 2) {
        if (open_group(r, world, min_int(n_ranks, world_size), channel++, &group, err) < 0 ||
            time_group(r, group, err) < 0 || comm_barrier(world, err) < 0)
            return -1;
    }
    return 0;
}

static void add_entries(struct bench_collective **list, int *n, int *capacity, int n_ranks,
                        size_t max_bytes, struct arena *arena)
{
    for (int k = 0; k < N_KINDS; k++) {
        /* Sums of scalars are made of what is gathered: never large. */
        int is_scalar = kinds[k] == OP_ALL_REDUCE_SCALAR;
        size_t most = is_scalar ? LEAST_BYTES : max_bytes;
        size_t unit = is_scalar ? sizeof(double) : sizeof(double) * (size_t)n_ranks;

        for (size_t n_bytes = LEAST_BYTES; n_bytes <= most; n_bytes *= 4) {
            *list = arena_grow(arena, *list, sizeof **list, capacity, *n + 1);
            (*list)[(*n)++] = (struct bench_collective){ .kind = kinds[k],
                                                         .n_ranks = n_ranks,
                                                         .n_bytes = align_up(n_bytes, unit) };
        }
    }
}

int bench_list_collectives(int world_size, size_t max_bytes, struct bench_collective **list,
                           struct arena *arena)
{
    int n = 0, capacity = 0;

    *list = NULL;
    for (int n_ranks = 2; n_ranks < 2 * world_size; n_ranks *= 2)
        add_entries(list, &n, &capacity, min_int(n_ranks, world_size), max_bytes, arena);
    return n;
}

void bench_collective_memory(const struct bench_collective *list, int n, size_t *operand_bytes,
                             size_t *scratch_bytes)
{
    struct op_shape shape;

    *operand_bytes = *scratch_bytes = 64;
    for (int i = 0; i < n; i++) {
        shape_of(&list[i], &shape);
        size_t operand = align_up(list[i].n_bytes, 64);
        size_t scratch = align_up(collective_scratch_bytes(&shape, list[i].n_ranks, 0), 64);
        *operand_bytes = operand > *operand_bytes ? operand : *operand_bytes;
        *scratch_bytes = scratch > *scratch_bytes ? scratch : *scratch_bytes;
    }
}

static unsigned char *touched_memory(size_t n_bytes)
{
    unsigned char *memory = aligned_alloc(64, n_bytes);

    if (memory)
        memset(memory, 0, n_bytes);
    return memory;
}

static int allocate_on_host(struct collective_benchmark *r, size_t operand_bytes,
                            size_t scratch_bytes, struct err *err)
{
    r->operand[0] = touched_memory(operand_bytes);
    r->operand[1] = touched_memory(operand_bytes);
    r->scratch = touched_memory(scratch_bytes);
    return r->operand[0] && r->operand[1] && r->scratch
               ? 0
               : err_set(err, ERR_DEVICE, "out of host memory");
}

static int allocate_on_gpu(struct collective_benchmark *r, size_t operand_bytes,
                           size_t scratch_bytes, struct err *err)
{
    struct device *device = r->engine->device;
    const struct device_ops *ops = device->ops;
    void *memory[5] = { NULL };
    int status = ops->open_queue(device, DEVICE_TRAFFIC, err);

    if (!status)
        status = ops->event_create(device, 0, &r->given, err);
    if (!status)
        status = ops->event_create(device, 0, &r->done, err);
    for (int i = 0; i < 2 && !status; i++)
        status = ops->allocate(device, operand_bytes, &memory[i], err);
    if (!status && r->enqueues)
        status = ops->allocate(device, scratch_bytes, &memory[2], err);
    else if (!status)
        status = ops->allocate_pinned(device, scratch_bytes, &memory[2], err);
    for (int i = 3; i < 5 && !status && !r->enqueues; i++)
        status = ops->allocate_pinned(device, operand_bytes, &memory[i], err);
    r->operand[0] = memory[0];
    r->operand[1] = memory[1];
    r->scratch = memory[2];
    r->staging[0] = memory[3];
    r->staging[1] = memory[4];
    return status;
}

static void give_back(struct collective_benchmark *r)
{
    struct device *device = r->engine->device;
    const struct device_ops *ops = device->ops;

    if (device_is_host(device)) {
        free(r->operand[0]);
        free(r->operand[1]);
        free(r->scratch);
        return;
    }
    for (int i = 0; i < 2; i++) {
        ops->release(device, r->operand[i]);
        if (r->staging[i])
            ops->release_pinned(device, r->staging[i]);
    }
    if (r->enqueues)
        ops->release(device, r->scratch);
    else if (r->scratch)
        ops->release_pinned(device, r->scratch);
    ops->event_destroy(device, r->given);
    ops->event_destroy(device, r->done);
}

int bench_collectives(struct engine *engine, size_t max_bytes, int n_rounds,
                      struct bench_collective **list, int *n, struct arena *arena, struct err *err)
{
    struct collective_benchmark r = { .engine = engine, .n_rounds = n_rounds };
    int world_size = engine->rank.world_size, is_host = device_is_host(engine->device);
    size_t operand_bytes, scratch_bytes;

    CHECK(world_size >= 2);
    CHECK(n_rounds >= 1);
    if (world_size > N_RANKS_MAX)
        return err_set(err, ERR_CONFIG, "%d ranks are more than %d", world_size, N_RANKS_MAX);
    r.enqueues = !is_host && comm_enqueues(engine->comm);
    r.n = bench_list_collectives(world_size, max_bytes, &r.list, arena);
    r.samples = arena_array(arena, double, n_rounds);
    bench_collective_memory(r.list, r.n, &operand_bytes, &scratch_bytes);
    int status = is_host ? allocate_on_host(&r, operand_bytes, scratch_bytes, err)
                         : allocate_on_gpu(&r, operand_bytes, scratch_bytes, err);
    if (!status)
        status = worker_call(engine->worker, time_all, &r, err);
    give_back(&r);
    *list = r.list;
    *n = r.n;
    return status;
}
