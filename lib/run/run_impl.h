/*
 * run_impl.h - a program resolved to addresses: what resolve.c makes and executor.c walks
 */
#ifndef RUN_RUN_IMPL_H
#define RUN_RUN_IMPL_H

#include "program/order.h"
#include "run/collective.h"
#include "run/copy.h"
#include "run/file_copy.h"
#include "run/memory.h"
#include "run/run.h"
#include "run/run_trace.h"
#include "run/traffic.h"

/* Memory to poison once the op before has run. */
struct dead_range {
    void *data;
    size_t n_bytes;
};

struct resolved_op {
    struct kernel_call call; /* of a given op the operands alone */
    union {
        struct stream_op stream_op; /* of a given op, and as what it is */
        struct collective collective;
        struct copy copy;
        struct file_copy file_copy;
    };
    enum first_mode first;
    int always; /* outputs that start over in every micro-batch, by bits */
    enum stream stream;
    uint64_t ticket;   /* of a given op: when it was last posted */
    uint64_t position; /* and this rank's position then (progress/progress.h) */
    bool is_async;
    bool is_on_host;  /* a host op beside a GPU: this thread does it, when all before it is done */
    bool is_posted;   /* given to the comm thread, not to a queue */
    const int *users; /* of what it touches: indices in those of the run */
    int n_users;
    const struct dead_range *dead;
    int n_dead;
    int layer;
    int traced, traced_index; /* 1 + the action and the index it was posted by; 0: no record is
                                 owed */
    double seconds;           /* a compute op's runs, where they are timed */
    double cpu_seconds;       /* of these, the host's threads' time on the CPU */
    char text[PROGRESS_TEXT_BYTES]; /* for who watches */
};

/*
 * Compute ops one after the other, of which at most the first waits for given ones: where the
 * device records work, they are given to it as a whole from the second time on.
 */
struct op_range {
    int begin, end;
    bool has_run[2];                /* [first] */
    struct device_graph *graphs[2]; /* likewise */
};

/* A function bound to slots. */
struct resolved_function {
    struct resolved_op *ops;
    int n_ops;
    struct op_range *ranges; /* of graphs; NULL where there are none */
    int n_ranges;
    unsigned drains; /* order.h */
};

/* One for each set of slots that its micro-batches come by (order.h). */
struct variants {
    struct resolved_function *list;
    int n;
    struct order_variants by;
};

/* Pinned memory between the host and a GPU (transfer.c): two halves for what goes there, and a
 * piece for what comes back. All NULL on the host. */
struct pinned_staging {
    unsigned char *up[2], *down;
    struct device_event *events[2]; /* when what was in a half has gone */
    bool is_recorded[2];
    int half;
    size_t used; /* of the half */
};

/* Of a stream of copies. */
enum { N_COPY_LANES = 2 };
struct copy_lane {
    struct throttle throttle;
    struct file_lane file; /* zeroed where there is no file */
};

/* own_time.c. On a GPU events[0] and events[1] stand at a step's begin and end, further ones around
 * waits. */
struct own_time {
    bool is_on, is_within;             /* a step */
    double begin, begin_cpu;           /* of it */
    double wait_begin, wait_begin_cpu; /* of the wait at hand */
    double waited, waited_cpu;         /* in it */
    struct run_own_time total;         /* of steps so far */
    struct device_event **events;      /* [n_events]; NULL on the host */
    int n_events, n_used;              /* of the step at hand, or the last one */
    bool is_untold, is_full;           /* likewise: total lacks it; there were too few */
};

struct run {
    struct run_options options;
    struct device *device;
    struct kernels *host_kernels; /* of host ops beside a GPU; NULL: there are none */
    struct pinned_staging transfer;
    struct device_event *begin, *end; /* of an op that is timed */
    const struct program *program;
    const struct program *resolving; /* resolve's: the one at hand */
    struct run_memory memory;
    struct copy_lane lanes[N_COPY_LANES]; /* of copy_out, copy_in */
    struct err put_error;                 /* the first of a put to the file; ERR_NONE: none */
    struct arena arena;
    struct variants *functions;                         /* [1 + n_shorter][n_functions] */
    struct comm_group *groups[N_GROUP_AXES][N_STREAMS]; /* by order_group_of; those that are used */
    struct collective_nodes nodes[N_GROUP_AXES][N_STREAMS]; /* likewise; where any goes by node */
    struct progress_meeting meetings[N_GROUP_AXES];         /* the same groups, for who watches */
    int coordinate[N_GROUP_AXES];                           /* of this rank in the mesh */
    struct order order;                        /* of program, and so of the shorter ones */
    struct resolved_op **users;                /* its: the op given last, or NULL */
    struct resolved_op *last_given[N_STREAMS]; /* NULL before the first */
    struct worker *worker; /* of the options, or its own; NULL: nothing is given to one */
    bool owns_worker;
    int enqueues;             /* what is given: traffic.h */
    void *staging[N_STREAMS]; /* of the streams, where values lie on a device */
    size_t staging_bytes[N_STREAMS];
    struct progress_slot *progress;
    bool is_timed;           /* run_set_timed */
    struct run_trace *trace; /* run_set_trace; NULL: none */
    bool is_one_by_one;      /* one_by_one.h */
    double wait_seconds;
    double exposed[N_OP_KINDS][N_GROUP_AXES]; /* since the last step began */
    struct run_op_times op_times;             /* run_take_op_times */
    bool is_step_timed;                       /* of the entry at hand, for op_times */
    int64_t n_stepped;
    struct op_hashing *hashing;    /* op_hashes.c; NULL before the first use */
    struct op_hashes *hashes;      /* of the action at hand; NULL: its ops are not hashed */
    bool is_recheck;               /* the entry at hand is */
    struct run_capture *capture;   /* run_capture_input */
    const struct run_probe *probe; /* run_probe_op */
    struct own_time own;
};

