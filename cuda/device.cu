/*
 * device.cu - one GPU: memory, queues that are streams, events, graphs
 *
 * The primary context is made at open; streams do not wait for the default one. Streams and events
 * are few and made early: at run time nothing is allocated.
 *
 * Streams beyond the number of hardware queues share them (8 unless CUDA_DEVICE_MAX_CONNECTIONS
 * says more), and work behind a receive that waits for a peer would wait with it, although the
 * program says nothing of the kind: so as many are asked for as there can be, and only the streams
 * that a program uses are made. For NCCL's sake, which reads the environment as well, likewise:
 * since 2.22 it connects ranks for an algorithm when a call first takes that, in the midst of a
 * step, where memory that it wants then may wait for the device; NCCL_RUNTIME_CONNECT=0 has all
 * made with the communicator.
 */
#include "cuda/cuda.cuh"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern "C" {
#include "base/log.h"
#include "base/str.h"
#include "device/visible_gpus.h"
}

struct device_event {
    cudaEvent_t cuda;
};

struct device_graph {
    cudaGraphExec_t exec;
};

void cuda_failed(struct cuda_device *device, const char *what, cudaError_t error)
{
    const char *sync = getenv("LMTRAIN_CUDA_SYNC");

    if (!device->failure.code)
        err_set(&device->failure, ERR_DEVICE, "%s: %s: %s (%s)%s", device->description, what,
                cudaGetErrorName(error), cudaGetErrorString(error),
                sync && *sync ? "" : " (hint: LMTRAIN_CUDA_SYNC=1 names the op)");
}

/* ---- memory ---- */

static int cuda_allocate(struct device *base, size_t n_bytes, void **memory, struct err *err)
{
    struct cuda_device *device = cuda_device_of(base);
    char text[32], left[32];
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t error = cudaMalloc(memory, n_bytes);

    if (error != cudaSuccess) {
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &total_bytes);
        return err_set(err, ERR_DEVICE, "%s has no %s left: %s are free (%s)", device->description,
                       str_bytes(text, sizeof text, n_bytes),
                       str_bytes(left, sizeof left, free_bytes), cudaGetErrorName(error));
    }
    cuda_check(device, "fill",
               cudaMemsetAsync(*memory, 0, n_bytes, cuda_stream_of(device, DEVICE_COMPUTE)));
    return base->ops->wait(base, DEVICE_COMPUTE, err);
}

static void cuda_release(struct device *base, void *memory)
{
    cuda_check(cuda_device_of(base), "cudaFree", cudaFree(memory));
}

static int cuda_allocate_pinned(struct device *base, size_t n_bytes, void **memory, struct err *err)
{
    char text[32];
    cudaError_t error = cudaMallocHost(memory, n_bytes);

    (void)base;
    if (error != cudaSuccess) {
        cudaGetLastError();
        return err_set(err, ERR_DEVICE, "no %s of host memory can be pinned (%s)",
                       str_bytes(text, sizeof text, n_bytes), cudaGetErrorName(error));
    }
    memset(*memory, 0, n_bytes);
    return 0;
}

static void cuda_release_pinned(struct device *base, void *memory)
{
    cuda_check(cuda_device_of(base), "cudaFreeHost", cudaFreeHost(memory));
}

/* Saves copy from threads of their own. */
static void cuda_copy(struct device *base, int queue, void *to, const void *from, size_t n_bytes)
{
    struct cuda_device *device = cuda_device_of(base);

    cuda_check(device, "cudaSetDevice", cudaSetDevice(device->index));
    cuda_check(
        device, "copy",
        cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, cuda_stream_of(device, queue)));
}

static void cuda_fill(struct device *base, int queue, void *to, int byte, size_t n_bytes)
{
    struct cuda_device *device = cuda_device_of(base);

    cuda_check(device, "fill", cudaMemsetAsync(to, byte, n_bytes, cuda_stream_of(device, queue)));
}

static int cuda_wait(struct device *base, int queue, struct err *err)
{
    struct cuda_device *device = cuda_device_of(base);

    if (device->queues[queue])
        cuda_check(device, "wait", cudaStreamSynchronize(device->queues[queue]));
    if (!device->failure.code)
        return 0;
    *err = device->failure;
    return -1;
}

static struct device_memory cuda_memory(struct device *base)
{
    struct device_memory memory = { 0, 0 };

    cuda_check(cuda_device_of(base), "cudaMemGetInfo",
               cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes));
    return memory;
}

/* ---- events ---- */

static int cuda_event_create(struct device *base, int timed, struct device_event **event,
                             struct err *err)
{
    struct device_event *made = (struct device_event *)calloc(1, sizeof *made);

    (void)base;
    if (!made)
        return err_set(err, ERR_DEVICE, "out of host memory");
    cudaError_t error = cudaEventCreateWithFlags(
        &made->cuda, timed ? (unsigned)cudaEventDefault : (unsigned)cudaEventDisableTiming);
    if (error != cudaSuccess) {
        free(made);
        return err_set(err, ERR_DEVICE, "cudaEventCreate: %s", cudaGetErrorName(error));
    }
    *event = made;
    return 0;
}

