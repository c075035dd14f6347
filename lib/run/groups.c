/*
 * groups.c - the groups of ranks that a run's collectives are over
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "run/run_impl.h"

/* The channel of all ranks of the mesh, behind those of programs (axis by stream), training
 * (train/agree.c) and serving (serve/replica.c). */
enum { CHANNEL_MESH = N_GROUP_AXES * N_STREAMS + 3, CHANNEL_NODES };

/* Making a group talks to others, so it is done on the comm thread. */
struct group_request {
    struct run *run;
    int axis, stream;
    unsigned uses; /* enum comm_use; 0: of other ranks only */
    bool by_node;  /* some of its collectives may go by node */
    struct comm_group *mesh;
};

/* All ranks of the mesh, which connect their groups together. */
static int make_mesh_group(void *argument, struct err *err)
{
    struct group_request *request = argument;
    struct run *run = request->run;
    int size = mesh_world_size(&run->program->mesh);
    int *ranks = arena_array(&run->arena, int, size);

    for (int i = 0; i < size; i++)
        ranks[i] = run->options.first_rank + i;
    return comm_group_create(&request->mesh, run->options.comm, ranks, size, CHANNEL_MESH, err);
}

static int make_axis_group(const struct group_request *request, struct comm_group **group,
                           struct err *err)
{
    struct run *run = request->run;
    struct comm *comm = run->options.comm;
    const struct mesh *mesh = &run->program->mesh;
    enum mesh_axis axis = (enum mesh_axis)request->axis;
    int size = mesh_size(mesh, axis), first = run->options.first_rank;
    int *ranks = arena_array(&run->arena, int, size);
    struct mesh_line line = mesh_line(mesh, comm_world_rank(comm) - first, axis);

    mesh_group(mesh, comm_world_rank(comm) - first, axis, ranks);
    for (int i = 0; i < size; i++)
        ranks[i] += first;
    run->meetings[axis] = (struct progress_meeting){ .first = first + line.first,
                                                     .stride = line.stride,
                                                     .size = line.n,
                                                     .n_runs = line.n_runs,
                                                     .apart = line.apart };
    return comm_group_create(group, comm, ranks, size, request->axis * N_STREAMS + request->stream,
                             err);
}

/* Members of a group over the axis on each node, where its collectives may go by node; else 0. */
static int n_on_node(const struct run *run, enum mesh_axis axis)
{
    const struct mesh *mesh = &run->program->mesh;
    int n = mesh_node_members(mesh, axis, run->options.node_ranks);

    return n > 1 && n < mesh_size(mesh, axis) && (n & (n - 1)) == 0 ? n : 0;
}

/* The n members of the axis' group that are on this rank's node, and those with its number among
 * such. */
static int make_node_groups(const struct group_request *request, int n,
                            struct collective_nodes *nodes, struct err *err)
{
    struct run *run = request->run;
    struct comm *comm = run->options.comm;
    const struct mesh *mesh = &run->program->mesh;
    enum mesh_axis axis = (enum mesh_axis)request->axis;
    int size = mesh_size(mesh, axis), own = run->coordinate[axis];
    int channel = CHANNEL_NODES + 2 * (request->axis * N_STREAMS + request->stream);
    int *ranks = arena_array(&run->arena, int, size), *some = arena_array(&run->arena, int, size);

    mesh_group(mesh, comm_world_rank(comm) - run->options.first_rank, axis, ranks);
    for (int i = 0; i < n; i++)
        some[i] = run->options.first_rank + ranks[own / n * n + i];
    if (comm_group_create(&nodes->node, comm, some, n, channel, err) < 0)
        return -1;
    for (int i = 0; i < size / n; i++)
        some[i] = run->options.first_rank + ranks[own % n + i * n];
    return comm_group_create(&nodes->across, comm, some, size / n, channel + 1, err);
}

static int make_group(void *argument, struct err *err)
{
    struct group_request *request = argument;
    struct run *run = request->run;
    struct comm_group **group = &run->groups[request->axis][request->stream];
    struct collective_nodes *nodes = &run->nodes[request->axis][request->stream];
    int n = n_on_node(run, (enum mesh_axis)request->axis);
    bool is_summed = request->by_node && !run->options.fast;

    if (request->uses && make_axis_group(request, group, err) < 0)
        return -1;
    if (n && is_summed && make_node_groups(request, n, nodes, err) < 0)
        return -1;
    if (!request->mesh)
        return 0;
    unsigned uses = is_summed ? COMM_TOGETHER : 0;
    if (comm_connect(request->mesh, *group, request->uses, err) < 0 ||
        (n && (comm_connect(request->mesh, nodes->node, uses, err) < 0 ||
               comm_connect(request->mesh, nodes->across, uses, err) < 0)))
        return -1;
    return 0;
}

static unsigned use_of(const struct run *run, const struct op *op)
{
    int forward = (op->kind == OP_SEND) == (op->attributes.peer > 0);
    struct op_shape shape = program_op_shape(run->program, op);

    if (run->options.fast && collective_may_be_fast(&shape))
        return COMM_TOGETHER | COMM_SUMS;
    if (op->kind != OP_SEND && op->kind != OP_RECEIVE)
        return COMM_TOGETHER;
    return forward ? COMM_TO_NEXT : COMM_TO_PREVIOUS;
}

/* By node: of those that no comm adds. */
struct group_uses {
    char of[N_GROUP_AXES][N_STREAMS];
    bool by_node[N_GROUP_AXES][N_STREAMS];
};

/* What collectives over the axis on the stream do. The same on all ranks of a group, not on all of
 * the mesh: stages have layers of several kinds. */
static void find_uses(const struct run *run, struct group_uses *uses)
{
    const struct program *p = run->program;

    memset(uses, 0, sizeof *uses);
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];
            enum mesh_axis axis = op->attributes.axis;

            if (!op_is_collective(op->kind))
                continue;
            struct op_shape shape = program_op_shape(p, op);
            enum stream stream = order_group_of(op->stream);

            uses->of[axis][stream] |= (char)use_of(run, op);
            uses->by_node[axis][stream] |= collective_goes_by_node(
                &shape, mesh_size(&p->mesh, axis), n_on_node(run, axis), run->enqueues);
        }
}

/* Where groups are connected every rank takes part for each axis and stream, in one order. */
int run_make_groups(struct run *run, struct err *err)
{
    int rank = run->options.comm ? comm_world_rank(run->options.comm) - run->options.first_rank : 0;
    struct group_request request = { .run = run };
    struct group_uses uses;

    find_uses(run, &uses);
    if (run->enqueues && mesh_world_size(&run->program->mesh) > 1 &&
        worker_call(run->worker, make_mesh_group, &request, err) < 0)
        return -1;
    for (int axis = 0; axis < N_GROUP_AXES; axis++) {
        if (mesh_size(&run->program->mesh, (enum mesh_axis)axis) == 1)
            continue;
        run->coordinate[axis] = mesh_coordinate(&run->program->mesh, rank, (enum mesh_axis)axis);
        for (int stream = 0; stream < N_STREAMS; stream++) {
            request.axis = axis;
            request.stream = stream;
            request.uses = (unsigned)uses.of[axis][stream];
            request.by_node = uses.by_node[axis][stream];
            if ((request.uses || request.mesh) &&
                worker_call(run->worker, make_group, &request, err) < 0)
                return -1;
        }
    }
    return 0;
}
