/*
 * run.h - executes a program on this rank
 *
 * Creating a run allocates every segment at its planned size, resolves every operand to an address,
 * once for each function and set of slots, and prepares the kernels. Running an entry then walks
 * arrays: no allocation, no lookup, no decision. Ops of the compute stream run on the thread pool
 * of the kernels; host ops (program.h) on the host's in any case; collectives are enqueued on the
 * rank's comm thread, and the first op that accesses one of their operands waits for them.
 *
 * A run is used by one thread.
 */
#ifndef RUN_RUN_H
#define RUN_RUN_H

#include <stdbool.h>

#include "comm/comm.h"
#include "comm/worker.h"
#include "kernels/kernels.h"
#include "program/program.h"
#include "progress/progress.h"

struct run;

struct run_options {
    const struct program *program; /* placed and verified; outlives the run */
    const struct program *shorter; /* [n_shorter]: programs of shorter micro-batches, placed
                                      within program (place_within) */
    int n_shorter;
    struct kernels *kernels;
    struct pool *pool;              /* the host's threads, for host ops where the kernels are a
                                       GPU's; else NULL will do */
    struct comm *comm;              /* may be NULL if the mesh has one rank */
    int first_rank;                 /* the comm rank of the mesh's rank 0; the others
                                       follow */
    struct worker *worker;          /* the comm thread; likewise. On the CPU it copies between
                                       spaces, too; without one run makes a thread for that */
    struct progress_slot *progress; /* NULL: not monitored */
    int poison;                     /* fill values with NaN after their last use */
    int timed;                      /* ops can be timed: run_set_timed */
    int node_ranks; /* neighbouring ranks of a node, within which collectives go by node
                       (collective.h); 0: none do. Scratch was sized for that */
    int fast; /* reductions are computed by comm (comm_enqueue_sum); scratch was sized for that */

    const char *file_folder; /* where this rank's file is to be; NULL: the program needs none */
    /* Rates of copies out of the device's memory, and into it, each; 0: no limit. Of a rank on a
     * CPU: a GPU's link is real. What goes to the file or comes from there takes the lower one. */
    double link_bytes_per_s, file_bytes_per_s;
};

/* Bytes of the buffers through which a program's copies to and from its file go, in host memory. */
size_t run_file_buffer_bytes(const struct program *program);

/*
 * Called before run_create, and before the planned memory is compared with the free memory:
 * lets the kernels' libraries select algorithms for the program's ops and allocate their own memory
 * (kernels_prepare_early). A no-op on the CPU. Returns 0, or -1 and a kernel's error.
 */
int run_reserve(const struct program *program, struct kernels *kernels,
                struct progress_slot *progress, struct err *err);

/*
 * Collective over the mesh (it creates groups). Returns 0, or -1 and ERR_DEVICE (memory, kernels)
 * or ERR_PEER.
 */
int run_create(struct run **run, const struct run_options *options, struct err *err);

/* Waits for collectives that an error left in flight; the worker must still exist. */
void run_destroy(struct run *run);

/* The device that holds the values: that of the kernels. */
struct device *run_device(const struct run *run);

/* Whether values lie in a file: then what the host reads and writes, also on a CPU, goes by run_get
 * and run_put, as their addresses may be the file's. */
bool run_has_file(const struct run *run);

/*
 * Address of a value; for inputs and stash values of the micro-batch's slot; for a local shard this
 * rank's shard. Valid while the run lives; a device address, which the host cannot read on a
 * GPU, or one of the file (file_tier.h), which is no memory.
 */
void *run_data(const struct run *run, int value, int micro_batch);

/*
 * Copy n_bytes into or out of a value, from byte `offset` on, in stream order: later ops see a put,
 * and a get waits for all earlier ops. data may be reused
 * on return. run_get returns 0, or -1 and ERR_DEVICE: the first failure of an earlier op or put.
 */
void run_put(struct run *run, int value, int micro_batch, size_t offset, const void *data,
             size_t n_bytes);
int run_get(struct run *run, int value, int micro_batch, size_t offset, void *data, size_t n_bytes,
            struct err *err);

/* The same with an address within a value (from run_data). */
void run_put_at(struct run *run, void *address, const void *data, size_t n_bytes);
int run_get_at(struct run *run, void *data, const void *address, size_t n_bytes, struct err *err);

/* Zero n_bytes at an address within a value. */
void run_clear_at(struct run *run, void *address, size_t n_bytes);

/* run_get_at for addresses of the file, in any thread, while nothing writes there. */
int run_read_file(const struct run *run, void *data, const void *address, size_t n_bytes,
                  struct err *err);

/* Several small gets with one synchronisation; pieces with value 0 are skipped. */
struct run_piece {
    int value;
    void *data;
    size_t n_bytes;
};
int run_get_all(struct run *run, const struct run_piece *pieces, int n, struct err *err);

/* Heartbeat for work outside of entries. */
void run_beat(struct run *run);

/* Callbacks of an entry while it runs. Each may be NULL. */
struct run_hooks {
    void *context;
    /* Fill the input cells with this micro-batch. */
    int (*load)(void *context, int micro_batch, struct err *err);
    /* Parameters are about to change: wait for readers (an asynchronous save). */
    int (*gate)(void *context, struct err *err);
    /* The gradient norm is known, the parameters are as they were: the host may set skip_update. */
    int (*decide)(void *context, struct err *err);
    /* The program of the micro-batch: 0 options.program, i shorter[i - 1]; the same until the
     * entry ends, and on all ranks. NULL: 0. */
    int (*choose)(void *context, int micro_batch);
};

/*
 * What a compute op read that was given to it (by a collective, from another memory), and what it
 * wrote, as hashes; two runs of one function on equal inputs have equal records.
 */