static void cuda_event_destroy(struct device *base, struct device_event *event)
{
    if (!event)
        return;
    cuda_check(cuda_device_of(base), "cudaEventDestroy", cudaEventDestroy(event->cuda));
    free(event);
}

static void cuda_event_record(struct device *base, int queue, struct device_event *event)
{
    struct cuda_device *device = cuda_device_of(base);

    cuda_check(device, "cudaEventRecord",
               cudaEventRecord(event->cuda, cuda_stream_of(device, queue)));
}

static void cuda_event_wait(struct device *base, int queue, struct device_event *event)
{
    struct cuda_device *device = cuda_device_of(base);

    cuda_check(device, "cudaStreamWaitEvent",
               cudaStreamWaitEvent(cuda_stream_of(device, queue), event->cuda, 0));
}

static double cuda_seconds(struct device *base, struct device_event *from, struct device_event *to)
{
    float ms = 0;

    cuda_check(cuda_device_of(base), "cudaEventElapsedTime",
               cudaEventElapsedTime(&ms, from->cuda, to->cuda));
    return (double)ms * 1e-3;
}

/* Of any thread, so a failure is left for wait to find: what failed is done. */
static int cuda_event_done(struct device *base, struct device_event *event)
{
    (void)base;
    return cudaEventQuery(event->cuda) != cudaErrorNotReady;
}

/* ---- graphs ---- */

static int cuda_graph_begin(struct device *base, struct err *err)
{
    struct cuda_device *device = cuda_device_of(base);
    cudaError_t error =
        cudaStreamBeginCapture(device->queues[DEVICE_COMPUTE], cudaStreamCaptureModeThreadLocal);

    if (error != cudaSuccess)
        return err_set(err, ERR_DEVICE, "cudaStreamBeginCapture: %s", cudaGetErrorName(error));
    return 0;
}

static int cuda_graph_end(struct device *base, struct device_graph **graph, struct err *err)
{
    struct cuda_device *device = cuda_device_of(base);
    struct device_graph *made = (struct device_graph *)calloc(1, sizeof *made);
    cudaGraph_t recorded = NULL;
    cudaError_t error = cudaStreamEndCapture(device->queues[DEVICE_COMPUTE], &recorded);

    if (error == cudaSuccess && made)
        error = cudaGraphInstantiate(&made->exec, recorded, 0);
    if (recorded)
        cudaGraphDestroy(recorded);
    if (error == cudaSuccess && made) {
        *graph = made;
        return 0;
    }
    free(made);
    return err_set(err, ERR_DEVICE, "a graph cannot be made: %s (%s)", cudaGetErrorName(error),
                   device->failure.code ? device->failure.text : cudaGetErrorString(error));
}

static void cuda_graph_launch(struct device *base, struct device_graph *graph)
{
    struct cuda_device *device = cuda_device_of(base);

    cuda_check(device, "cudaGraphLaunch",
               cudaGraphLaunch(graph->exec, device->queues[DEVICE_COMPUTE]));
}

static void cuda_graph_destroy(struct device *base, struct device_graph *graph)
{
    if (!graph)
        return;
    cuda_check(cuda_device_of(base), "cudaGraphExecDestroy", cudaGraphExecDestroy(graph->exec));
    free(graph);
}

/* ---- the device ---- */

/* Traffic first: its few blocks are otherwise queued behind whole waves of a product's. */
static int cuda_open_queue(struct device *base, int queue, struct err *err)
{
    struct cuda_device *device = cuda_device_of(base);
    int least = 0, greatest = 0;

    if (device->queues[queue])
        return 0;
    cudaError_t error = cudaSetDevice(device->index);
    if (error == cudaSuccess)
        error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(&device->queues[queue], cudaStreamNonBlocking,
                                             queue == DEVICE_COMPUTE ? least : greatest);
    if (error != cudaSuccess)
        return err_set(err, ERR_DEVICE, "%s: no stream can be made: %s", device->description,
                       cudaGetErrorName(error));
    return 0;
}

static void cuda_use(struct device *base)
{
    struct cuda_device *device = cuda_device_of(base);

    cuda_check(device, "cudaSetDevice", cudaSetDevice(device->index));
}

static void cuda_destroy(struct device *base)
{
    struct cuda_device *device = cuda_device_of(base);

    for (int i = 0; i < DEVICE_N_QUEUES; i++)
        if (device->queues[i])
            cudaStreamDestroy(device->queues[i]);
    free(device);
}

