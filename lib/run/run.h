/*
 * run.h - executes a program on this rank
 *
 * Creating a run allocates every segment at its planned size, resolves every operand to an address,
 * once for each function and set of slots, and prepares the kernels. Running an entry then walks
 * arrays: no allocation, no lookup, no decision. Ops of the compute stream run on the kernels'
 * pool; collectives go to the rank's one comm thread and are waited for by the first op that
 * touches what they touch.
 *
 * A run is used by one thread.
 */
#ifndef RUN_RUN_H
#define RUN_RUN_H

#include "comm/comm.h"
#include "comm/worker.h"
#include "kernels/kernels.h"
#include "launch/progress.h"
#include "program/program.h"

struct run;

struct run_options {
    const struct program *program; /* placed and verified; outlives the run */
    const struct program *shorter; /* [n_shorter]: others that micro-batches may be for, placed
                                      within program (place_within) */
    int n_shorter;
    struct kernels *kernels;
    struct comm *comm;              /* may be NULL where the mesh has one rank */
    int first_rank;                 /* which of comm's ranks is the first of the mesh's; the others
                                       follow it */
    struct worker *worker;          /* the comm thread; likewise, but on the CPU it copies between
                                       spaces, too */
    struct progress_slot *progress; /* NULL: nobody watches */
    int poison;                     /* fill values with NaN at their death */
    int timed;                      /* ops can be timed: run_set_timed */
    int fast; /* sums over ranks are comm's, which is one that enqueues them; scratch was sized so */
};

/*
 * Before a run of the placed program is created, and before its memory is compared with what is
 * free: have the kernels' libraries choose for its ops and take what they want for themselves
 * (kernels_prepare_early). Nothing to do for the CPU. Returns 0, or -1 and a kernel's error.
 */
int run_reserve(const struct program *program, struct kernels *kernels,
                struct progress_slot *progress, struct err *err);

/*
 * Collective over the mesh (groups are made). Returns 0, or -1 and ERR_DEVICE (memory, kernels) or
 * ERR_PEER.
 */
int run_create(struct run **run, const struct run_options *options, struct err *err);

/* Waits for collectives that an error left under way; the worker must still be there. */
void run_destroy(struct run *run);

/* Where the values lie: the kernels' device. */
struct device *run_device(const struct run *run);

/*
 * Memory of a value; of inputs and stash values that of the micro-batch's slot; of an own part this
 * rank's. Valid while the run lives; an address of the device, which on a GPU is not the host's to
 * read.
 */
void *run_data(const struct run *run, int value, int micro_batch);

/*
 * Copy into a value, or out of it, bytes from `offset` on. In the order of what is run: a put is
 * seen by what is run later, a get sees what was run before and waits for it. data is the caller's
 * again on return. run_get returns 0, or -1 and ERR_DEVICE: the first failure of what was run.
 */
void run_put(struct run *run, int value, int micro_batch, size_t offset, const void *data,
             size_t n_bytes);
int run_get(struct run *run, int value, int micro_batch, size_t offset, void *data, size_t n_bytes,
            struct err *err);

/* The same to an address that run_data gave, and on from there. */
void run_put_at(struct run *run, void *address, const void *data, size_t n_bytes);
int run_get_at(struct run *run, void *data, const void *address, size_t n_bytes, struct err *err);

/* Several small ones with one wait; those of value 0 are left out. */
struct run_piece {
    int value;
    void *data;
    size_t n_bytes;
};
int run_get_all(struct run *run, const struct run_piece *pieces, int n, struct err *err);

/* Tell who watches that what is done outside of entries goes on. */
void run_beat(struct run *run);

/* What an entry needs from outside while it runs. Each may be NULL. */
struct run_hooks {
    void *context;
    /* Fill the input cells with this micro-batch. */
    int (*load)(void *context, int micro_batch, struct err *err);
    /* Parameters are about to change: wait for who still reads them. */
    int (*gate)(void *context, struct err *err);
    /* Which program the micro-batch is for: 0 options.program, i shorter[i - 1]; the same until the
     * entry ends, and on all ranks. NULL: 0. */
    int (*choose)(void *context, int micro_batch);
};

/*
 * Run all actions of an entry: done on return, collectives included; a GPU's kernels may still be
 * under way, which run_get waits for. first: what accumulators do in
 * entries that are one micro-batch (evaluate): 1 starts them over. Returns 0, or -1 and the error
 * of a hook or a collective; the run must not be used then.
 */
int run_entry(struct run *run, enum entry_kind entry, int first, const struct run_hooks *hooks,
              struct err *err);

/*
 * Where options.timed was set: from now on ops are timed (1), or not (0, as after run_create). A GPU
 * is waited for around each compute op that is timed, and graphs are left aside, so that entries
 * take longer than in training. Between entries.
 */
void run_set_timed(struct run *run, int timed);

/*
 * The seconds that the timed runs of an op have taken in all since the start or the last
 * run_clear_times, whatever the slot; a compute op's in its kernel, a collective's on its queue or,
 * timed or not, on the comm thread. run_wait_seconds: how long this thread has waited for
 * collectives, timed or not. Between entries.
 */
double run_op_seconds(const struct run *run, int function, int op);
double run_wait_seconds(const struct run *run);
void run_clear_times(struct run *run);

/* Scratch of an op, for program_size_scratch: the kernels' own, and run's for collectives. */
struct run_scratch {
    struct kernels *kernels; /* NULL: only collectives */
    struct mesh mesh;
    int fast; /* run_options' */
};
size_t run_scratch_bytes(void *context, const struct op_shape *shape);

#endif
