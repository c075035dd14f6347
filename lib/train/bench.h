/*
 * bench.h - how long a job's step takes on this machine, op by op
 *
 * The job's own program is compiled, run and timed by the executor that training uses, on random
 * tokens: no dataset is opened, nothing is written, the learning rate is 0. Steps are measured as
 * they train, with graphs and overlap, and then again with each op timed by itself.
 */
#ifndef TRAIN_BENCH_H
#define TRAIN_BENCH_H

#include "config/job.h"
#include "program/program.h"
#include "run/run.h"
#include "train/engine.h"
#include "train/machine_peak.h"

/* An op of the step, by its place in the program: functions[function].ops[op]. */
struct bench_op {
    int function, op;
    int n_runs; /* in a step: micro-batches */
    struct op_shape shape;
    double seconds;       /* of a step: all its runs; the median of the timed steps */
    double cpu_seconds;   /* the same, that its threads had a core; 0 on a GPU */
    double flops, bytes;  /* of a step */
    double light_seconds; /* of a step, at the speed of light */
};

#define BENCH_MAX_EXPOSED 32 /* kinds of collectives, each over its axes */

struct bench {
    struct program program;
    struct machine_peak ceiling;
    double peak_flops;    /* of all ranks together (peak.h); of one: ceiling.flops */
    struct bench_op *ops; /* those of the step, in the program's order */
    int n_ops;
    int64_t tokens;        /* of a step, all ranks */
    double first_seconds;  /* the first step, which touches the memory */
    double *step_seconds;  /* [n_steps] as in training, in order */
    double *cpu_seconds;   /* [n_steps] of these, that this rank's compute threads had a core */
    double *timed_seconds; /* [n_steps] of those whose ops are timed */
    int n_steps;
    double wait_seconds; /* of a step as in training, for collectives; median */
    struct run_exposed exposed[BENCH_MAX_EXPOSED]; /* of it, the longest first; means */
    int n_exposed;
    struct bench_exposed_row {
        enum op_kind kind;
        enum mesh_axis axis;
        double *seconds; /* [world_size] of each rank */
    } * exposed_rows;    /* of all ranks, by bench_gather_exposed */
    int n_exposed_rows;
    struct arena arena;
};

/*
 * Compile, run one step and n_warm more, then n_steps (at least 1), and n_steps with their ops
 * timed. Collective over the job's ranks; each measures itself. Returns 0, or -1 and ERR_DEVICE or
 * ERR_PEER; *bench is then empty. Ranks agree on nothing: if one fails, others may wait for it, and
 * the caller must abort the job.
 */
int bench_run(struct bench *bench, const struct job *job, struct engine *engine, int n_warm,
              int n_steps, struct err *err);
void bench_release(struct bench *bench);

/* After bench_run: what each rank's steps waited for, on all ranks; nothing of one rank. Collective
 * over the job's ranks. Returns 0, or -1 and ERR_PEER. */
int bench_gather_exposed(struct bench *bench, struct engine *engine, struct err *err);

/* Of n > 0 numbers, which get sorted. */
double bench_median(double *numbers, int n);

/* ---- collectives ---- */

/* Where a job's ranks lie: nodes with as many each, whose ranks are neighbours. */
struct bench_nodes {
    int n, per_node;
};

/* Collective over the job's ranks. Returns 0, or -1 and ERR_CONFIG (they lie otherwise) or
 * ERR_PEER, on all ranks. */
int bench_find_nodes(struct bench_nodes *nodes, struct engine *engine, struct err *err);

/* One kind of collective, of one size, over the first per_node ranks of each of n_nodes nodes. */
struct bench_collective {
    enum op_kind kind;
    int n_ranks, per_node, n_nodes; /* n_ranks: of all of them */
    size_t n_bytes;                 /* of the whole: what is gathered, or what each rank sums */
    double best_seconds, seconds;   /* from the last rank's coming to the last one's end; median */
    double quiet_seconds;           /* of the lower quartile: others on the machine hardly count */
    double bus_bytes_per_second;    /* by the best: what each rank's link carries, as NCCL counts */
};

/*
 * all_gather, reduce_scatter, all_reduce and all_reduce_scalar as the executor runs them, over 1,
 * 2, 4, ... and all ranks of 1, 2, 4, ... and all nodes, for sizes of 4 KiB to max_bytes in steps
 * of 4; long ones in fewer rounds. Collective over the job's ranks, of which there must be 2; all
 * get the same list, in the arena, but of entries that a rank had no part in it has no figures:
 * rank 0 has all. Returns 0, or -1 and ERR_PEER or ERR_DEVICE; if one rank fails others may wait
 * for it, and the caller must abort the job.
 */
int bench_collectives(struct engine *engine, const struct bench_nodes *nodes, size_t max_bytes,
                      int n_rounds, struct bench_collective **list, int *n, struct arena *arena,
                      struct err *err);

/* ---- the rest of what a cluster is measured for (bench_impl.h) ---- */

/* What the host takes for an op, and for a step with its data, scalars and results. */
struct bench_host {
    double op_seconds, step_seconds;
};

/* Of one copy from the host to the device (on a CPU within memory), and of one file where the job
 * writes; 0: not measured. */
struct bench_links {
    double host_bytes_per_second;
    double read_bytes_per_second, write_bytes_per_second;
};

/* A message between two ranks, of one node or of two. */
struct bench_transfer {
    bool is_across;
    size_t n_bytes;
    double seconds; /* median */
};

/* What exchanges of a cluster's ranks take, but for collectives by size. */
struct bench_exchanges {
    struct bench_transfer *transfers;
    int n_transfers;
    double late_seconds;         /* that a collective takes longer if a rank comes late */
    double beside_seconds;       /* that a small one takes longer if ranks compute meanwhile */
    double nic_bytes_per_second; /* of a node, by one of its ranks or all; 0: one node */
    double overlap, overlap_nic; /* compute beside exchanges in and across nodes takes so much
                                    longer, as a share; below 0: there are none */
};

#endif
