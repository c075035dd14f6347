/*
 * cluster.h - the machines that a plan is for: devices, nodes, links, and what software costs
 *
 * A device is configs/devices/NAME.yaml (on disk, else in the binary), a cluster
 * configs/clusters/NAME.yaml. `lmtrain plan` prices
 * programs with it; nothing is measured here, and no device is needed.
 *
 * An island is a set of equal nodes. World ranks fill islands, their nodes, and the devices of a
 * node one after the other, so the ranks of a fast domain are neighbours.
 *
 * Times are whole nanoseconds, sizes bytes, rates bytes or FLOPs a second of one direction.
 */
#ifndef CONFIG_CLUSTER_H
#define CONFIG_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

/* Number formats of products. */
enum device_format {
    FORMAT_F32,
    FORMAT_TF32,
    FORMAT_F16,
    FORMAT_BF16,
    FORMAT_F8,
    FORMAT_F4,
    N_DEVICE_FORMATS
};
/* "fp32", "tf32", "fp16", "bf16", "fp8", "fp4" */
const char *device_format_name(enum device_format format);

struct device_spec {
    const char *name;              /* "h100-sxm" */
    bool is_cpu;                   /* ranks are processes on cores */
    bool is_planning_only;         /* lmtrain has no code for it */
    int64_t memory, reserve;       /* bytes; reserve: of memory, for the driver and libraries */
    int n_sms;                     /* multiprocessors, or compute units */
    double hbm;                    /* bytes a second, by the data sheet */
    double peak[N_DEVICE_FORMATS]; /* dense FLOP/s, by the data sheet; 0: has no such unit */
    /* Shares of the peak that a product alone reaches at sustained clocks, and within a step. */
    double kernel_reach[N_DEVICE_FORMATS], step_reach[N_DEVICE_FORMATS];
    /* The same of attention that never stores scores, at long sequences, and of its backward; 0:
     * not known. */
    double attention, attention_grad;
    /* Of the fast link (NVLink, xGMI): bus bandwidth of a ring in a node, of the link itself, and
     * latency of a collective; how many devices it joins. */
    double fast_bus, fast_link;
    int64_t fast_latency;
    int fast_domain;
    bool fast_over_nodes;       /* its domains are made of nodes (NVL72) */
    bool has_nvls;              /* switches add: all-reduces at 1.3 times the bus */
    double nic;                 /* of the NIC that nodes with it have for each */
    double nic_efficiency;      /* by the network's name; 0: not known */
    int64_t launch;             /* from kernel to kernel in a queue */
    double host_link;           /* PCIe or C2C, each direction */
    const char *const *sources; /* URLs */
    int n_sources;
};

struct cluster_island {
    int n_nodes, per_node; /* nodes; devices of a node */
    int fast_domain;       /* devices that the fast link joins; may span nodes (NVL72) */
    int n_nics;            /* of a node */
    double nic;            /* of one NIC, the line's rate */
    double nic_efficiency; /* share of the line that a step reaches */
    int64_t host_memory;   /* of a node */
    int n_cores;           /* of a node */
    double watts;          /* of a device with its share of the node; 0: not known */
    double price_per_hour; /* of a device, in any currency; 0: not known */
    const struct device_spec *device;
};

struct price_table;

struct cluster {
    const char *name;  /* by which it was read: of configs/clusters, or a path */
    const char *title; /* key name: what people call it; NULL: the file does not say */
    struct cluster_island *islands;
    int n_islands;
    struct {
        int64_t fast_latency; /* 0: the device's */
        double fast_bus;      /* 0: the device's */
        int64_t rail_latency;
        double rail_efficiency; /* of all islands; 0: each as its network */
        int64_t spine_latency;
        double oversubscription;
        int nodes_per_leaf; /* 0: one leaf */
        int64_t islands_latency;
        double islands_bandwidth; /* of a node; 0: the NICs' */
        double host_bandwidth;    /* 0: the device's host_link */
        int host_shared_by;
        double host_memory; /* that a rank's cores read and write in the host's memory */
        double storage_read, storage_write; /* of all nodes together; 0: not known */
    } links;
    struct {
        int64_t host_op, graph_op, nccl_op; /* the host's time to issue an op */
        int64_t constant;                   /* of a step: data, scalars, logging */
        double jitter;                      /* sigma of a rank's step, as a share of it */
        bool has_unfused_attention;         /* scores in memory: software before FlashAttention */
        double overlap_fast, overlap_nic;   /* kappa: compute is so much longer meanwhile */
    } software;
    /* By which products and attention of operands of this format take longer than by the formulas:
     * fitted from one measured step (`lmtrain plan --calibrate`). */
    double calibration[N_DEVICE_FORMATS];
    const char *tables; /* the path of measured times (plan/price_table.h); NULL: none */
    const struct price_table *table; /* they, once plan has read them; NULL: none */
    /* By which measured times of products and attention, of other ops, and of collectives are
     * divided, to see what other hardware would give; 0: 1. */
    struct {
        double products, memory, links;
    } faster;
    /* One rank of this pipeline stage takes so many times as long for all that it computes; 0:
     * none. */
    struct {
        int stage;
        double factor;
    } slow;
};

/*
 * The device of this name: of configs/devices, or a path (it has a '/'). Everything lives in the
 * arena. Returns 0, or -1 and ERR_CONFIG with the place of the first mistake; an unknown name lists
 * those there are.
 */
int device_read(struct device_spec *device, const char *name, struct arena *arena, struct err *err);

/*
 * The cluster of this name: of configs/clusters, or a path. Everything lives in the arena. Returns
 * 0, or -1 and ERR_CONFIG as device_read.
 */
int cluster_read(struct cluster *cluster, const char *name, struct arena *arena, struct err *err);

/* The first of its devices that lmtrain cannot run on, or NULL. */
const struct device_spec *cluster_planning_only(const struct cluster *cluster);

/* Whether its ranks are processes on cores. */
bool cluster_is_cpu(const struct cluster *cluster);

/* A cluster of n_devices of this device, in nodes of the fast link's domain with a NIC for each
 * device, under one leaf switch, its software's times those of this engine. */
void cluster_of_device(struct cluster *cluster, const struct device_spec *device, int n_devices,
                       struct arena *arena);

int cluster_n_devices(const struct cluster *cluster);

#endif