struct op_hash {
    uint64_t in, out; /* in: 0 if nothing was given to it */
    const char *text; /* "linear layers.1"; the run's */
};
struct op_hashes {
    struct op_hash *list; /* on the heap; run_hashes_release */
    int n, capacity;
};

/*
 * While they are given, each compute op that an entry runs for its first micro-batch is appended to
 * *micro_batch, and each that it runs for none (gather, update), and whose outputs are the same on
 * all ranks of the axis, to *update. NULL: neither. Each op is awaited, and none is a part of a
 * CUDA graph; no bit of a result changes. Results of a GPU are copied to the host to be hashed.
 */
void run_hash_ops(struct run *run, struct op_hashes *micro_batch, struct op_hashes *update,
                  enum mesh_axis axis);
/*
 * Where an async op (a collective) is given that reads this value: n_bytes from `offset` on are
 * copied to data first. One at a time; NULL: none.
 */
struct run_capture {
    int value;
    size_t offset, n_bytes;
    void *data;
    int is_done; /* set */
};
void run_capture_input(struct run *run, struct run_capture *capture);

/*
 * Called before and after each compute op of the kind that reads this value, or its home, while
 * ops are hashed: op has its operands, text is that of its hash. They return 0, or -1 and an error,
 * which ends the entry. One at a time; NULL: none.
 */
struct run_probe {
    enum op_kind kind;
    int value; /* 0: each compute op, of any kind */
    void *context;
    int (*before)(void *context, const struct op_shape *op, const char *text, struct err *err);
    int (*after)(void *context, struct err *err);
};
void run_probe_op(struct run *run, const struct run_probe *probe);

uint64_t run_hashes_digest(const struct op_hashes *hashes);
void run_hashes_release(struct op_hashes *hashes);

/*
 * Run all actions of an entry. On return everything has completed, including collectives, but
 * kernels on a GPU may still run; run_get waits for them. first: for entries of one micro-batch
 * (evaluate), 1 overwrites accumulators, 0 adds to them. Returns 0, or -1 and the error of a hook
 * or a collective; the run must not be used then.
 */
int run_entry(struct run *run, enum entry_kind entry, int first, const struct run_hooks *hooks,
              struct err *err);

/*
 * Needs options.timed: from now on ops are timed (1), or not (0, as after run_create). On a GPU
 * timing synchronises around each compute op and disables CUDA graphs, so that entries are slower
 * than in training. Call it between entries.
 */
void run_set_timed(struct run *run, int timed);

/*
 * Total seconds of the timed executions of an op since the start or the last
 * run_clear_times, over all slots: for a compute op in its kernel, for a collective on its queue or
 * (timed or not) on the comm thread. run_op_cpu_seconds: of a compute op on a CPU, the time that
 * its threads had a core, which others on the machine hardly change. run_wait_seconds: total time
 * that this thread has waited for collectives, timed or not. Call between entries.
 */
double run_op_seconds(const struct run *run, int function, int op);
double run_op_cpu_seconds(const struct run *run, int function, int op);
double run_wait_seconds(const struct run *run);

/*
 * What was waited for since the last step (ENTRY_STEP, or ENTRY_UNCOMPRESSED) began: a kind of
 * collective over an axis;
 * of copies between memories the axis means nothing. On a GPU the host waits for what it gives to
 * a thread alone, and what compute kernels wait for is in a trace.
 */
struct run_exposed {
    enum op_kind kind;
    enum mesh_axis axis;
    double seconds;
};
void run_sort_exposed(struct run_exposed *list, int n); /* the longest first */

/* "reduce_scatter dp"; returns text. */
const char *run_exposed_text(const struct run_exposed *exposed, char *text, size_t size);

/*
 * Seconds of compute ops by kind, in steps of a rank on a CPU (ENTRY_STEP, ENTRY_UNCOMPRESSED, with
 * what is run again of them) since the last call, which ends with it. Two readings of the clock an
 * op are 1 % of a step of 2 ms, so that one step in seven is timed, from the second one on. Nothing
 * of a GPU, whose queues would have to be waited for (run_trace.h times them). Call between
 * entries.
 */
struct run_op_times {
    int n_steps;
    double seconds[N_OP_KINDS];
};
struct run_op_times run_take_op_times(struct run *run);

/* All that is more than 0, sorted. Returns how many, at most capacity. */
int run_list_exposed(const struct run *run, struct run_exposed *list, int capacity);

void run_clear_times(struct run *run);

/*
 * A rank's own time: what the steps (ENTRY_STEP, ENTRY_UNCOMPRESSED) take it without waiting for
 * other ranks, for comparing ranks (train/stragglers.h). Measured from a call of
 * run_set_measured(run, true) on, between entries, until one with false. On a GPU by a pair of
 * events around each wait of the compute queue, which itself waits for nothing more than before;
 * ops and graphs are unchanged. Returns 0, or -1 and ERR_DEVICE: no events.
 */
int run_set_measured(struct run *run, bool is_measured, struct err *err);

/*
 * What was measured since the last call, which ends with it. To be called after a run_get, which
 * has waited for the device.
 */
struct run_own_time {
    int n_steps;
    double seconds;      /* own time */
    double idle_seconds; /* of it: on the host, without a core for this thread */
};
struct run_own_time run_take_own_time(struct run *run);

/* Scratch of an op, for program_size_scratch: the kernels' own, and run's for collectives. */
struct run_scratch {
    struct kernels *kernels; /* NULL: only collectives */
    struct mesh mesh;
    int fast;       /* run_options' */
    int node_ranks; /* likewise */
};
size_t run_scratch_bytes(void *context, const struct op_shape *shape);

#endif
