/*
 * engine.c - open the machine for one rank
 */
#include "train/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "launch/cores.h"
#include "launch/progress.h"
#include "launch/watcher.h"
#include "train/room.h"

static int make_comm(void *argument, struct err *err)
{
    return comm_mpi_create((struct comm **)argument, err);
}

static int drop_comm(void *argument, struct err *err)
{
    (void)err;
    comm_destroy(argument);
    return 0;
}

/* The comm thread mostly waits: it runs where there is room, and not where main was bound. */
static int spread_comm(void *argument, struct err *err)
{
    (void)err;
    launch_cores_spread(argument);
    return 0;
}

static int open_comm(struct engine *engine, struct rank_cores *cores, struct err *err)
{
    struct progress_slot *progress = progress_join(engine->rank.local_rank);

    if (engine->rank.world_size == 1)
        return comm_self_create(&engine->comm, err);
    progress_meet(progress, "the start of MPI");
    if (worker_create(&engine->worker, -1, err) < 0 ||
        worker_call(engine->worker, spread_comm, cores, err) < 0 ||
        worker_call(engine->worker, make_comm, &engine->comm, err) < 0)
        return -1;
    if (comm_world_size(engine->comm) != engine->rank.world_size)
        return err_set(err, ERR_PEER, "MPI sees %d ranks, PMIx %d", comm_world_size(engine->comm),
                       engine->rank.world_size);
    progress_phase(progress, "starting");
    return 0;
}

int engine_open(struct engine *engine, const struct launch_rank *rank, int n_threads,
                struct err *err)
{
    struct rank_cores cores;

    memset(engine, 0, sizeof *engine);
    engine->rank = *rank;
    engine->isa_note = "";
    if (rank->world_size > 1)
        progress_meet(progress_join(rank->local_rank), "the first meeting of all ranks");
    if (launch_cores(rank, &cores, err) < 0)
        return -1;
    int n = n_threads ? n_threads : cores.n_cores;
    /* Threads are bound only where each has a core of its own. */
    if (pool_create(&engine->pool, n, n <= cores.n_cores ? cores.cores : NULL, err) < 0 ||
        kernels_cpu_create(&engine->kernels, engine->pool, &engine->isa_note, err) < 0 ||
        open_comm(engine, &cores, err) < 0) {
        engine_close(engine);
        return -1;
    }
    watcher_settle();
    return 0;
}

void engine_close(struct engine *engine)
{
    struct err ignored;

    if (engine->worker && engine->comm)
        progress_meet(progress_join(engine->rank.local_rank), "the end of MPI");
    watcher_unsettle();
    if (engine->worker && engine->comm)
        worker_call(engine->worker, drop_comm, engine->comm, &ignored);
    else
        comm_destroy(engine->comm);
    watcher_settle();
    worker_destroy(engine->worker);
    kernels_destroy(engine->kernels);
    pool_destroy(engine->pool);
    memset(engine, 0, sizeof *engine);
}

int engine_product_flops(struct engine *engine, enum dtype dtype, const int64_t shape[3],
                         int n_rounds, double *flops, struct err *err)
{
    int64_t rows = shape[0], n = shape[1], k = shape[2];
    size_t size = dtype_bytes(dtype), x_bytes = align_up((size_t)(rows * k) * size, 64);
    size_t w_bytes = align_up((size_t)(n * k) * size, 64);
    size_t y_bytes = align_up((size_t)(rows * n) * size, 64);
    struct kernel_call call = { .op.kind = OP_LINEAR };
    double best = 1e30;

    call.op.in[0] = (struct tensor){ NULL, rows, k, k, dtype };
    call.op.in[1] = (struct tensor){ NULL, n, k, k, dtype };
    call.op.out[0] = (struct tensor){ NULL, rows, n, n, dtype };
    size_t total_bytes = x_bytes + w_bytes + y_bytes +
                         align_up(kernels_scratch_bytes(engine->kernels, &call.op), 64);
    unsigned char *memory = aligned_alloc(64, total_bytes);
    if (!memory)
        return err_set(err, ERR_DEVICE, "out of host memory");
    memset(memory, 0, total_bytes);
    call.op.in[0].data = memory;
    call.op.in[1].data = memory + x_bytes;
    call.op.out[0].data = memory + x_bytes + w_bytes;
    call.scratch = memory + x_bytes + w_bytes + y_bytes;
    int status = kernels_prepare(engine->kernels, &call, err);
    for (int i = 0; i < n_rounds && !status; i++) {
        double begin = clock_seconds();

        kernels_run(engine->kernels, &call, KERNELS_FIRST);
        double took = clock_seconds() - begin;
        best = took < best ? took : best;
    }
    if (!status) {
        *flops = op_flops(&call.op) / best;
        kernels_release(engine->kernels, &call);
    }
    free(memory);
    return status;
}

#define PEAK_SIZE 512
#define PEAK_ROUNDS 64 /* short ones: on a busy machine some of them run undisturbed */

int engine_peak_flops(struct engine *engine, enum dtype dtype, double *flops, struct err *err)
{
    static const int64_t square[3] = { PEAK_SIZE, PEAK_SIZE, PEAK_SIZE };

    return engine_product_flops(engine, dtype, square, PEAK_ROUNDS, flops, err);
}

size_t engine_available_bytes(const struct engine *engine)
{
    int64_t room = room_bytes();

    return room < 0 ? 0 : (size_t)max_i64(1, room / max_int(1, engine->rank.local_size));
}
