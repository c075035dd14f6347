/*
 * bench_collectives.c - the executor's collectives by size and group
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "progress/progress.h"
#include "train/bench_impl.h"

#define LEAST_BYTES 4096
#define ENTRY_SECONDS 1.0 /* that an entry's rounds may take, */
#define ROUNDS_MIN 3      /* but for so many */
/* Small exchanges are timed one behind the other, as a step's are: a link or switch that takes the
 * first of them into its buffer is not as fast as that. */
#define BURST_BYTES ((size_t)1 << 20)
#define BURST_MAX 16

static const enum op_kind kinds[] = { OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE,
                                      OP_ALL_REDUCE_SCALAR };
#define N_KINDS (int)(sizeof kinds / sizeof *kinds)

struct collective_benchmark {
    struct engine *engine;
    struct bench_operands operands;
    struct bench_nodes nodes;
    int n_rounds;
    struct bench_collective *list;
    int n;
    double *samples; /* [n_rounds] */
};

/* Bytes that a rank's link carries: NCCL's "bus bandwidth" of the same collective. */
static double bus_bytes(const struct bench_collective *c)
{
    double share = (double)(c->n_ranks - 1) / c->n_ranks;

    int sums_for_all = c->kind == OP_ALL_REDUCE || c->kind == OP_ALL_REDUCE_SCALAR;

    return (sums_for_all ? 2 : 1) * share * (double)c->n_bytes;
}

void bench_collective_shape(enum op_kind kind, int64_t n, int n_ranks, struct op_shape *shape)
{
    int64_t n_own = n / n_ranks;
    struct tensor whole = { NULL, 1, n, n, DTYPE_F32 };
    struct tensor own = { NULL, 1, n_own, n_own, DTYPE_F32 };
    struct tensor scalars = { NULL, 1, n / 2, n / 2, DTYPE_F64 };

    *shape = (struct op_shape){ .kind = kind };
    shape->in[0] = kind == OP_ALL_REDUCE_SCALAR ? scalars : kind == OP_ALL_GATHER ? own : whole;
    shape->out[0] = kind == OP_ALL_REDUCE_SCALAR ? scalars
                    : kind == OP_REDUCE_SCATTER  ? own
                                                 : whole;
}

/* The operands of an entry, without their memory. */
static void shape_of(const struct bench_collective *b, struct op_shape *shape)
{
    bench_collective_shape(b->kind, (int64_t)(b->n_bytes / sizeof(float)), b->n_ranks, shape);
}

static int time_one(struct collective_benchmark *r, struct bench_collective *b,
                    struct comm_group *group, struct err *err)
{
    struct op_shape shape;
    int n_rounds = r->n_rounds;
    int n_burst = (int)min_i64(BURST_MAX, 1 + (int64_t)(BURST_BYTES / b->n_bytes));

    shape_of(b, &shape);
    struct collective c = bench_operands_exchange(&r->operands, &shape, group);
    for (int round = -1; round < n_rounds; round++) {
        double seconds;

        if (bench_time_exchanges(&r->operands, &c, group, n_burst, &seconds, err))
            return -1;
        if (round >= 0)
            r->samples[round] = seconds;
        else if (seconds * n_burst * n_rounds > ENTRY_SECONDS)
            n_rounds =
                min_int(n_rounds, max_int(ROUNDS_MIN, (int)(ENTRY_SECONDS / (seconds * n_burst))));
    }
    b->seconds = bench_median(r->samples, n_rounds);
    b->best_seconds = r->samples[0];
    b->quiet_seconds = r->samples[n_rounds / 4];
    b->bus_bytes_per_second = bus_bytes(b) / b->best_seconds;
    return 0;
}

/* The first per_node ranks of each of n_nodes nodes. Returns how many. */
static int list_ranks(const struct bench_nodes *nodes, const struct bench_collective *b, int *ranks)
{
    for (int i = 0; i < b->n_ranks; i++)
        ranks[i] = i / b->per_node * nodes->per_node + i % b->per_node;
    return b->n_ranks;
}

static bool is_same_group(const struct bench_collective *a, const struct bench_collective *b)
{
    return a->per_node == b->per_node && a->n_nodes == b->n_nodes;
}

