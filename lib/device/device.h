/*
 * device.h - the device of a rank: memory, copies, queues (CUDA streams), events (CUDA events) and
 * graphs
 *
 * A device has queues, each of which executes its work in order; work of different queues is
 * ordered only by events. The host device (device_host) has a single queue, in which all work has
 * completed on return. On a GPU calls only enqueue, unless documented as waiting, and the first
 * failure of enqueued work is kept and returned by wait.
 *
 * It knows no ops: kernels/kernels.h fills a table of these per device, and struct kernels says on
 * which device they run.
 *
 * A device is used by one thread, but for its events' device_event_done and for queues that another
 * thread has to itself.
 */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The queue of kernels, which always exists, and queues of transfers: DEVICE_TRAFFIC + stream. */
enum { DEVICE_COMPUTE = 0, DEVICE_TRAFFIC = 1, DEVICE_N_QUEUES = 20 };

struct device;
struct device_event; /* a position in a queue: a CUDA event */
struct device_graph; /* captured work: a CUDA graph */

struct device_memory {
    size_t free_bytes, total_bytes; /* 0: unknown */
};

struct device_ops {
    const char *name; /* "cpu", "cuda" */

    /* Zeroed memory, aligned to 256 (the host's to 64). Returns 0, or -1 and ERR_DEVICE. Waits. */
    int (*allocate)(struct device *device, size_t n_bytes, void **memory, struct err *err);
    void (*release)(struct device *device, void *memory);

    /* Pinned host memory, for copies that run concurrently with the host. Likewise. */
    int (*allocate_pinned)(struct device *device, size_t n_bytes, void **memory, struct err *err);
    void (*release_pinned)(struct device *device, void *memory);

    /*
     * Source and target may be device or host memory. Host memory that is not pinned is read or
     * written before this returns, pinned memory asynchronously in queue order.
     */
    void (*copy)(struct device *device, int queue, void *to, const void *from, size_t n_bytes);
    void (*fill)(struct device *device, int queue, void *to, int byte, size_t n_bytes);

    /* Wait for all work of the queue. Returns 0, or -1 and the device's first failure,
     * which is permanent: the device is then unusable. */
    int (*wait)(struct device *device, int queue, struct err *err);

    struct device_memory (*memory)(struct device *device);
    void (*destroy)(struct device *device);

    /* All below are optional (NULL for the host). */

    /*
     * Create a queue before its first use; a no-op if it exists. Its work has a higher priority
     * than work of the compute queue that has not started. Returns 0, or -1 and ERR_DEVICE.
     */
    int (*open_queue)(struct device *device, int queue, struct err *err);

    /* Make the device current in the calling thread, before any other call except copy. */
    void (*use)(struct device *device);

    int (*event_create)(struct device *device, int timed, struct device_event **event,
                        struct err *err);
    void (*event_destroy)(struct device *device, struct device_event *event);
    void (*event_record)(struct device *device, int queue, struct device_event *event);
    /* Later work of the queue starts after the last recording of the event. */
    void (*event_wait)(struct device *device, int queue, struct device_event *event);
    /* Seconds between two completed events that were created with timed. */
    double (*seconds)(struct device *device, struct device_event *from, struct device_event *to);
    int (*event_done)(struct device *device, struct device_event *event); /* any thread */

    /*
     * Between begin and end the work of the compute queue is captured, not executed. Returns 0, or
     * -1 and ERR_DEVICE.
     */
    int (*graph_begin)(struct device *device, struct err *err);
    int (*graph_end)(struct device *device, struct device_graph **graph, struct err *err);
    void (*graph_launch)(struct device *device, struct device_graph *graph);
    void (*graph_destroy)(struct device *device, struct device_graph *graph);
};

/* A device's instance starts with this. */
struct device {
    const struct device_ops *ops;
    const char *description; /* "NVIDIA H200, 132 multiprocessors, 139.8 GiB", the instance's */
    uint64_t hardware;       /* equal for instances, of any process, that share a GPU; host: 0 */
};

/* This machine's CPU and memory; never destroyed. Allocations are surrounded by guard pages. */
struct device *device_host(void);

static inline int device_is_host(const struct device *device)
{
    return device == device_host();
}

static inline void device_destroy(struct device *device)
{
    if (device && !device_is_host(device))
        device->ops->destroy(device);
}

/* Make the device current in the calling thread; worker_call has a worker do so. Returns 0. */
static inline int device_use(void *device, struct err *err)
{
    struct device *used = (struct device *)device;

    (void)err;
    if (used->ops->use)
        used->ops->use(used);
    return 0;
}

/*
 * CUDA's devices: their number, 0 also without a driver or in builds without CUDA (*why, may be
 * NULL, gets the reason); and open one of them, with its context. Returns 0, or -1 and ERR_DEVICE.
 */
int device_cuda_count(const char **why);
int device_cuda_open(struct device **device, int index, struct err *err);

/*
 * Number of GPUs that a rank of this machine would find, from device files and CUDA_VISIBLE_DEVICES
 * only, without the driver, which is slow to initialise and must not be initialised before fork. 0
 * in builds without CUDA. If it is larger than device_cuda_count, there are GPUs that this build
 * cannot use.
 */
int device_cuda_seen(void);

/* The CUDA version of this build's runtime, 13000 for 13.0; 0: this build has no CUDA. */
int device_cuda_version(void);

/*
 * PCI address of a CUDA device, "0000:17:00.0" as in sysfs and NVML (nvml.h). To be called after
 * device_cuda_count; needs no context. Returns 0, or -1: unknown.
 */
int device_cuda_pci(int index, char *pci, size_t size);

/* A vendor library as found at run time. */
struct device_library {
    const char *name; /* "cuDNN" */
    const char *file; /* the file that was opened; NULL: none */
    char version[32]; /* "9.19.0" */
};

/* The i-th vendor library of kernels and communicators. Returns 0 after the last one,
 * else 1; err has the reason if it could not be opened. */
int device_cuda_library(int i, struct device_library *library, struct err *err);

#endif
