/*
 * axes.h - what each axis of the mesh divides
 *
 * The compiler treats an axis by what it divides, never by its name: so an axis that divides tokens
 * gets its gradients summed and its rows split without a line of its own in any pass.
 *
 *   tokens   dp, replica, cp, ulysses: ranks see other tokens, so a parameter's gradient is a sum
 *            over them. ep as well, for every parameter but those of experts. dp, replica and ep
 *            have other sequences each, cp and ulysses parts of one sequence (axis_cuts_sequences).
 *   model    tp: ranks have other parts of a parameter, or, of one that is not divided, all of it.
 *            ep for experts' parameters. With fastseq ulysses for those of q, k and v, too: the
 *            one role that hangs on the job, which model/declare.c knows (model_split_axes).
 *   layers   pp: ranks have other layers.
 *
 * ZeRO shards gradients and states over dp, those of dense parameters, where ep divides experts,
 * over ep and dp as one axis (data, layout/mesh.h): a sum over all tokens is a reduce-scatter over
 * that axis, then an all-reduce of the shards over each of the others, in the order of axes_of.
 * Ranks of ep are neighbours in the batch, so dense parameters' sums have the bits that they have
 * without ep.
 */
#ifndef LAYOUT_AXES_H
#define LAYOUT_AXES_H

#include <stdbool.h>

#include "layout/mesh.h"

enum axis_role { SPLITS_TOKENS, SPLITS_MODEL, SPLITS_LAYERS };

/* Of the parameters of experts, and of all others. */
enum parameter_kind { PARAMETER_DENSE, PARAMETER_EXPERT };

enum axis_role axis_role(enum mesh_axis axis, enum parameter_kind kind);

/* Whether ranks along the axis have parts of the same sequences: cp, ulysses. */
bool axis_cuts_sequences(enum mesh_axis axis);

/* What the axis' places are called in names of sums: "groups", "stages". */
const char *axis_places(enum mesh_axis axis);

/* Axes with several ranks, in the order in which sums over them are taken. */
struct axis_list {
    int n;
    enum mesh_axis axes[N_AXES];
};
struct axis_list axes_of(const struct mesh *mesh, enum axis_role role, enum parameter_kind kind);

/* The axis over which ZeRO shards parameters of the kind: a composite one, of dense ones where
 * experts are divided. */
enum mesh_axis axes_shard(const struct mesh *mesh, enum parameter_kind kind);

/*
 * The one axis which divides the matrices of every layer (tensor parallel); which divides experts
 * alone; and which divides layers (the pipeline's stages). Parameters are divided over the first
 * and the second, and with fastseq over axes_heads, alone (config/parameters.h, model/declare.c):
 * ranks of a further axis of the model hold all of each, until these ask for that axis, too.
 */
enum mesh_axis axes_tensor(void);
enum mesh_axis axes_experts(void);
enum mesh_axis axes_stages(void);

/* Along which ranks have other experts: axes_experts, or, over_tensor, with it axes_tensor, whose
 * ranks then have whole ones as well. */
enum mesh_axis axes_exchange(const struct mesh *mesh, bool over_tensor);

/* Whether it is one that divides experts, among others. */
bool axis_has_experts(enum mesh_axis axis);

/* Over which attention exchanges keys and values, and heads (context parallel). */
enum mesh_axis axes_keys(void);
enum mesh_axis axes_heads(void);

/* Those of axes_of(SPLITS_TOKENS) that the sharding one does not cover: what is summed over each
 * after a shard is. */
struct axis_list axes_of_replicas(const struct mesh *mesh, enum parameter_kind kind);

/* Product of the sizes of all axes of the role. */
int axes_size(const struct mesh *mesh, enum axis_role role, enum parameter_kind kind);

#endif