/* Entries of a group are neighbours: it measures them, the other ranks wait at the barrier. */
static int time_group(struct collective_benchmark *r, struct comm_group *world, int first,
                      int channel, struct err *err)
{
    int ranks[BENCH_RANKS_MAX], n = list_ranks(&r->nodes, &r->list[first], ranks);
    struct comm_group *group;

    if (bench_group_open(&group, r->engine, world, ranks, n, channel, COMM_TOGETHER, err))
        return -1;
    for (int i = first; i < r->n && is_same_group(&r->list[first], &r->list[i]) && group; i++) {
        if (time_one(r, &r->list[i], group, err))
            return -1;
        progress_beat(progress_join(r->engine->rank.local_rank));
    }
    return bench_barrier(r->engine, world, err);
}

static int time_all(struct collective_benchmark *r, struct err *err)
{
    struct comm_group *world;
    int channel = BENCH_CHANNEL_GROUPS;

    if (bench_group_open_world(&world, r->engine, err))
        return -1;
    for (int i = 0; i < r->n; i++)
        if ((i == 0 || !is_same_group(&r->list[i - 1], &r->list[i])) &&
            time_group(r, world, i, channel++, err))
            return -1;
    return 0;
}

struct collective_list {
    struct bench_collective *items;
    int n, capacity;
    size_t max_bytes;
    struct arena *arena;
};

static void add_group(struct collective_list *list, int per_node, int n_nodes)
{
    int n_ranks = per_node * n_nodes;

    for (int k = 0; k < N_KINDS; k++) {
        /* Sums of scalars are made of what is gathered: never large. */
        bool is_scalar = kinds[k] == OP_ALL_REDUCE_SCALAR;
        size_t most = is_scalar ? LEAST_BYTES : list->max_bytes;
        size_t unit = is_scalar ? sizeof(double) : sizeof(double) * (size_t)n_ranks;

        for (size_t n_bytes = LEAST_BYTES; n_bytes <= most; n_bytes *= 4) {
            list->items = arena_grow(list->arena, list->items, sizeof *list->items, &list->capacity,
                                     list->n + 1);
            list->items[list->n++] =
                (struct bench_collective){ .kind = kinds[k],
                                           .n_ranks = n_ranks,
                                           .per_node = per_node,
                                           .n_nodes = n_nodes,
                                           .n_bytes = align_up(n_bytes, unit) };
        }
    }
}

int bench_list_collectives(const struct bench_nodes *nodes, size_t max_bytes,
                           struct bench_collective **list, struct arena *arena)
{
    struct collective_list all = { .max_bytes = max_bytes, .arena = arena };

    for (int n_nodes = 1; n_nodes < 2 * nodes->n; n_nodes *= 2)
        for (int per_node = 1; per_node < 2 * nodes->per_node; per_node *= 2) {
            int n = min_int(n_nodes, nodes->n), r = min_int(per_node, nodes->per_node);

            if (n * r > 1)
                add_group(&all, r, n);
        }
    *list = all.items;
    return all.n;
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

int bench_collectives(struct engine *engine, const struct bench_nodes *nodes, size_t max_bytes,
                      int n_rounds, struct bench_collective **list, int *n, struct arena *arena,
                      struct err *err)
{
    struct collective_benchmark r = { .engine = engine, .nodes = *nodes, .n_rounds = n_rounds };
    size_t operand_bytes, scratch_bytes;

    CHECK(nodes->n * nodes->per_node == engine->rank.world_size);
    CHECK(engine->rank.world_size >= 2);
    CHECK(n_rounds >= 1);
    r.n = bench_list_collectives(nodes, max_bytes, &r.list, arena);
    r.samples = arena_array(arena, double, n_rounds);
    bench_collective_memory(r.list, r.n, &operand_bytes, &scratch_bytes);
    int status = bench_operands_open(&r.operands, engine, operand_bytes, scratch_bytes, err);
    if (!status)
        status = time_all(&r, err);
    bench_operands_close(&r.operands);
    *list = r.list;
    *n = r.n;
    return status;
}
