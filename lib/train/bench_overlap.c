/*
 * bench_overlap.c - compute beside exchanges
 *
 * Windows of equal length in which every rank computes matrix products, of which every other one
 * lies within a row of exchanges that the comm thread, or the device's queues, carry out meanwhile:
 * by how much products take longer, and, of small exchanges by the comm thread, these, too, since
 * it has no core of its own and its peer may just compute.
 */
#include <math.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/num.h"
#include "progress/progress.h"
#include "train/bench_impl.h"

#define EXCHANGE_BYTES ((size_t)1 << 20)
#define SMALL_BYTES 65536
#define WINDOW_SECONDS 0.02
#define START_SECONDS 1e-3
enum { N_WINDOWS = 10, N_ALONE = 5 };

static const enum op_kind kinds[] = { OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE };
#define N_KINDS (int)(sizeof kinds / sizeof *kinds)

/* A row of equal exchanges as one piece of work. */
struct exchange_row {
    struct bench_operands *operands;
    struct collective exchange;
    struct comm_group *group;
    int n, window;
    atomic_int n_left;
    int n_done[N_WINDOWS / 2]; /* at the end of each window that has a row */
    double seconds;            /* of one without compute beside */
    uint64_t ticket;
};

static int enqueue_row(struct exchange_row *row, struct err *err)
{
    struct device *device = row->operands->engine->device;

    for (; row->n_left > 0; row->n_left--)
        if (row->exchange.base.mover->enqueue(&row->exchange.base, err) < 0)
            return -1;
    return device->ops->wait(device, row->exchange.base.queue, err);
}

static int take_turn(void *argument, struct err *err)
{
    struct exchange_row *row = argument;

    if (row->operands->enqueues)
        return enqueue_row(row, err);
    int progress = stream_op_run(&row->exchange.base, err);
    if (progress != COMM_DONE)
        return progress;
    return --row->n_left > 0 ? COMM_MOVING : COMM_DONE;
}

/* Of the window that has just ended, if it had a row. */
static void count_done(struct exchange_row *row)
{
    if (row->window && row->window % 2 == 0)
        row->n_done[row->window / 2 - 1] = row->n - row->n_left;
}

/* The row of the last window has ended; in every other one it begins again. */
static int begin_window(void *context, double *start, struct err *err)
{
    struct exchange_row *row = context;
    struct engine *engine = row->operands->engine;
    struct device *device = engine->device;

    count_done(row);
    if (worker_wait(engine->worker, row->ticket, err) < 0 ||
        bench_barrier(engine, row->group, err) < 0)
        return -1;
    progress_beat(progress_join(engine->rank.local_rank));
    if (row->window++ % 2) {
        row->n_left = row->n;
        if (row->exchange.base.given)
            device->ops->event_record(device, DEVICE_COMPUTE, row->exchange.base.given);
        row->ticket = worker_post(engine->worker, 1, take_turn, row);
    }
    *start = clock_seconds() + START_SECONDS;
    return 0;
}

/* So many exchanges last for the window, as beside compute they take no less than alone. */
static int find_length(struct exchange_row *row, struct err *err)
{
    double samples[N_ALONE], seconds;

    for (int i = -1; i < N_ALONE; i++) {
        if (bench_time_exchange(row->operands, &row->exchange, row->group, BENCH_PROMPT, &seconds,
                                err))
            return -1;
        samples[max_int(0, i)] = seconds;
    }
    seconds = bench_median(samples, N_ALONE);
    row->seconds = seconds > 1e-6 ? seconds : 1e-6;
    row->n = 1 + (int)(1.5 * (WINDOW_SECONDS + START_SECONDS) / row->seconds);
    return 0;
}

/* Products alone and beside a row of exchanges of so many bytes: FLOPs of each window. */
static int run_windows(struct exchange_row *row, enum op_kind kind, size_t n_bytes,
                       enum dtype dtype, double flops[N_WINDOWS], struct err *err)
{
    struct engine *engine = row->operands->engine;
    struct engine_windows windows = { N_WINDOWS, WINDOW_SECONDS, begin_window, row };
    int64_t unit = comm_group_size(row->group);
    struct op_shape shape;

    bench_collective_shape(kind, (int64_t)(n_bytes / sizeof(float)) / unit * unit, (int)unit,
                           &shape);
    row->exchange = bench_operands_exchange(row->operands, &shape, row->group);
    if (find_length(row, err) || engine_window_flops(engine, dtype, &windows, flops, err))
        return -1;
    count_done(row);
    return worker_wait(engine->worker, row->ticket, err);
}

