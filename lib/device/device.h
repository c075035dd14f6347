/*
 * device.h - where a rank's values live and its kernels run: memory, copies, and their order
 *
 * A device has queues, each of which does what it is given in order; between queues only marks
 * order anything. The host's one (device_host) has a single queue in which all is done on return.
 * On a GPU calls only enqueue, unless they say that they wait, and the first failure of anything
 * enqueued is kept and told by device_wait.
 *
 * It knows no ops: kernels/kernels.h fills a table of these per device, and struct kernels says on
 * which device they run.
 *
 * A device is used by one thread, but for its marks' device_mark_done and for queues that another
 * thread has to itself.
 */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The kernels' queue, which is always there, and others for traffic: DEVICE_TRAFFIC + stream. */
enum { DEVICE_COMPUTE = 0, DEVICE_TRAFFIC = 1, DEVICE_N_QUEUES = 18 };

struct device;
struct device_mark;  /* a place in a queue */
struct device_graph; /* recorded work */

struct device_memory {
    size_t free_bytes, total_bytes; /* 0: the device does not say */
};

struct device_ops {
    const char *name; /* "cpu", "cuda" */

    /* Zeroed memory, aligned to 256 (the host's to 64). Returns 0, or -1 and ERR_DEVICE. Waits. */
    int (*allocate)(struct device *device, size_t n_bytes, void **memory, struct err *err);
    void (*release)(struct device *device, void *memory);

    /* Host memory that copies read and write beside the host's own work. Likewise. */
    int (*allocate_pinned)(struct device *device, size_t n_bytes, void **memory, struct err *err);
    void (*release_pinned)(struct device *device, void *memory);

    /*
     * Either side may be the device's or host memory. Host memory that is not pinned is read or
     * written before this returns, pinned memory when the queue comes to it.
     */
    void (*copy)(struct device *device, int queue, void *to, const void *from, size_t n_bytes);
    void (*fill)(struct device *device, int queue, void *to, int byte, size_t n_bytes);

    /* Until all that the queue was given is done. Returns 0, or -1 and the device's first failure,
     * which stays: the device is of no use then. */
    int (*wait)(struct device *device, int queue, struct err *err);

    struct device_memory (*memory)(struct device *device);
    void (*destroy)(struct device *device);

    /* All below may be NULL: the host has none. */

    /*
     * Make a queue, before it is first used; it may be there already. What it is given goes before
     * the kernels' queue's work that has not begun. Returns 0, or -1 and ERR_DEVICE.
     */
    int (*open_queue)(struct device *device, int queue, struct err *err);

    /* What a thread calls before anything else of the device, but for a copy. */
    void (*use)(struct device *device);

    int (*mark_create)(struct device *device, int timed, struct device_mark **mark,
                       struct err *err);
    void (*mark_destroy)(struct device *device, struct device_mark *mark);
    void (*mark)(struct device *device, int queue, struct device_mark *mark);
    /* What the queue is given from now on begins after the mark as it was last set. */
    void (*wait_mark)(struct device *device, int queue, struct device_mark *mark);
    /* Of marks made with timed, both of them passed. */
    double (*seconds)(struct device *device, struct device_mark *from, struct device_mark *to);
    int (*mark_done)(struct device *device, struct device_mark *mark); /* any thread */

    /*
     * Between begin and end what the compute queue is given is recorded, not done. Returns 0, or
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
    uint64_t hardware;       /* equal where instances, of whatever process, share a GPU; host: 0 */
};

/* This machine's processor and memory; never destroyed. Its blocks lie between guard pages. */
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

/*
 * CUDA's devices: how many there are, 0 also where there is no driver or this build has no CUDA
 * (*why, may be NULL, says which); and one of them, with its context. Returns 0, or -1 and
 * ERR_DEVICE.
 */
int device_cuda_count(const char **why);
int device_cuda_open(struct device **device, int index, struct err *err);

/*
 * How many GPUs a rank of this machine would find, by their files and CUDA_VISIBLE_DEVICES alone: no
 * driver is asked, which takes a while and does not bear a fork. 0 in builds without CUDA. Where it
 * is more than device_cuda_count, there are GPUs that this build cannot use.
 */
int device_cuda_seen(void);

/* The CUDA version of this build's runtime, 13000 for 13.0; 0: this build has no CUDA. */
int device_cuda_version(void);

/*
 * Where a GPU of CUDA's sits, "0000:17:00.0" as sysfs and NVML (nvml.h) have it. After
 * device_cuda_count, and without a context. Returns 0, or -1: not known.
 */
int device_cuda_pci(int index, char *pci, size_t size);

/* A vendor's library as this build finds it. */
struct device_library {
    const char *name; /* "cuDNN" */
    const char *file; /* which was opened; NULL: none */
    char version[32]; /* "9.19.0" */
};

/* The i-th of those that a GPU's kernels and communicators open. Returns 0 past the last of them,
 * else 1, with err saying why where there is no file. */
int device_cuda_library(int i, struct device_library *library, struct err *err);

#endif
