/*
 * job_mesh.c - the ranks of a job as a mesh: its key of each axis; and on nodes
 */
#include "config/job.h"

struct mesh job_mesh(const struct job *job)
{
    int dp = job->parallel.dp, group = job->parallel.zero_group;
    struct context_cut cut = job_context_cut(job);
    struct mesh mesh = mesh_data_parallel((group ? group : dp) / job->parallel.ep);

    mesh.size[AXIS_EP] = job->parallel.ep;
    mesh.size[AXIS_REPLICA] = group ? dp / group : 1;
    mesh.size[AXIS_TP] = job->parallel.tp;
    mesh.size[AXIS_PP] = job->parallel.pp;
    mesh.size[AXIS_ULYSSES] = cut.ulysses;
    mesh.size[AXIS_CP] = cut.keys;
    mesh.order = job->parallel.order;
    return mesh;
}

int job_node_ranks(const struct job *job)
{
    int n = job->parallel.node_ranks ? job->parallel.node_ranks : job->node_ranks;

    return n > 1 && n < job->world_size && job->world_size % n == 0 ? n : 0;
}
