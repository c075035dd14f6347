/*
 * bench_collectives.c - the executor's collectives by size and number of ranks
 *
 * Everything runs in one visit to the comm thread. Each round begins with a barrier of all who take
 * part and ends, for the clock, when the slowest is done; the barrier's own time is not counted.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "launch/progress.h"
#include "run/collective.h"
#include "train/bench.h"

#define FIRST_CHANNEL (N_AXES + 1) /* after those of the axes and the trainer's */
#define LEAST_BYTES 4096
#define N_SIZES_MAX 32
#define N_GROUPS_MAX 32

static const enum op_kind kinds[] = { OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE_SCALAR };
#define N_KINDS (int)(sizeof kinds / sizeof *kinds)

struct request {
    struct engine *engine;
    size_t max_bytes;
    int n_rounds;
    struct bench_collective *list;
    int n;
    double *samples;          /* [n_rounds] */
    unsigned char *memory[3]; /* in, out, scratch */
    size_t memory_bytes;
};

/* Bytes that a rank's link carries: NCCL's "bus bandwidth" of the same collective. */
static double bus_bytes(const struct bench_collective *c)
{
    double share = (double)(c->n_ranks - 1) / c->n_ranks;

    return (c->kind == OP_ALL_REDUCE_SCALAR ? 2 : 1) * share * (double)c->n_bytes;
}

static struct collective shape_of(const struct request *r, const struct bench_collective *b,
                                  struct comm_group *group)
{
    int64_t n = (int64_t)(b->n_bytes / sizeof(float)), n_own = n / b->n_ranks;
    struct tensor whole = { r->memory[0], 1, n, n, DTYPE_F32 };
    struct tensor own = { r->memory[1], 1, n_own, n_own, DTYPE_F32 };
    struct tensor scalars = { r->memory[0], 1, n / 2, n / 2, DTYPE_F64 };
    struct collective c = { .kind = b->kind, .group = group, .scratch = r->memory[2], .first = 1 };

    c.in = b->kind == OP_ALL_GATHER ? own : b->kind == OP_REDUCE_SCATTER ? whole : scalars;
    c.out = b->kind == OP_ALL_GATHER ? whole : b->kind == OP_REDUCE_SCATTER ? own : scalars;
    if (b->kind == OP_ALL_REDUCE_SCALAR)
        c.out.data = r->memory[1];
    return c;
}

static int time_one(struct request *r, struct bench_collective *b, struct comm_group *group,
                    struct err *err)
{
    struct collective c = shape_of(r, b, group);

    for (int round = -1; round < r->n_rounds; round++) {
        if (comm_barrier(group, err) < 0)
            return -1;
        double begin = clock_seconds();
        if (collective_run(&c, err) < 0)
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

/* The first n_ranks ranks measure; the others go on to the next meeting. */
static int time_group(struct request *r, int n_ranks, int channel, struct err *err)
{
    int ranks[N_GROUPS_MAX * 128];
    struct comm_group *group = NULL;
    int is_in = r->engine->rank.world_rank < n_ranks;

    for (int i = 0; i < n_ranks; i++)
        ranks[i] = i;
    if (is_in && comm_group_create(&group, r->engine->comm, ranks, n_ranks, channel, err) < 0)
        return -1;
    for (int k = 0; k < N_KINDS; k++)
        for (size_t n_bytes = LEAST_BYTES; n_bytes <= r->max_bytes; n_bytes *= 4) {
            struct bench_collective *b = &r->list[r->n++];
            size_t unit = sizeof(double) * (size_t)n_ranks;

            *b = (struct bench_collective){ kinds[k], n_ranks, align_up(n_bytes, unit), 0, 0, 0 };
            /* Sums of scalars are made of what is gathered: never large. */
            if (kinds[k] == OP_ALL_REDUCE_SCALAR && n_bytes > LEAST_BYTES) {
                r->n--;
                break;
            }
            if (is_in && time_one(r, b, group, err) < 0)
                return -1;
            progress_beat(progress_join(r->engine->rank.local_rank));
        }
    return 0;
}

static int time_all(void *argument, struct err *err)
{
    struct request *r = argument;
    int world_size = r->engine->rank.world_size, all[N_GROUPS_MAX * 128], channel = FIRST_CHANNEL;
    struct comm_group *world;

    for (int i = 0; i < world_size; i++)
        all[i] = i;
    if (comm_group_create(&world, r->engine->comm, all, world_size, channel++, err) < 0)
        return -1;
    for (int n_ranks = 2; n_ranks < 2 * world_size; n_ranks *= 2) {
        if (time_group(r, min_int(n_ranks, world_size), channel++, err) < 0 ||
            comm_barrier(world, err) < 0)
            return -1;
    }
    return 0;
}

int bench_collectives(struct engine *engine, size_t max_bytes, int n_rounds,
                      struct bench_collective **list, int *n, struct arena *arena, struct err *err)
{
    struct request r = { .engine = engine, .max_bytes = max_bytes, .n_rounds = n_rounds };
    int world_size = engine->rank.world_size;

    CHECK(world_size >= 2);
    CHECK(n_rounds >= 1);
    if (world_size > N_GROUPS_MAX * 128)
        return err_set(err, ERR_CONFIG, "%d ranks are more than %d", world_size,
                       N_GROUPS_MAX * 128);
    r.list = arena_array(arena, struct bench_collective, N_GROUPS_MAX * N_SIZES_MAX * N_KINDS);
    r.samples = arena_array(arena, double, n_rounds);
    /* In and out are at most the whole; scratch is all ranks' parts of a shard, and one more. */
    r.memory_bytes = align_up(max_bytes + max_bytes / 2 + (size_t)world_size * LEAST_BYTES * 2, 64);
    int status = 0;
    for (int i = 0; i < 3 && !status; i++) {
        r.memory[i] = aligned_alloc(64, r.memory_bytes);
        if (!r.memory[i])
            status = err_set(err, ERR_DEVICE, "out of host memory");
        else
            memset(r.memory[i], 0, r.memory_bytes);
    }
    if (!status)
        status = worker_call(engine->worker, time_all, &r, err);
    for (int i = 0; i < 3; i++)
        free(r.memory[i]);
    *list = r.list;
    *n = r.n;
    return status;
}
