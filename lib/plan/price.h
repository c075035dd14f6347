/*
 * price.h - how long an op of a program takes on a device: as measured (price_table.h), else by
 * formulas from its data sheet
 *
 *   ns = max(FLOPs / (peak * reach * efficiency of the shape), bytes / bandwidth)
 *        + kernels * launch
 *
 * What an op multiplies and moves is the catalogue's (op_flops, op_bytes); the shapes of its matrix
 * products are those of its operands.
 *
 * On a GPU kernels are queued: ns is the GPU's, and issue_ns is the host's, which issues ops one
 * after the other, meanwhile. On a CPU the host executes an op itself: ns has its host_op, and
 * issue_ns is 0.
 */
#ifndef PLAN_PRICE_H
#define PLAN_PRICE_H

#include "config/cluster.h"
#include "config/job.h"
#include "ops/ops.h"
#include "plan/collective_cost.h"
#include "plan/price_table.h"

/* What the table of a step's time counts an op with. */
enum price_class {
    PRICE_PRODUCT,
    PRICE_ATTENTION,
    PRICE_MEMORY,   /* bound by memory */
    PRICE_UPDATE,   /* of the optimizer */
    PRICE_EXCHANGE, /* collectives, transfers, copies to the host */
    N_PRICE_CLASSES
};
enum price_class price_class_of(enum op_kind kind);

/* What an op would have to have more of to be faster, by the formulas. */
enum price_bound {
    BOUND_FLOPS,
    BOUND_BYTES, /* of the memory of what computes it */
    BOUND_ISSUE, /* of the host, or the launch of kernels */
    BOUND_LINK,  /* between ranks, or to the host */
    N_PRICE_BOUNDS
};

struct price {
    int64_t ns;
    int64_t issue_ns; /* of the host */
    enum price_source source;
    enum price_bound bound;
};

/* "flops", "formula". */
const char *price_bound_name(enum price_bound bound);
const char *price_source_name(enum price_source source);

struct prices {
    const struct cluster *cluster;
    int island;
    int n_computing;      /* ranks of a node; 0: one */
    double busy;          /* share of a step in which a rank computes; 0: all of it */
    bool has_graphs;      /* ops are issued by recorded graphs */
    int node_ranks;       /* neighbouring ranks within which sums, and on CPUs gathers, go by node
                       (job_node_ranks); 0: all ranks at once */
    bool fast_reductions; /* libraries add, in their order; else data is moved, then added */
    /* memory.link, of ranks on CPUs, and memory.file_link; 0: as fast as the cluster's link to the
     * host, and its storage. */
    double link_rate, file_rate;
};

/* Those of a job's steps: all ranks of a node compute, and sums go as run has them. */
struct prices prices_of_job(const struct job *job, const struct cluster *cluster);

/*
 * Of an op that is no collective: a kernel, a copy between the memories of device and host, or an
 * await, which takes no time. The device has a peak of some format and a bandwidth.
 */
struct price price_op(const struct prices *prices, const struct op_shape *op);

/* The same of a copy to a file (is_out) or from it: by the slower of link and disk. */
struct price price_file_copy(const struct prices *prices, const struct op_shape *op, bool is_out);

/* The same of a host op (program/program.h): beside a GPU by the bytes that it moves in the host's
 * memory; where ranks are on cores as any other. */
struct price price_host_op(const struct prices *prices, const struct op_shape *op);

/* On a CPU: for how long the threads that compute it have a core, which others on the machine
 * hardly change; as price_op's where that was not measured. */
int64_t price_op_cpu(const struct prices *prices, const struct op_shape *op);

/* The group of a rank over an axis: collective_group, with its members of prices->node_ranks. */
struct group_shape price_group(const struct prices *prices, const struct mesh *mesh, int world_rank,
                               enum mesh_axis axis);

/* Of a collective over this group, as run executes it: moves, and adds where it adds itself. */
struct price price_collective(const struct prices *prices, const struct group_shape *group,
                              const struct op_shape *op);

/* Bytes that a rank of a group of n gets of the others in a collective, as a ring carries them; of
 * a transfer those of the message. */
int64_t price_link_bytes(const struct op_shape *op, int n);

/*
 * What a collective takes longer because its ranks have computed for so long since they last met,
 * and come one after the other: those that come first sleep between asking for the others
 * (comm/pause.h). Nothing, where that was not measured.
 */
#define PRICE_APART_NS ((int64_t)1000000) /* some per cent of it is more than polling lasts */
int64_t price_lateness(const struct prices *prices, int64_t apart_ns);

/* What a collective takes longer that travels while its ranks compute: on CPUs their comm threads
 * have no core of their own. Slices count it where gradients are summed over ranks, too. Nothing,
 * where that was not measured. */
int64_t price_beside(const struct prices *prices);

/* Of a message between world ranks. n_sharing: ranks of the node that send at once. */
struct price price_transfer(const struct prices *prices, int from, int to, int64_t n_bytes,
                            int n_sharing);

#endif
