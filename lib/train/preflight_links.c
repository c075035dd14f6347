/*
 * preflight_links.c - all-reduce in nodes, and messages between pairs of nodes
 *
 * Nodes meet as in a tournament: in each round every node has one other, both directions are
 * measured one after the other, and all pairs at once, as neighbours of a ring would be. A quick
 * check has a few rounds, a full one as many as there are other nodes, within limits. A node is
 * judged by its best partner: so a slow one does not make its partners slow.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "launch/launch.h"
#include "train/bench_impl.h"
#include "train/preflight_impl.h"
#include "train/signals.h"

/* Short ones on CPUs, of which some run undisturbed on a busy machine. */
#define HOST_BYTES ((size_t)2 << 20)
#define GPU_BYTES ((size_t)16 << 20)
#define SMALL_BYTES 4096
#define EXCHANGE_SECONDS 0.25 /* for the repetitions of an exchange */
#define FULL_EXCHANGE_SECONDS 1.0
enum { QUICK_ROUNDS = 3, FULL_ROUNDS = 64, REPEATS_LEAST = 3, REPEATS_MOST = 100, FULL_TIMES = 4 };

struct link_check {
    struct preflight_check *check;
    struct bench_operands operands;
    size_t n_bytes;
    int *leaders; /* the first rank of each node, ascending */
    int n_nodes, own_node;
    struct preflight_pair *pairs; /* this rank's: two each round; `from` -1: none */
    int n_rounds;
};

/* The best of some repetitions; all ranks of the group have the same times, so they agree. */
static int time_best(struct link_check *l, struct collective *c, struct comm_group *group,
                     double *best, struct err *err)
{
    double left = fmin(preflight_seconds(l->check),
                       l->check->request->is_full ? FULL_EXCHANGE_SECONDS : EXCHANGE_SECONDS);

    *best = 1e30;
    for (int i = -1; i < REPEATS_MOST && (i < REPEATS_LEAST || left > 0); i++) {
        double took;

        if (bench_time_exchange(&l->operands, c, group, BENCH_PROMPT, &took, err))
            return -1;
        left -= took;
        *best = i < 0 ? *best : fmin(*best, fmax(took, 1e-9));
    }
    preflight_beat(l->check);
    return 0;
}

/* ---- in a node ---- */

/* What a rank's link carries: NCCL's "bus bandwidth". */
static int time_all_reduce(struct link_check *l, struct comm_group *group, struct err *err)
{
    struct preflight_rank *own = l->check->own;
    int n = comm_group_size(group);
    int64_t n_numbers = (int64_t)(l->n_bytes / sizeof(float)) / n * n;
    struct op_shape shape;
    double best;

    bench_collective_shape(OP_ALL_REDUCE, n_numbers, n, &shape);
    struct collective c = bench_operands_exchange(&l->operands, &shape, group);
    if (time_best(l, &c, group, &best, err))
        return -1;
    double speed = 2.0 * (n - 1) / n * (double)(n_numbers * (int64_t)sizeof(float)) / best;
    if (!own->local_rank)
        own->speed[PREFLIGHT_NODE] = fmax(own->speed[PREFLIGHT_NODE], speed);
    return 0;
}

static int time_node(struct link_check *l, struct err *err)
{
    struct preflight_check *check = l->check;
    int n = check->own->local_size;
    int *peers = arena_array(check->arena, int, n);
    struct comm_group *group;

    peers[0] = check->engine->rank.world_rank;
    if ((n > 1 && launch_local_peers(peers, n, err)) ||
        bench_group_open(&group, check->engine, check->world, peers, n, BENCH_CHANNEL_PREFLIGHT,
                         n > 1 ? COMM_TOGETHER : 0, err) ||
        (n > 1 && time_all_reduce(l, group, err)))
        return -1;
    return bench_group_close(check->engine, group, err);
}

/* ---- between nodes ---- */

/* The circle method: with a last node that stays, the others move on by one. */
int preflight_partner(int node, int round, int n_nodes)
{
    int last = n_nodes - 1 + n_nodes % 2; /* of an even number of players */
    int other = node == last ? round : node == round ? last : (2 * round - node + 2 * last) % last;

    return other < n_nodes ? other : -1;
}

static int time_direction(struct link_check *l, struct comm_group *pair, int from,
                          struct preflight_pair *figures, struct err *err)
{
    struct collective small = bench_operands_transfer(&l->operands, pair, from, SMALL_BYTES);
    struct collective large = bench_operands_transfer(&l->operands, pair, from, l->n_bytes);
    double seconds;

    if (time_best(l, &small, pair, &figures->seconds, err) ||
        time_best(l, &large, pair, &seconds, err))
        return -1;
    figures->bytes_per_second = (double)l->n_bytes / seconds;
    return 0;
}

/* Both know the figures of both directions; the lower one reports them. */
static int time_pair(struct link_check *l, struct comm_group *pair, const int ranks[2], int round,
                     struct err *err)
{
    struct preflight_rank *own = l->check->own;
    struct preflight_pair both[2];

