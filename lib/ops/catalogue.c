/*
 * catalogue.c - the families of the catalogue
 *
 * Each family file gives a table by kind, of its own rows; this is the list of them.
 */
#include <string.h>

#include "ops/family_impl.h"

static const struct op_info *const *const families[] = {
    linear_ops,  attention_ops, norm_ops,       embed_ops, elementwise_ops,
    experts_ops, head_ops,      collective_ops, copy_ops,  optimizer_ops,
};

const struct op_info *op_info(enum op_kind kind)
{
    CHECK((unsigned)kind < N_OP_KINDS);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (families[i][kind])
            return families[i][kind];
    CHECK(!"a kind with a row");
    return NULL;
}

enum op_kind op_find(const char *name)
{
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (!strcmp(op_name((enum op_kind)kind), name))
            return (enum op_kind)kind;
    return N_OP_KINDS;
}

int op_is_collective(enum op_kind kind)
{
    return (op_info(kind)->traits & TRAIT_COLLECTIVE) != 0;
}

int op_has_kernel(enum op_kind kind)
{
    return !(op_info(kind)->traits & (TRAIT_COLLECTIVE | TRAIT_COPY));
}

const char *space_name(enum space space)
{
    static const char *const names[N_SPACES] = { "device", "host" };

    return names[space];
}

const char *axis_name(enum mesh_axis axis)
{
    static const char *const names[N_AXES] = { "dp", "tp", "pp", "cp", "ep", "replica" };

    return names[axis];
}
