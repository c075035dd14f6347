/*
 * bench_transfers.c - messages between two ranks, and what it costs to come late
 *
 * A stage waits for another one's message for as long as that computes, so one of the two ranks is
 * late in each round.
 */
#include "base/num.h"
#include "progress/progress.h"
#include "train/bench_impl.h"

#define LEAST_BYTES 4096
#define LATE_BYTES 65536
#define TRANSFER_SECONDS 1.0 /* that the rounds of a size may take, */
#define ROUNDS_MIN 3         /* but for so many */

struct transfers {
    struct bench_exchanges *exchanges;
    struct engine *engine;
    struct bench_nodes nodes;
    struct bench_operands operands;
    struct comm_group *world;
    size_t max_bytes;
    int n_rounds, channel, capacity;
    double *samples; /* [2 * n_rounds] */
    struct arena *arena;
};

static int time_size(struct transfers *t, struct comm_group *pair, size_t n_bytes, double *seconds,
                     struct err *err)
{
    struct collective c = bench_operands_transfer(&t->operands, pair, 0, n_bytes);
    int n = t->n_rounds;

    for (int round = -1; round < n; round++) {
        double took;

        if (bench_time_exchange(&t->operands, &c, pair, round & 1, &took, err))
            return -1;
        if (round >= 0)
            t->samples[round] = took;
        else if (took * n > TRANSFER_SECONDS)
            n = min_int(n, max_int(ROUNDS_MIN, (int)(TRANSFER_SECONDS / took)));
    }
    progress_beat(progress_join(t->engine->rank.local_rank));
    *seconds = bench_median(t->samples, n);
    return 0;
}

static int time_sizes(struct transfers *t, struct comm_group *pair, bool is_across, struct err *err)
{
    struct bench_exchanges *x = t->exchanges;

    for (size_t n_bytes = LEAST_BYTES; n_bytes <= t->max_bytes; n_bytes *= 4) {
        struct bench_transfer transfer = { is_across, n_bytes, 0 };

        if (time_size(t, pair, n_bytes, &transfer.seconds, err))
            return -1;
        x->transfers = arena_grow(t->arena, x->transfers, sizeof *x->transfers, &t->capacity,
                                  x->n_transfers + 1);
        x->transfers[x->n_transfers++] = transfer;
    }
    return 0;
}

/* Between the world's first rank and that one; the others wait. */
static int time_pair(struct transfers *t, int other, bool is_across, struct err *err)
{
    const int ranks[2] = { 0, other };
    struct comm_group *pair;

    if (bench_group_open(&pair, t->engine, t->world, ranks, 2, t->channel++, COMM_TO_NEXT, err) ||
        (pair && time_sizes(t, pair, is_across, err)))
        return -1;
    return bench_barrier(t->engine, t->world, err);
}

/* All ranks of the first node send to those of the second at once. */
static int time_nic(struct transfers *t, struct err *err)
{
    int rank = t->engine->rank.world_rank, r = t->nodes.per_node;
    bool is_in = rank < 2 * r;
    const int ranks[2] = { rank % r, rank % r + r };
    struct comm_group *pair;
    double seconds = 0;

    if (bench_group_open(&pair, t->engine, t->world, ranks, is_in ? 2 : 0, t->channel++,
                         COMM_TO_NEXT, err) ||
        bench_barrier(t->engine, t->world, err) ||
        (pair && time_size(t, pair, t->max_bytes, &seconds, err)) ||
        bench_largest(t->engine, t->world, &seconds, err))
        return -1;
    t->exchanges->nic_bytes_per_second = r * (double)t->max_bytes / seconds;
    return 0;
}

/* A gather of little, whose ranks come together, or one of them after the others. */
static int time_lateness(struct transfers *t, struct err *err)
{
    int n = t->n_rounds, n_ranks = t->engine->rank.world_size;
    struct op_shape shape;

    bench_collective_shape(
        OP_ALL_GATHER,
        (int64_t)(align_up(LATE_BYTES, sizeof(float) * (size_t)n_ranks) / sizeof(float)), n_ranks,
        &shape);
    struct collective c = bench_operands_exchange(&t->operands, &shape, t->world);
    for (int round = -1; round < 2 * n; round++) {
        int late = round & 1 ? round / 2 % n_ranks : BENCH_PROMPT;
        double took;

        if (bench_time_exchange(&t->operands, &c, t->world, late, &took, err))
            return -1;
        if (round >= 0)
            t->samples[(round & 1) * n + round / 2] = took;
    }
    double prompt = bench_median(t->samples, n), late = bench_median(t->samples + n, n);
    t->exchanges->late_seconds = late > prompt ? late - prompt : 0;
    return 0;
}

static int time_all(struct transfers *t, struct err *err)
{
    if (bench_group_open_world(&t->world, t->engine, err) || time_lateness(t, err))
        return -1;
    if (t->nodes.per_node > 1 && time_pair(t, 1, false, err))
        return -1;
    if (t->nodes.n == 1)
        return 0;
    return time_pair(t, t->nodes.per_node, true, err) || time_nic(t, err) ? -1 : 0;
}

int bench_transfers(struct bench_exchanges *exchanges, struct engine *engine,
                    const struct bench_nodes *nodes, size_t max_bytes, int n_rounds,
                    struct arena *arena, struct err *err)
{
    struct transfers t = { .exchanges = exchanges,
                           .engine = engine,
                           .nodes = *nodes,
                           .max_bytes = max_bytes,
                           .n_rounds = n_rounds,
                           .channel = BENCH_CHANNEL_PAIR,
                           .samples = arena_array(arena, double, 2 * n_rounds),
                           .arena = arena };
    size_t n_bytes = align_up(LATE_BYTES, sizeof(float) * (size_t)engine->rank.world_size);

    n_bytes = n_bytes > max_bytes ? n_bytes : max_bytes;
    int status = bench_operands_open(&t.operands, engine, n_bytes, n_bytes, err);
    if (!status)
        status = time_all(&t, err);
    bench_operands_close(&t.operands);
    return status;
}
