/*
 * engine.c - open the machine for one rank
 */
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/num.h"
#include "base/str.h"
#include "launch/cores.h"
#include "launch/watch/rank_gpu.h"
#include "launch/watch/watcher.h"
#include "progress/progress.h"
#include "train/available_memory.h"
#include "train/gpu_place.h"

/*
 * MPI where it was built in, which has all kinds of networks; else, or if $LMTRAIN_COMM says so,
 * sockets.
 */
static int make_comm(void *argument, struct err *err)
{
    struct engine *engine = argument;
    const struct launch_rank *rank = &engine->rank;
    const char *name = getenv("LMTRAIN_COMM");

    if (!name || !*name)
        name = LMTRAIN_MPI ? "mpi" : "tcp";
    if (!strcmp(name, "mpi"))
        return comm_mpi_create(&engine->comm, err);
    if (strcmp(name, "tcp") != 0)
        return err_set(err, ERR_CONFIG, "LMTRAIN_COMM is '%s', not mpi or tcp", name);
    engine->wireup = (struct comm_wireup){
        .world_rank = rank->world_rank,
        .world_size = rank->world_size,
        .local_size = rank->local_size,
        .put = launch_put,
        .fence = launch_fence,
        .get = launch_get,
    };
    return comm_tcp_create(&engine->comm, &engine->wireup, err);
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

/* What a rank sits on. */
struct seat {
    uint64_t hardware;
    uint64_t has_nccl;
};

/* Whether every rank has a GPU of its own and NCCL; if not, and some ranks have GPUs, why[] is the
 * reason. */
static int have_own_gpus(const struct seat *seats, int n, char why[], size_t size)
{
    int n_gpus = 0;

    for (int i = 0; i < n; i++)
        n_gpus += seats[i].hardware != 0;
    for (int i = 0; i < n; i++) {
        if (!seats[i].hardware && n_gpus)
            snprintf(why, size, "rank %d has no GPU", i);
        else if (seats[i].hardware && !seats[i].has_nccl)
            snprintf(why, size, "rank %d does not find NCCL 2.18 or later (libnccl.so.2)", i);
        if (!seats[i].hardware || !seats[i].has_nccl)
            return 0;
        for (int k = 0; k < i; k++)
            if (seats[k].hardware == seats[i].hardware) {
                snprintf(why, size, "ranks %d and %d share a GPU", k, i);
                return 0;
            }
    }
    return 1;
}

/* The number of ranks on this rank's GPU, however many GPUs each of them sees; logs it if there are
 * several. */
static int count_sharing(const struct engine *engine, const struct seat *seats, int n)
{
    int n_sharing = 0;

    if (device_is_host(engine->device))
        return 1;
    for (int i = 0; i < n; i++)
        n_sharing += seats[i].hardware == engine->device->hardware;
    if (n_sharing > 1 && engine->rank.local_rank == 0)
        log_warn("%d ranks share a GPU on this node (hint: as many ranks per node as GPUs)",
                 n_sharing);
    return n_sharing;
}

/*
 * On the comm thread: ranks that all have a GPU to themselves talk by NCCL; else all go through the
 * host. All see the same seats, so all decide alike.
 */
static int choose_nccl(void *argument, struct err *err)
{
    struct engine *engine = argument;
    int n = engine->rank.world_size;
    struct seat own = { engine->device->hardware,
                        !device_is_host(engine->device) && comm_nccl_is_there() };
    struct seat *seats = calloc((size_t)n, sizeof *seats);
    int *ranks = calloc((size_t)n, sizeof *ranks);
    struct comm_group *all;
    char why[80] = "";

    CHECK(seats);
    CHECK(ranks);
    for (int i = 0; i < n; i++)
        ranks[i] = i;
    int status = comm_group_create(&all, engine->comm, ranks, n, 0, err);
    if (!status)
        status = comm_all_gather(all, &own, seats, sizeof own, err);
    engine->n_sharing = status ? 1 : count_sharing(engine, seats, n);
    int is_own = !status && have_own_gpus(seats, n, why, sizeof why);
    if (is_own) {
        struct comm *host = engine->comm;

        engine->comm = NULL;
        status = comm_nccl_create(&engine->comm, host, engine->device, err);
    }
    if (!is_own && *why && engine->rank.world_rank == 0)
        log_warn("%s: all collectives are staged through host memory instead of NCCL", why);
    free(ranks);
    free(seats);
    return status;
}

static int open_comm(struct engine *engine, enum job_device requested, struct rank_cores *cores,
                     struct err *err)
{
    struct progress_slot *progress = progress_join(engine->rank.local_rank);

    if (engine->rank.world_size == 1)
        return comm_self_create(&engine->comm, err);
    progress_meet(progress, "connecting all ranks");
    if (worker_create(&engine->worker, -1, err) < 0 ||
        worker_call(engine->worker, spread_comm, cores, err) < 0 ||
        worker_call(engine->worker, device_use, engine->device, err) < 0 ||
        worker_call(engine->worker, make_comm, engine, err) < 0)
        return -1;
    if (comm_world_size(engine->comm) != engine->rank.world_size)
        return err_set(err, ERR_PEER, "MPI has %d ranks, but PMIx %d",
                       comm_world_size(engine->comm), engine->rank.world_size);
    if (requested != JOB_DEVICE_CPU && worker_call(engine->worker, choose_nccl, engine, err) < 0)
        return -1;
    progress_phase(progress, "starting");
    return 0;
}

/*
 * Ranks of a machine share its GPUs evenly, and one where there are more of them. GPUs that cannot
 * be used (a driver that is too old) are an error unless the CPU is asked for: training there
 * would take a hundred times as long.
 */
static int open_device(struct engine *engine, enum job_device requested, struct err *err)
{
    const struct launch_rank *rank = &engine->rank;
    int n_seen = requested == JOB_DEVICE_CPU ? 0 : device_cuda_seen();
    const char *why;

    engine->device = device_host();
    if (requested == JOB_DEVICE_CPU || (requested == JOB_DEVICE_AUTO && !n_seen))
        return 0;
    int n = device_cuda_count(&why);
    if (!n && requested == JOB_DEVICE_CUDA)
        return err_set(err, ERR_DEVICE, "device is cuda, but there is no GPU: %s", why);
    if (!n)
        return err_set(err, ERR_DEVICE,
                       "there %s %d GPU%s here, but lmtrain cannot use %s: %s (hint: device: cpu "
                       "trains on the CPU)",
                       n_seen == 1 ? "is" : "are", n_seen, str_s(n_seen),
                       n_seen == 1 ? "it" : "any", why);
    if (n < n_seen && rank->local_rank == 0)
        log_warn("of %d visible GPUs only %d can be used (hint: nvidia-smi shows the others)",
                 n_seen, n);
    return device_cuda_open(&engine->device, gpu_place_index(rank->local_rank, n), err);
}

static int make_kernels(struct engine *engine, struct err *err)
{
    return device_is_host(engine->device)
               ? kernels_cpu_create(&engine->kernels, engine->pool, &engine->isa_note, err)
               : kernels_cuda_create(&engine->kernels, engine->device, err);
}

/* Near the GPU that open_device will take. */
static int find_cores(struct engine *engine, enum job_device requested, struct rank_cores *cores,
                      struct err *err)
{
    struct gpu_place place;

    gpu_place_find(&place, &engine->rank, requested);
    int status = launch_cores(&engine->rank, place.nodes, cores, err);
    memcpy(engine->gpu, place.pci, sizeof engine->gpu);
    if (*place.pci)
        rank_gpu_set(progress_join(engine->rank.local_rank), place.pci);
    gpu_place_release(&place);
    return status;
}

int engine_open(struct engine *engine, const struct launch_rank *rank,
                const struct engine_request *request, struct err *err)
{
    struct rank_cores cores;

    memset(engine, 0, sizeof *engine);
    engine->rank = *rank;
    engine->n_sharing = 1;
    engine->isa_note = "";
    if (rank->world_size > 1)
        progress_meet(progress_join(rank->local_rank), "first synchronisation of all ranks");
    if (find_cores(engine, request->device, &cores, err) < 0)
        return -1;
    int n = request->n_threads ? request->n_threads : cores.n_cores;
    if (n > cores.n_cores && rank->world_rank == 0)
        log_warn("threads is %d, but a rank has %d core%s here: more threads than cores are slower "
                 "(hint: "
                 "threads: auto)",
                 n, cores.n_cores, cores.n_cores == 1 ? "" : "s");
    /* Threads are bound only where each has a core of its own. */
    if (pool_create(&engine->pool, n, n <= cores.n_cores ? cores.cores : NULL, err) < 0 ||
        open_device(engine, request->device, err) < 0 || make_kernels(engine, err) < 0 ||
        open_comm(engine, request->device, &cores, err) < 0) {
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
        progress_meet(progress_join(engine->rank.local_rank), "closing all connections");
    watcher_unsettle();
    if (engine->worker && engine->comm)
        worker_call(engine->worker, drop_comm, engine->comm, &ignored);
    else
        comm_destroy(engine->comm);
    watcher_settle();
    worker_destroy(engine->worker);
    kernels_destroy(engine->kernels);
    device_destroy(engine->device);
    pool_destroy(engine->pool);
    memset(engine, 0, sizeof *engine);
}

void engine_settle(const struct engine *engine, struct job *job)
{
    if (job->parallel.reductions == REDUCTIONS_FIXED || comm_sums(engine->comm))
        return;
    job->parallel.reductions = REDUCTIONS_FIXED;
    if (engine->rank.world_rank == 0 && engine->rank.world_size > 1)
        log_info("parallel.reductions is fixed: fast needs NCCL, which these ranks do not use");
}

/* ---- what it reaches ---- */

/* A product's operands in one block of the device. */
struct engine_product {
    struct kernel_call call;
    unsigned char *memory;
    size_t n_bytes;
};

static int product_open(struct engine *engine, enum dtype dtype, const int64_t shape[3],
                        struct engine_product *product, struct err *err)
{
    int64_t rows = shape[0], n = shape[1], k = shape[2];
    size_t size = dtype_bytes(dtype), x_bytes = align_up((size_t)(rows * k) * size, 256);
    size_t w_bytes = align_up((size_t)(n * k) * size, 256);
    size_t y_bytes = align_up((size_t)(rows * n) * size, 256);
    struct kernel_call *call = &product->call;
    void *memory;

    *product = (struct engine_product){ .call = { .op.kind = OP_LINEAR } };
    call->op.in[LINEAR_X] = (struct tensor){ NULL, rows, k, k, dtype };
    call->op.in[LINEAR_W] = (struct tensor){ NULL, n, k, k, dtype };
    call->op.out[LINEAR_Y] = (struct tensor){ NULL, rows, n, n, dtype };
    product->n_bytes = x_bytes + w_bytes + y_bytes +
                       align_up(kernels_scratch_bytes(engine->kernels, &call->op), 256);
    if (engine->device->ops->allocate(engine->device, product->n_bytes, &memory, err) < 0)
        return -1;
    product->memory = memory;
    call->op.in[LINEAR_X].data = product->memory;
    call->op.in[LINEAR_W].data = product->memory + x_bytes;
    call->op.out[LINEAR_Y].data = product->memory + x_bytes + w_bytes;
    call->scratch = product->memory + x_bytes + w_bytes + y_bytes;
    return 0;
}

/* Numbers of all mantissas: on zeros a GPU draws less power, and is faster than it will be. */
static void product_fill(struct engine *engine, const struct engine_product *product)
{
    enum { PART = 1 << 16 };
    static const uint32_t magnitude = 0x3f003f00; /* of bf16 in [0.5, 1), of fp32 around it */
    uint32_t part[PART / sizeof(uint32_t)], state = 1;
    size_t end = (size_t)((unsigned char *)product->call.op.out[LINEAR_Y].data - product->memory);

    if (device_is_host(engine->device))
        return; /* all the same there */
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        state = state * 1664525u + 1013904223u;
        part[i] = magnitude | (state >> 9 & 0x807f807fu);
    }
    for (size_t at = 0; at < end; at += sizeof part)
        engine->device->ops->copy(engine->device, DEVICE_COMPUTE, product->memory + at, part,
                                  end - at < sizeof part ? end - at : sizeof part);
}

/* Seconds of one run. */
static int time_product(struct engine *engine, const struct engine_product *product,
                        struct device_event *events[2], double *seconds, struct err *err)
{
    struct device *device = engine->device;
    double begin = clock_seconds();

    if (events[0])
        device->ops->event_record(device, DEVICE_COMPUTE, events[0]);
    kernels_run(engine->kernels, &product->call, KERNELS_FIRST);
    if (events[0])
        device->ops->event_record(device, DEVICE_COMPUTE, events[1]);
    if (device->ops->wait(device, DEVICE_COMPUTE, err) < 0)
        return -1;
    *seconds =
        events[0] ? device->ops->seconds(device, events[0], events[1]) : clock_seconds() - begin;
    return 0;
}

int engine_product_flops(struct engine *engine, enum dtype dtype, const int64_t shape[3],
                         int n_rounds, double *flops, struct err *err)
{
    struct device *device = engine->device;
    struct device_event *events[2] = { NULL };
    struct engine_product product;
    double best = 1e30;

    if (product_open(engine, dtype, shape, &product, err) < 0)
        return -1;
    product_fill(engine, &product);
    int status = kernels_prepare(engine->kernels, &product.call, err);
    int is_prepared = !status;
    for (int i = 0; i < 2 && !status && device->ops->event_create; i++)
        status = device->ops->event_create(device, 1, &events[i], err);
    for (int i = 0; i < n_rounds && !status; i++) {
        double took;

        status = time_product(engine, &product, events, &took, err);
        best = !status && took < best ? took : best;
    }
    if (!status)
        *flops = op_flops(&product.call.op) / best;
    if (is_prepared)
        kernels_release(engine->kernels, &product.call);
    for (int i = 0; i < 2 && device->ops->event_destroy; i++)
        device->ops->event_destroy(device, events[i]);
    device->ops->release(device, product.memory);
    return status;
}

#define PEAK_SIZE 512
#define PEAK_ROUNDS 64  /* short ones: on a busy machine some of them run undisturbed */
#define START_ROUNDS 16 /* of a run, which waits for them: 10 ms on two cores */
#define GPU_PEAK_SIZE 8192
#define GPU_PEAK_ROUNDS 8

int engine_is_large(const struct engine *engine)
{
    double stated = engine_stated_flops(engine, DTYPE_BF16);

    return !device_is_host(engine->device) && (stated == 0 || stated > 1e12);
}

static int peak_flops(struct engine *engine, enum dtype dtype, int n_rounds, double *flops,
                      struct err *err)
{
    static const int64_t square[3] = { PEAK_SIZE, PEAK_SIZE, PEAK_SIZE };
    static const int64_t large[3] = { GPU_PEAK_SIZE, GPU_PEAK_SIZE, GPU_PEAK_SIZE };

    return engine_is_large(engine)
               ? engine_product_flops(engine, dtype, large, GPU_PEAK_ROUNDS, flops, err)
               : engine_product_flops(engine, dtype, square, n_rounds, flops, err);
}

int engine_peak_flops(struct engine *engine, enum dtype dtype, double *flops, struct err *err)
{
    return peak_flops(engine, dtype, PEAK_ROUNDS, flops, err);
}

/* Products until the window's end; the last one counts as far as it was done by then. */
static int fill_window(struct engine *engine, const struct engine_product *product, double start,
                       double seconds, double *n_products, struct err *err)
{
    struct device_event *none[2] = { NULL };
    double now;

    while ((now = clock_seconds()) < start)
        usleep(20);
    for (*n_products = 0; now < start + seconds;) {
        double begin = now, took;

        if (time_product(engine, product, none, &took, err) < 0)
            return -1;
        now = clock_seconds();
        *n_products += now <= start + seconds ? 1 : (start + seconds - begin) / (now - begin);
    }
    return 0;
}

int engine_window_flops(struct engine *engine, enum dtype dtype,
                        const struct engine_windows *windows, double *flops, struct err *err)
{
    int64_t size = engine_is_large(engine) ? GPU_PEAK_SIZE : PEAK_SIZE;
    const int64_t shape[3] = { size, size, size };
    struct engine_product product;
    double start, n_products;

    if (product_open(engine, dtype, shape, &product, err) < 0)
        return -1;
    product_fill(engine, &product);
    int status = kernels_prepare(engine->kernels, &product.call, err), is_prepared = !status;
    if (!status) /* touches the memory */
        status = fill_window(engine, &product, clock_seconds(), 1e-9, &n_products, err);
    for (int i = 0; i < windows->n && !status; i++) {
        status = windows->agree(windows->context, &start, err);
        if (!status)
            status = fill_window(engine, &product, start, windows->seconds, &n_products, err);
        if (!status)
            flops[i] = n_products * op_flops(&product.call.op);
    }
    if (is_prepared)
        kernels_release(engine->kernels, &product.call);
    engine->device->ops->release(engine->device, product.memory);
    return status;
}

#define SUSTAINED_WINDOW_SECONDS 0.05

/* The device is waited for at the end of each window alone, whose products are queued at once. */
static int sustain(struct engine *engine, const struct engine_product *product, double seconds,
                   struct engine_sustained *sustained, struct err *err)
{
    double flops = op_flops(&product->call.op), begin = clock_seconds(), now = begin;
    int64_t n_window = 1, n = 0;

    while (now < begin + seconds) {
        double window_begin = now;

        for (int64_t i = 0; i < n_window; i++)
            kernels_run(engine->kernels, &product->call, KERNELS_FIRST);
        if (engine->device->ops->wait(engine->device, DEVICE_COMPUTE, err) < 0)
            return -1;
        now = clock_seconds();
        n += n_window;
        sustained->last_flops = (double)n_window * flops / (now - window_begin);
        if (sustained->last_flops > sustained->best_flops)
            sustained->best_flops = sustained->last_flops;
        if (now - window_begin < SUSTAINED_WINDOW_SECONDS / 2)
            n_window *= 2;
    }
    sustained->seconds = now - begin;
    sustained->flops = (double)n * flops / sustained->seconds;
    return 0;
}

int engine_sustained_flops(struct engine *engine, enum dtype dtype, double seconds,
                           struct engine_sustained *sustained, struct err *err)
{
    int64_t size = engine_is_large(engine) ? GPU_PEAK_SIZE : PEAK_SIZE;
    const int64_t shape[3] = { size, size, size };
    struct engine_product product;
    double ignored;

    if (product_open(engine, dtype, shape, &product, err) < 0)
        return -1;
    product_fill(engine, &product);
    *sustained = (struct engine_sustained){ .size = size };
    int status = kernels_prepare(engine->kernels, &product.call, err), is_prepared = !status;
    if (!status) /* touches the memory */
        status = fill_window(engine, &product, clock_seconds(), 1e-9, &ignored, err);
    if (!status)
        status = sustain(engine, &product, seconds, sustained, err);
    if (is_prepared)
        kernels_release(engine->kernels, &product.call);
    engine->device->ops->release(engine->device, product.memory);
    return status;
}

/* Dense, without sparsity, at the boost clock: the makers' datasheets. */
double engine_stated_flops(const struct engine *engine, enum dtype dtype)
{
    static const struct {
        const char *name;
        double half, single;
    } known[] = {
        { "H100 PCIe", 756e12, 51e12 },
        { "H100 NVL", 835e12, 60e12 },
        { "H100", 989.4e12, 67e12 },
        { "H200", 989.4e12, 67e12 },
        { "GH200", 989.4e12, 67e12 },
        { "H800", 989.4e12, 67e12 },
        { "B200", 2250e12, 75e12 },
        { "A100", 312e12, 19.5e12 },
        { "A800", 312e12, 19.5e12 },
        { "L40S", 362e12, 91.6e12 },
        { "emulated GPU", 1e9, 1e9 },
        { "GeForce RTX 4090", 165.2e12, 82.6e12 },
        { "GeForce RTX 3090", 71e12, 35.6e12 },
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!device_is_host(engine->device) && strstr(engine->device->description, known[i].name))
            return dtype == DTYPE_F32 ? known[i].single : known[i].half;
    return 0;
}

int engine_mfu_flops(struct engine *engine, enum dtype dtype, double *flops, struct err *err)
{
    *flops = engine_stated_flops(engine, dtype);
    return *flops > 0 ? 0 : peak_flops(engine, dtype, START_ROUNDS, flops, err);
}

size_t engine_available_bytes(const struct engine *engine)
{
    int64_t room = available_memory();

    if (!device_is_host(engine->device))
        return engine->device->ops->memory(engine->device).free_bytes / (size_t)engine->n_sharing;
    return room < 0 ? 0 : (size_t)max_i64(1, room / max_int(1, engine->rank.local_size));
}
