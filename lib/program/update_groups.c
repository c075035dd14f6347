/*
 * update_groups.c - parameters that have a learning rate or a weight decay of their own
 *
 * The learning rate is a scalar that the host writes before each update: a group whose rate is
 * scaled has scalars of its own, and its optimizer's ops read those. A captured graph replays with
 * them, and no kernel knows of groups.
 */
#include "program/update_impl.h"

void update_find_groups(struct program *p, const struct update_options *options)
{
    for (int i = 0; i < p->n_parameters; i++)
        p->parameters[i].group = 1 + update_groups_find(&options->groups, p->parameters[i].name);
}

void update_declare_scalars(const struct update *u)
{
    struct program *p = u->program;
    const struct update_groups *groups = &u->options->groups;

    p->ports.scalars = program_cell(p, ROLE_SCALAR, "scalars", 1, OPS_N_SCALARS, DTYPE_F32);
    for (int i = 0; i < groups->n; i++) {
        char *name = arena_printf(&p->arena, "scalars.group%d", i + 1);

        if (groups->list[i].lr_scale != 1)
            p->ports.group_scalars[i] =
                program_cell(p, ROLE_SCALAR, name, 1, OPS_N_SCALARS, DTYPE_F32);
    }
}

int update_scalars_of(const struct update *u, int group)
{
    const struct ports *ports = &u->program->ports;
    int own = group ? ports->group_scalars[group - 1] : 0;

    return own ? own : ports->scalars;
}
