/*
 * preflight.h - whether hosts, devices and links are fit, before a run
 *
 * All ranks compute products whose bits are known, write and read memory, and measure what memory,
 * disks and links reach; all gather the figures of all. What is wrong, and what is slow beside the
 * median of its kind, is then a pure function of them (preflight_judge), so that ranks agree.
 *
 * The product: small integers, whose sums are exact in fp32 in any order, are compared with a
 * reference in integers; and chains of products of normals, each of which takes the one before as
 * its operand, have one hash on all ranks with the same kernels and in all repetitions. The
 * majority decides. Hochschild et al., "Cores that don't count" (HotOS 2021), have such faults.
 */
#ifndef TRAIN_PREFLIGHT_H
#define TRAIN_PREFLIGHT_H

#include "base/str.h"
#include "config/job.h"
#include "launch/excluded.h"
#include "train/engine.h"

struct preflight_request {
    bool is_full;
    double min_ratio;   /* of the median, below which a product is slow */
    double seconds;     /* of the product; 0: 2, full 60 */
    enum dtype dtype;   /* of the product */
    const char *output; /* folder of the job's output, which need not exist */
};

/* What a check measures. */
enum preflight_what {
    PREFLIGHT_PRODUCT,    /* FLOP/s, of a thread on CPUs */
    PREFLIGHT_MEMORY,     /* bytes/s */
    PREFLIGHT_DISK_WRITE, /* bytes/s; of the first rank of a node, as all below */
    PREFLIGHT_DISK_READ,
    PREFLIGHT_NODE, /* bytes/s of an all-reduce among the ranks of a node, by each link */
    PREFLIGHT_LINK, /* bytes/s with the best of the other nodes, the slower direction */
    PREFLIGHT_N_WHATS
};

/* How a device, or memory, erred; 0 of all: not at all. */
struct preflight_errors {
    int64_t n_exact;      /* elements of the exact product that are wrong */
    int64_t exact_at;     /* the first: its index in the result */
    uint32_t exact_bits;  /* of it that differ */
    int32_t n_differing;  /* repetitions with another hash than most */
    uint64_t n_memory;    /* words of memory that are wrong */
    uint64_t memory_at;   /* the first: its offset in bytes, */
    uint64_t memory_bits; /* and its bits that differ */
    int32_t n_disk;       /* bytes of the file that are not what was written, in pieces */
    int32_t is_device_memory;
};

/* Of a rank, as it is sent. */
struct preflight_rank {
    char host[LAUNCH_HOST_BYTES], device[96], pci[32];
    uint64_t kernels; /* hash of their identity: the bits of equal ones are equal */
    uint64_t kind;    /* hash of device and kernels: the speeds of equal ones compare */
    int32_t local_rank, local_size, n_threads;
    int32_t node; /* the world rank of its node's first rank */
    int32_t n_repetitions;
    uint64_t hash; /* of most repetitions */
    struct preflight_errors errors;
    double speed[PREFLIGHT_N_WHATS]; /* 0: not measured */
    double link_seconds;             /* latency: of a small message, one way; 0: not measured */
    uint64_t tested_bytes;           /* of memory */
    int32_t signal;                  /* that asked the rank to stop, 0: none */
};

/* From one node's first rank to another's. */
struct preflight_pair {
    int32_t from, to;
    double bytes_per_second, seconds; /* seconds: latency */
};

enum preflight_fault {
    PREFLIGHT_OK,
    PREFLIGHT_SLOW,
    PREFLIGHT_SUSPECT, /* its bits differ from other ranks', and no majority decides */
    PREFLIGHT_WRONG,
};

struct preflight_finding {
    enum preflight_fault fault;
    int rank;
    enum preflight_what what; /* of slow */
    const char *text;         /* "rank 3 on b (cpu): the product runs at ..." */
};

struct preflight {
    int n_ranks, n_pairs, n_findings;
    struct preflight_rank *ranks;
    struct preflight_pair *pairs;
    struct preflight_finding *findings;   /* the worst first */
    double pair_median;                   /* bytes/s; 0: there are none */
    double min_ratio;                     /* that it is judged by */
    double (*medians)[PREFLIGHT_N_WHATS]; /* [n_ranks]: of each rank's kind; 0: not measured */
    enum preflight_fault worst;
    int signal; /* that stopped the check, 0: none */
    double seconds;
};

/*
 * Collective over the engine's ranks. All of them get the same, in the arena; device memory is
 * free again. Rank 0 shows a line on standard error meanwhile. A signal to any rank
 * (train/signals.h) ends it early: then no rank is judged, and signal is set. Returns 0, or -1 and
 * ERR_DEVICE or ERR_PEER; if one rank fails others may wait for it, and the caller must abort the
 * job.
 */
int preflight_run(struct preflight *preflight, const struct preflight_request *request,
                  struct engine *engine, struct arena *arena, struct err *err);

/* *failed becomes whether any rank has it. Collective. Returns 0, or -1 and ERR_PEER. */
int preflight_agree(struct engine *engine, int *failed, struct err *err);

/* Fill medians from ranks. Of two figures the larger one is the median: half may be slow. */
void preflight_take_medians(struct preflight *preflight, struct arena *arena);

/* Fill medians, findings and worst from ranks and pairs. */
void preflight_judge(struct preflight *preflight, double min_ratio, struct arena *arena);

/*
 * Whether a pair's bandwidth is below half of min_ratio times the median of all pairs. It is
 * reported, but no fault of a host, each of which is judged by its best partner.
 */
bool preflight_pair_is_slow(const struct preflight *preflight, int pair, double min_ratio);

/* Whether the rank's figure is below what its kind's median, which was taken, allows. */
bool preflight_is_slow(const struct preflight *preflight, int rank, enum preflight_what what,
                       double min_ratio);

/* The worst of this rank. */
enum preflight_fault preflight_fault_of(const struct preflight *preflight, int rank);

/* Append a table for people, whose ranks are all, or, of many, those with findings; the median;
 * findings. */
void preflight_print(const struct preflight *preflight, struct str *out);
void preflight_print_json(const struct preflight *preflight, struct str *out);

/* "4 ranks on 2 hosts: no fault; ..." in a line. */
void preflight_print_summary(const struct preflight *preflight, struct str *out);

#endif