static int time_beside(struct bench_operands *operands, struct comm_group *group, enum op_kind kind,
                       enum dtype dtype, double *overlap, struct err *err)
{
    struct exchange_row row = { .operands = operands, .group = group };
    double flops[N_WINDOWS], alone[N_WINDOWS / 2], beside[N_WINDOWS / 2];

    if (run_windows(&row, kind, EXCHANGE_BYTES, dtype, flops, err))
        return -1;
    for (int i = 0; i < N_WINDOWS / 2; i++) {
        alone[i] = flops[2 * i];
        beside[i] = flops[2 * i + 1];
    }
    double least = bench_median(beside, N_WINDOWS / 2);
    *overlap = least > 0 ? bench_median(alone, N_WINDOWS / 2) / least - 1 : 1;
    *overlap = *overlap < 0 ? 0 : *overlap > 1 ? 1 : *overlap;
    return 0;
}

/* What a small exchange takes longer beside compute; 0 where queues of the device carry it out. */
static int time_small(struct bench_operands *operands, struct comm_group *group, enum dtype dtype,
                      double *late, struct err *err)
{
    struct exchange_row row = { .operands = operands, .group = group };
    double flops[N_WINDOWS], each[N_WINDOWS / 2];

    *late = 0;
    if (operands->enqueues)
        return 0;
    if (run_windows(&row, OP_ALL_GATHER, SMALL_BYTES, dtype, flops, err))
        return -1;
    for (int i = 0; i < N_WINDOWS / 2; i++) /* those before the window's products are not beside */
        each[i] = WINDOW_SECONDS / fmax(1, row.n_done[i] - START_SECONDS / row.seconds);
    *late = fmax(0, bench_median(each, N_WINDOWS / 2) - row.seconds);
    return 0;
}

/* The mean over kinds, all ranks in groups of `ranks` alike; of the group that is slowed most. And
 * what small ones take longer, into exchanges. */
static int time_kinds(struct bench_exchanges *x, struct bench_operands *operands,
                      struct comm_group *world, const int *ranks, int n_ranks, int channel,
                      enum dtype dtype, double *overlap, struct err *err)
{
    struct engine *engine = operands->engine;
    struct comm_group *group;
    double sum = 0, one;

    if (bench_group_open(&group, engine, world, ranks, n_ranks, channel, COMM_TOGETHER, err))
        return -1;
    for (int i = 0; i < N_KINDS; i++) {
        if (time_beside(operands, group, kinds[i], dtype, &one, err))
            return -1;
        sum += one / N_KINDS;
    }
    *overlap = sum;
    if (time_small(operands, group, dtype, &one, err) || bench_largest(engine, world, &one, err))
        return -1;
    x->beside_seconds = fmax(x->beside_seconds, one);
    return bench_largest(engine, world, overlap, err);
}

/* Groups of each node's ranks, then of one rank of each node. */
static int time_all(struct bench_exchanges *x, struct bench_operands *operands,
                    const struct bench_nodes *nodes, enum dtype dtype, struct err *err)
{
    struct engine *engine = operands->engine;
    int me = engine->rank.world_rank, r = nodes->per_node, ranks[BENCH_RANKS_MAX];
    struct comm_group *world;

    if (bench_group_open_world(&world, engine, err))
        return -1;
    for (int i = 0; i < r; i++)
        ranks[i] = me / r * r + i;
    if (r > 1 &&
        time_kinds(x, operands, world, ranks, r, BENCH_CHANNEL_OVERLAP, dtype, &x->overlap, err))
        return -1;
    for (int i = 0; i < nodes->n; i++)
        ranks[i] = i * r + me % r;
    if (nodes->n == 1)
        return 0;
    return time_kinds(x, operands, world, ranks, nodes->n, BENCH_CHANNEL_OVERLAP + 1, dtype,
                      &x->overlap_nic, err);
}

int bench_overlap(struct bench_exchanges *exchanges, struct engine *engine,
                  const struct bench_nodes *nodes, enum dtype dtype, struct err *err)
{
    struct bench_operands operands;

    exchanges->overlap = exchanges->overlap_nic = -1;
    exchanges->beside_seconds = 0;
    int status =
        bench_operands_open(&operands, engine, 2 * EXCHANGE_BYTES, 4 * EXCHANGE_BYTES, err);
    if (!status)
        status = time_all(exchanges, &operands, nodes, dtype, err);
    bench_operands_close(&operands);
    return status;
}
