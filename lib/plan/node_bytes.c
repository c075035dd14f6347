/*
 * node_bytes.c - the sums and gathers of a step's actions
 */
#include "plan/node_bytes.h"

#include "base/num.h"
#include "run/collective.h"

/* Of one op, on a node that has as many ranks of each of its groups. */
static void add_op(struct node_bytes *bytes, const struct program *program, const struct op *op,
                   int node_ranks, bool by_node, bool enqueues)
{
    enum mesh_axis axis = op->attributes.axis;
    struct op_shape shape = program_op_shape(program, op);
    int size = mesh_size(&program->mesh, axis);
    int members = mesh_node_members(&program->mesh, axis, node_ranks), n = max_int(1, members);
    bool goes = by_node && collective_goes_by_node(&shape, size, members, enqueues);
    int64_t n_groups = max_int(1, node_ranks / n);

    /* A library's gathers are rings. */
    bytes->at_once += n_groups * collective_bytes_between_nodes(&shape, size, n, false, enqueues);
    bytes->sent +=
        n_groups * collective_bytes_between_nodes(&shape, size, n, goes, goes || enqueues);
    bytes->n_by_node += goes;
}

struct node_bytes node_bytes_of(const struct program *program, int node_ranks, bool by_node,
                                bool enqueues)
{
    const struct entry *step = &program->entries[ENTRY_STEP];
    struct node_bytes bytes = { 0 };

    for (int a = 0; a < step->n_actions; a++) {
        if (step->actions[a].kind != ACTION_RUN)
            continue;
        const struct function *f = &program->functions[step->actions[a].function];

        for (int i = 0; i < f->n_ops; i++)
            if (op_is_collective(f->ops[i].kind))
                add_op(&bytes, program, &f->ops[i], node_ranks, by_node, enqueues);
    }
    return bytes;
}
