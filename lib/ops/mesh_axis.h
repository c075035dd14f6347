/*
 * mesh_axis.h - the axes of the mesh of ranks, which collectives are over
 *
 * What each divides is said in layout/axes.h, where ranks lie on it in layout/mesh.h.
 */
#ifndef OPS_MESH_AXIS_H
#define OPS_MESH_AXIS_H

/*
 * With hybrid sharding data-parallel ranks are on two axes: dp within a group that shards, replica
 * across groups; else all are on dp. Ranks that divide sequences among themselves are on two axes,
 * too: those of one place on cp exchange heads around attention (ulysses), those of one place on
 * ulysses exchange keys and values (cp).
 */
enum mesh_axis {
    AXIS_DP,
    AXIS_TP,
    AXIS_PP,
    AXIS_CP,
    AXIS_ULYSSES,
    AXIS_EP,
    AXIS_REPLICA,
    N_AXES,
    /* Composites (layout/mesh.h): groups of collectives, which have no spreads of their own. */
    AXIS_DATA = N_AXES, /* ep and dp as one */
    AXIS_EXPERTS,       /* tp and ep */
    N_GROUP_AXES
};

#endif
