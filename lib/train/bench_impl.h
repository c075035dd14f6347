/*
 * bench_impl.h - the step that is measured; which exchanges between ranks are, and how
 *
 * Exchanges are measured as the executor has them: given to the comm thread by the thread that
 * computes, which waits for them, and, on GPUs with NCCL, enqueued.
 */
#ifndef TRAIN_BENCH_IMPL_H
#define TRAIN_BENCH_IMPL_H

#include "run/collective.h"
#include "run/run.h"
#include "train/bench.h"

/* The job's step of this rank, which fits. Returns 0, or -1 and ERR_DEVICE; the caller releases the
 * program in either case. */
int bench_compile(struct program *program, const struct job *job, struct engine *engine,
                  struct err *err);

/* Steps of ranks that compute at the same time, each for itself: before its steps it meets the
 * others by this. As bench_run, but ops are not timed. */
struct bench_meeting {
    int (*meet)(void *context, struct err *err);
    void *context;
};
int bench_run_together(struct bench *bench, const struct job *job, struct engine *engine,
                       int n_steps, const struct bench_meeting *meeting, struct err *err);

/* How many steps those are: as many as take a second where one takes so many seconds alone, 10 to
 * 20; n_steps, if it is not 0, in the place of the 10, at least 5. */
int bench_steps_together(double seconds, int n_steps);

/* A run of bench's program, whose parameters are filled. Collective; errors as run_create's. */
int bench_open_run(struct run **run, const struct bench *bench, const struct job *job,
                   struct engine *engine, struct err *err);

/* ---- groups ---- */

/* Channels of groups, none of the programs' (axis by stream), the trainer's or the replicas'. */
enum bench_channel {
    BENCH_CHANNEL_WORLD = 2048,
    BENCH_CHANNEL_OVERLAP,
    BENCH_CHANNEL_PAIR = 2056,
    BENCH_CHANNEL_GROUPS = 2064,
    BENCH_CHANNEL_PREFLIGHT = 3072 /* its node's; then a pair's of each round */
};

/* What has room for the ranks of a group. */
#define BENCH_RANKS_MAX 4096

/* The group of these world ranks, NULL on others, on the comm thread; `world` NULL: it is that of
 * all. uses: enum comm_use. Collective over all ranks. Returns 0, or -1 and ERR_PEER. */
int bench_group_open(struct comm_group **group, struct engine *engine, struct comm_group *world,
                     const int *ranks, int n_ranks, int channel, unsigned uses, struct err *err);
int bench_group_open_world(struct comm_group **world, struct engine *engine, struct err *err);

/* The group moves nothing any more: what it took of the device's memory is free. May be NULL. */
int bench_group_close(struct engine *engine, struct comm_group *group, struct err *err);

/* Called by the thread that computes. */
int bench_barrier(struct engine *engine, struct comm_group *group, struct err *err);
/* The same where the others may take minutes: this rank shows that it is alive. */
int bench_await(struct engine *engine, struct comm_group *group, struct err *err);
int bench_largest(struct engine *engine, struct comm_group *group, double *number, struct err *err);

/* ---- operands ---- */

/* Memory of an exchange's operands: of the device, and, where they are staged, pinned. */
struct bench_operands {
    struct engine *engine;
    bool enqueues;
    unsigned char *data[2]; /* in, out */
    unsigned char *scratch;
    unsigned char *staging[2];
    struct device_event *given, *done;
};

/* Bytes of each. Returns 0, or -1 and ERR_DEVICE; it is to be closed in either case. */
int bench_operands_open(struct bench_operands *operands, struct engine *engine, size_t data_bytes,
                        size_t scratch_bytes, struct err *err);
void bench_operands_close(struct bench_operands *operands);

/* An exchange of this shape over them. */
struct collective bench_operands_exchange(const struct bench_operands *operands,
                                          const struct op_shape *shape, struct comm_group *group);

/* A message of a pair, from that one of its two ranks. */
struct collective bench_operands_transfer(const struct bench_operands *operands,
                                          struct comm_group *pair, int from, size_t n_bytes);

/*
 * Seconds from when the last rank of the group comes until the last one is done. late: the rank
 * that comes a little after the others, as in training one does after much compute: they poll for
 * it with pauses that grow (comm/pause.h), or BENCH_PROMPT: all come at once. Collective over the
 * group. Returns 0, or -1 and ERR_PEER or ERR_DEVICE.
 */
enum { BENCH_PROMPT = -1 };
int bench_time_exchange(const struct bench_operands *operands, struct collective *exchange,
                        struct comm_group *group, int late, double *seconds, struct err *err);

/* The same of n of them one behind the other, all ranks together: seconds of each. */
int bench_time_exchanges(const struct bench_operands *operands, struct collective *exchange,
                         struct comm_group *group, int n, double *seconds, struct err *err);

/* ---- the host ---- */

/* By this rank alone, on its device and threads; takes about a second. Returns 0, or -1 and
 * ERR_FAILED or as bench_run. */
int bench_host(struct bench_host *host, const struct job *like, struct engine *alone,
               struct arena *arena, struct err *err);

/* ---- links of a rank ---- */

/* folder: of the job's output, which need not exist. By this rank alone; takes about two seconds
 * and leaves no file. A folder that cannot be written to is a warning. Returns 0, or -1 and
 * ERR_DEVICE. */
int bench_links(struct bench_links *links, const char *folder, struct engine *engine,
                struct arena *arena, struct err *err);

/* A file where a job writes. */
struct bench_storage {
    const char *folder;       /* need not exist: the nearest one above it then */
    size_t most_bytes;        /* of the file, and */
    double most_seconds;      /* that writing may take */
    bool (*is_stopped)(void); /* ends it early; may be NULL */
    double write_bytes_per_second, read_bytes_per_second; /* 0: not measured */
    int n_wrong; /* pieces that were read other than they were written */
};

/* Written to the disk and read from it, past the system's cache where the file system can
 * (O_DIRECT). It leaves no file. A folder that cannot be written to is a warning. */
void bench_storage(struct bench_storage *storage, struct arena *arena);

/* ---- transfers ---- */

/* Between the first two ranks of a node, and those of two nodes; across nodes also all ranks of two
 * nodes at once. Collective over all ranks; rank 0 has the figures. Errors as bench_collectives. */
int bench_transfers(struct bench_exchanges *exchanges, struct engine *engine,
                    const struct bench_nodes *nodes, size_t max_bytes, int n_rounds,
                    struct arena *arena, struct err *err);

/* A matrix product alone, and beside collectives and transfers. As bench_transfers. */
int bench_overlap(struct bench_exchanges *exchanges, struct engine *engine,
                  const struct bench_nodes *nodes, enum dtype dtype, struct err *err);

/* ---- collectives ---- */

/* Of n fp32 numbers in all over n_ranks ranks. */
void bench_collective_shape(enum op_kind kind, int64_t n, int n_ranks, struct op_shape *shape);

/* What bench_collectives measures, without its figures, in the arena. Returns how many. */
int bench_list_collectives(const struct bench_nodes *nodes, size_t max_bytes,
                           struct bench_collective **list, struct arena *arena);

/* Bytes that suffice for the in, and the out, of each entry, and for the scratch of each. */
void bench_collective_memory(const struct bench_collective *list, int n, size_t *operand_bytes,
                             size_t *scratch_bytes);

#endif