static const struct device_ops *cuda_ops(void)
{
    static const struct device_ops ops = {
        .name = "cuda",
        .allocate = cuda_allocate,
        .release = cuda_release,
        .allocate_pinned = cuda_allocate_pinned,
        .release_pinned = cuda_release_pinned,
        .copy = cuda_copy,
        .fill = cuda_fill,
        .wait = cuda_wait,
        .memory = cuda_memory,
        .destroy = cuda_destroy,
        .open_queue = cuda_open_queue,
        .use = cuda_use,
        .event_create = cuda_event_create,
        .event_destroy = cuda_event_destroy,
        .event_record = cuda_event_record,
        .event_wait = cuda_event_wait,
        .seconds = cuda_seconds,
        .event_done = cuda_event_done,
        .graph_begin = cuda_graph_begin,
        .graph_end = cuda_graph_end,
        .graph_launch = cuda_graph_launch,
        .graph_destroy = cuda_graph_destroy,
    };

    return &ops;
}

#define HARDWARE_QUEUES "32"

/* An own value stays, and is told of where it makes streams wait for each other. */
static void ask_for_queues(void)
{
    static const char name[] = "CUDA_DEVICE_MAX_CONNECTIONS";
    const char *own = getenv(name);

    if (own && atoi(own) < DEVICE_N_QUEUES)
        log_warn("%s is %s: collectives and kernels may wait for each other, or without end "
                 "(hint: leave it unset, which means " HARDWARE_QUEUES ")",
                 name, own);
    setenv(name, HARDWARE_QUEUES, 0);
}

/* Before any thread is there that could read it meanwhile. */
static void set_environment(void)
{
    ask_for_queues();
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

/* "driver 12.4, this lmtrain is made with CUDA 13.0": the driver can be asked however old it is. */
static const char *why_none(cudaError_t error)
{
    static char text[256];
    int driver = 0, runtime = 0;

    if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess ||
        cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        return cudaGetErrorString(error);
    if (!driver)
        return "there is no NVIDIA driver (libcuda.so.1)";
    snprintf(text, sizeof text,
             "its driver is made for CUDA %d.%d, this lmtrain for %d.%d (hint: driver %s or later, "
             "or an lmtrain built with CUDA %d)",
             driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
             runtime >= 13000 ? "580" : "525", driver / 1000);
    return text;
}

extern "C" int device_cuda_count(const char **why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int n = 0;

    pthread_once(&once, set_environment);
    cudaError_t error = cudaGetDeviceCount(&n);
    if (why)
        *why = error != cudaSuccess ? why_none(error) : n ? "" : "there is no GPU";
    if (error != cudaSuccess)
        cudaGetLastError();
    return error == cudaSuccess ? n : 0;
}

/* GPUs of this machine, without the driver; an emulated one is there only on request. */
static int count_machine_gpus(void)
{
#ifdef LMTRAIN_EMULATE
    const char *n = getenv("LMTRAIN_EMULATE_DEVICES");

    return n ? min_int(atoi(n), MACHINE_GPUS_MAX) : 0;
#else
    char path[32];
    int n = 0;

    for (int i = 0; i < MACHINE_GPUS_MAX; i++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", i);
        n += access(path, F_OK) == 0;
    }
    return n;
#endif
}

extern "C" int device_cuda_seen(void)
{
    struct visible_gpu gpus[MACHINE_GPUS_MAX];

    return visible_gpus_find(gpus, getenv("CUDA_VISIBLE_DEVICES"), count_machine_gpus(), NULL);
}

/* FNV-1a of the maker's number of this piece; an emulated one is everybody's. */
static uint64_t hardware_of(const struct cudaDeviceProp *p)
{
    uint64_t hash = 0xcbf29ce484222325u;

#ifndef LMTRAIN_EMULATE
    for (char byte : p->uuid.bytes)
        hash = (hash ^ (unsigned char)byte) * 0x100000001b3u;
#else
    (void)p;
#endif
    return hash;
}

static int find_device(struct cuda_device *device, struct err *err)
{
    const char *why;
    int n = device_cuda_count(&why);

    if (device->index >= n)
        return err_set(err, ERR_DEVICE, "no GPU %d: there are %d%s%s", device->index, n,
                       *why ? ": " : "", why);
    cudaError_t error = cudaSetDevice(device->index);
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&device->properties, device->index);
    if (error != cudaSuccess)
        return err_set(err, ERR_DEVICE, "GPU %d cannot be used: %s (%s)", device->index,
                       cudaGetErrorName(error), cudaGetErrorString(error));
    device->base.hardware = hardware_of(&device->properties);
    snprintf(device->description, sizeof device->description, "%s (GPU %d)",
             device->properties.name, device->index);
    return 0;
}

extern "C" int device_cuda_open(struct device **out, int index, struct err *err)
{
    struct cuda_device *device = (struct cuda_device *)calloc(1, sizeof *device);

    if (!device)
        return err_set(err, ERR_DEVICE, "out of host memory");
    device->base.ops = cuda_ops();
    device->base.description = device->description;
    device->index = index;
    if (find_device(device, err) < 0 || cuda_open_queue(&device->base, DEVICE_COMPUTE, err) < 0) {
        cuda_destroy(&device->base);
        return -1;
    }
    *out = &device->base;
    return 0;
}