    for (int from = 0; from < 2; from++) {
        both[from] = (struct preflight_pair){ .from = ranks[from], .to = ranks[1 - from] };
        if (time_direction(l, pair, from, &both[from], err))
            return -1;
    }
    double speed = fmin(both[0].bytes_per_second, both[1].bytes_per_second);
    double latency = fmax(both[0].seconds, both[1].seconds);
    own->speed[PREFLIGHT_LINK] = fmax(own->speed[PREFLIGHT_LINK], speed);
    own->link_seconds = own->link_seconds > 0 ? fmin(own->link_seconds, latency) : latency;
    if (comm_group_rank(pair) == 0)
        memcpy(&l->pairs[2 * (size_t)round], both, sizeof both);
    return 0;
}

static int time_round(struct link_check *l, int round, struct err *err)
{
    struct preflight_check *check = l->check;
    int other = l->own_node < 0 ? -1 : preflight_partner(l->own_node, round, l->n_nodes);
    int low = min_int(l->own_node, other), high = max_int(l->own_node, other);
    const int ranks[2] = { other < 0 ? -1 : l->leaders[low], other < 0 ? -1 : l->leaders[high] };
    struct comm_group *pair;

    if (bench_group_open(&pair, check->engine, check->world, ranks, other < 0 ? 0 : 2,
                         BENCH_CHANNEL_PREFLIGHT + 1 + round, COMM_TO_NEXT, err) ||
        (pair && time_pair(l, pair, ranks, round, err)))
        return -1;
    return bench_group_close(check->engine, pair, err);
}

/* Whether a rank has a signal, on all of them; they meet. */
static int is_any_stopped(struct link_check *l, bool *is_stopped, struct err *err)
{
    double any = preflight_is_stopped();

    if (bench_largest(l->check->engine, l->check->world, &any, err))
        return -1;
    *is_stopped = any > 0;
    return 0;
}

/* ---- all ---- */

static void list_nodes(struct link_check *l)
{
    const struct preflight *p = l->check->result;

    l->leaders = arena_array(l->check->arena, int, p->n_ranks);
    l->own_node = -1;
    for (int rank = 0; rank < p->n_ranks; rank++) {
        if (p->ranks[rank].node != rank)
            continue;
        if (rank == l->check->engine->rank.world_rank)
            l->own_node = l->n_nodes;
        l->leaders[l->n_nodes++] = rank;
    }
    int n_others = l->n_nodes - 1 + l->n_nodes % 2;
    l->n_rounds = l->n_nodes < 2
                      ? 0
                      : min_int(n_others, l->check->request->is_full ? FULL_ROUNDS : QUICK_ROUNDS);
    l->pairs = arena_array(l->check->arena, struct preflight_pair, 2 * l->n_rounds + 1);
    for (int i = 0; i < 2 * l->n_rounds; i++)
        l->pairs[i] = (struct preflight_pair){ .from = -1 };
}

/* What an earlier tournament of the same pairs found, where that is better. */
static void take_best(struct preflight_pair *pairs, const struct preflight_pair *earlier, int n)
{
    for (int i = 0; i < n; i++) {
        CHECK(pairs[i].from == earlier[i].from && pairs[i].to == earlier[i].to);
        pairs[i].bytes_per_second = fmax(pairs[i].bytes_per_second, earlier[i].bytes_per_second);
        pairs[i].seconds = fmin(pairs[i].seconds, earlier[i].seconds);
    }
}

/* All ranks' pairs to all. */
static int gather_pairs(struct link_check *l, struct err *err)
{
    struct preflight *p = l->check->result;
    int n = 2 * l->n_rounds, n_pairs = 0;

    if (!n)
        return 0;
    struct preflight_pair *all =
        arena_array(l->check->arena, struct preflight_pair, (int64_t)n * p->n_ranks);
    if (preflight_gather(l->check, l->pairs, all, sizeof *all * (size_t)n, err))
        return -1;
    for (int i = 0; i < n * p->n_ranks; i++)
        if (all[i].from >= 0)
            all[n_pairs++] = all[i];
    if (n_pairs == p->n_pairs)
        take_best(all, p->pairs, n_pairs);
    p->pairs = all;
    p->n_pairs = n_pairs;
    return 0;
}

static int time_all(struct link_check *l, struct err *err)
{
    bool is_stopped = false;

    if (time_node(l, err))
        return -1;
    for (int round = 0; round < l->n_rounds && !is_stopped; round++)
        if (time_round(l, round, err) || is_any_stopped(l, &is_stopped, err))
            return -1;
    return gather_pairs(l, err);
}

int preflight_links(struct preflight_check *check, struct err *err)
{
    struct link_check l = { .check = check,
                            .n_bytes =
                                device_is_host(check->engine->device) ? HOST_BYTES : GPU_BYTES };

    l.n_bytes *= check->request->is_full ? FULL_TIMES : 1;

    list_nodes(&l);
    int status = bench_operands_open(&l.operands, check->engine, l.n_bytes, l.n_bytes, err);
    if (!status)
        status = time_all(&l, err);
    bench_operands_close(&l.operands);
    return status;
}