/* program: 0, or 1 + the index of a shorter one */
static inline struct resolved_function *resolved(const struct run *run, int program, int function,
                                                 int micro_batch)
{
    const struct variants *variants =
        &run->functions[program * run->program->n_functions + function];

    return &variants->list[order_variant(&variants->by, micro_batch)];
}

/* Those that compute the op. */
static inline struct kernels *run_kernels_of(const struct run *run, const struct resolved_op *op)
{
    return op->is_on_host ? run->host_kernels : run->options.kernels;
}

/*
 * run_trace.c, nothing where there is no trace. An entry begins and ends: 0, or -1 and the device's
 * failure. In between, of the action at hand:
 *   begin, finish: around an op, or what the queue waits for, wherever this thread or the queue
 *     does it;
 *   wait: this thread waited for an op, between these times;
 *   host: it did a host op beside a GPU, between these times;
 *   post, done: an op was given to the comm thread, and is known to be done.
 */
int run_trace_start(struct run *run, struct err *err);
int run_trace_end(struct run *run, struct err *err);
void run_trace_begin(struct run *run, int queue);
void run_trace_finish(struct run *run, int op, enum stream stream, int queue);
void run_trace_finish_wait(struct run *run, const struct resolved_op *op, int queue);
void run_trace_wait(struct run *run, const struct resolved_op *op, double begin, double end);
void run_trace_host(struct run *run, int op, double begin, double end);
void run_trace_post(struct run *run, struct resolved_op *op, int index);
void run_trace_done(struct run *run, struct resolved_op *op);

/*
 * op_hashes.c: what the action's ops are hashed into, NULL for nothing; and a compute op by itself,
 * hashed into run->hashes (if there is such); flips: for faults, a bit of what it writes is
 * flipped. 0, or -1 and the device's failure.
 */
struct op_hashes *op_hashes_of(const struct run *run, const struct action *action);
int op_hashes_run(struct run *run, const struct resolved_op *op, const struct op *source, int first,
                  bool flips, struct err *err);
void op_hashes_close(struct run *run);

/* The op is about to be given: copy what is to be captured. */
bool op_hashes_captures(const struct run *run, const struct op *source);
int op_hashes_capture(struct run *run, const struct resolved_op *op, struct err *err);

/* exposed.c: a step begins, of which ops are timed or not. */
void run_choose_timed(struct run *run);

/* own_time.c, nothing where steps are not measured: a step begins and ends; and within one what is
 * no own time, by this thread or by what it makes the compute queue wait for. */
void own_time_begin(struct run *run, enum entry_kind entry);
void own_time_end(struct run *run);
void own_time_leave(struct run *run);
void own_time_return(struct run *run);
void own_time_release(struct run *run);

/* groups.c: collective over the mesh, fills run->groups, meetings and coordinate. 0, or -1 and
 * ERR_PEER. */
int run_make_groups(struct run *run, struct err *err);

/*
 * copies.c. Whether copies are the comm thread's, and a thread of the run's own for them. Create:
 * 0, or -1 and ERR_DEVICE; released in either case, after what was given is done. Resolve: out,
 * which has its operands, is the copy `op`.
 */
bool copies_are_posted(const struct run *run);
int copies_start_worker(struct run *run, struct err *err);
int copies_create(struct run *run, struct err *err);
void copies_release(struct run *run);
void copies_resolve(struct run *run, const struct op *op, struct resolved_op *out);

/* Returns 0, or -1 and ERR_DEVICE; released in either case. */
int transfer_create(struct run *run, struct err *err);
void transfer_release(struct run *run);
/* The first failure of a put. 0, or -1. */
int transfer_check(const struct run *run, struct err *err);

/*
 * beside[i]: for a compute op of the function, the multiprocessors that given ops take meanwhile
 * where they are enqueued, from where they are given to where they are known to be done
 * (order_completion).
 */
void run_find_beside(const struct program *program, int function, const int *completed_at,
                     int *beside);

/* Fill run->functions. Returns 0, or -1 and a kernel's error. */
int resolve(struct run *run, struct err *err);
void resolve_release(struct run *run);

#endif
