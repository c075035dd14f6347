/*
 * job_mesh.c - the ranks of a job as a mesh: its key of each axis
 */
#include "config/job.h"

struct mesh job_mesh(const struct job *job)
{
    int dp = job->parallel.dp, group = job->parallel.zero_group;
    struct mesh mesh = mesh_data_parallel(group ? group : dp);

    mesh.size[AXIS_REPLICA] = group ? dp / group : 1;
    mesh.size[AXIS_TP] = job->parallel.tp;
    mesh.size[AXIS_PP] = job->parallel.pp;
    mesh.order = job->parallel.order;
    return mesh;
}
