/*
 * bench_nodes.c - where a job's ranks lie
 */
#include <stdbool.h>

#include "base/log.h"
#include "train/bench_impl.h"

/* Whether this rank's neighbours on its node are those of equal blocks of ranks. */
static bool is_block(const struct engine *engine, const int *peers, int n)
{
    const struct launch_rank *rank = &engine->rank;
    int first = rank->world_rank / n * n;

    for (int i = 0; i < n; i++)
        if (peers[i] != first + i)
            return false;
    return rank->world_size % n == 0;
}

int bench_find_nodes(struct bench_nodes *nodes, struct engine *engine, struct err *err)
{
    int n = engine->rank.local_size, peers[BENCH_RANKS_MAX];
    struct comm_group *world;

    *nodes = (struct bench_nodes){ 1, 1 };
    if (engine->rank.world_size == 1)
        return 0;
    if (n > BENCH_RANKS_MAX)
        return err_set(err, ERR_CONFIG, "%d ranks of a node are more than %d", n, BENCH_RANKS_MAX);
    if (launch_local_peers(peers, n, err) || bench_group_open_world(&world, engine, err))
        return -1;
    double is_odd = is_block(engine, peers, n) ? 0 : 1, most = n, least = -n;
    if (bench_largest(engine, world, &is_odd, err) || bench_largest(engine, world, &most, err) ||
        bench_largest(engine, world, &least, err))
        return -1;
    if (most + least > 0.5)
        return err_set(err, ERR_CONFIG,
                       "nodes have %.0f to %.0f of the %d ranks: some have less of a node, and "
                       "the others wait for them (hint: as many on each, by --ntasks-per-node of "
                       "salloc, sbatch or srun, or by slots of --hosts)",
                       -least, most, engine->rank.world_size);
    if (is_odd > 0)
        return err_set(err, ERR_CONFIG,
                       "the %d ranks do not lie on nodes in blocks of neighbours (hint: srun "
                       "--distribution=block)",
                       engine->rank.world_size);
    *nodes = (struct bench_nodes){ engine->rank.world_size / n, n };
    return 0;
}

int engine_find_nodes(struct engine *engine, struct job *job, struct err *err)
{
    const struct launch_rank *rank = &engine->rank;
    struct bench_nodes nodes;

    job->node_ranks = 0; /* a cluster's that the job was planned for */
    if (job->parallel.node_ranks || rank->local_size == rank->world_size)
        return 0;
    if (bench_find_nodes(&nodes, engine, err) < 0) {
        if (err->code != ERR_CONFIG)
            return -1;
        if (rank->world_rank == 0)
            log_warn("sums over ranks do not go by node: %s", err->text);
        return 0;
    }
    job->node_ranks = nodes.per_node;
    return 0;
}
