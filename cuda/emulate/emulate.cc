/*
 * emulate.cc - launches and their limits, and the calls of the runtime that concern a whole device
 */
#include "emulate_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>

enum { MAX_THREADS = 1024, SHARED_MAX = 227 << 10, SHARED_DEFAULT = 48 << 10 };

int emulate_choice(const char *variable, const char *const *names)
{
    const char *text = getenv(variable);

    if (!text || !*text)
        return 0;
    for (int i = 0; names[i]; i++)
        if (!strcmp(text, names[i]))
            return i;
    fprintf(stderr, "emulated GPU: %s is '%s', not", variable, text);
    for (int i = 0; names[i]; i++)
        fprintf(stderr, " %s", names[i]);
    fputc('\n', stderr);
    abort();
}

static thread_local cudaError_t last_error;
/* Ranks may be threads of one process: the map is theirs together. */
static std::mutex *map_lock = new std::mutex();
static std::map<const void *, int> *shared_limits = new std::map<const void *, int>();

/* LMTRAIN_EMULATE_ARCH: 80, 86, 89 or 90, whose limits then hold. */
static int arch(void)
{
    const char *text = getenv("LMTRAIN_EMULATE_ARCH");

    return text && *text ? (int)strtol(text, NULL, 10) : 90;
}

static int arch_shared(void)
{
    return arch() == 90 ? SHARED_MAX : arch() == 80 ? 163 << 10 : 99 << 10;
}

cudaError_t emulate_set_shared(const void *kernel, int n_bytes)
{
    std::lock_guard<std::mutex> held(*map_lock);

    if (n_bytes > arch_shared())
        return last_error = cudaErrorInvalidValue;
    (*shared_limits)[kernel] = n_bytes;
    return cudaSuccess;
}

static size_t shared_limit(const void *kernel)
{
    std::lock_guard<std::mutex> held(*map_lock);

    return shared_limits->count(kernel) ? (size_t)(*shared_limits)[kernel] : (size_t)SHARED_DEFAULT;
}

/* $LMTRAIN_EMULATE_FAIL: a kernel's name, of which each launch fails, as seen by who waits for
 * it. */
static std::atomic<int> has_failed;

cudaError_t emulate_failure(void)
{
    return has_failed ? cudaErrorIllegalAddress : cudaSuccess;
}

static int is_to_fail(const emulate_launch *l)
{
    const char *name = getenv("LMTRAIN_EMULATE_FAIL");

    return name && !strcmp(name, l->name);
}

/* $LMTRAIN_EMULATE_LOADING `strict`: a kernel must have been loaded before it is launched. */
static std::set<const void *> *loaded = new std::set<const void *>();

void emulate_load(const void *kernel)
{
    std::lock_guard<std::mutex> held(*map_lock);

    loaded->insert(kernel);
}

static bool loading_is_strict(void)
{
    const char *mode = getenv("LMTRAIN_EMULATE_LOADING");

    return mode && !strcmp(mode, "strict");
}

bool emulate_may_load(void)
{
    return !loading_is_strict() || !emulate_waits_for_peers();
}

static int is_loaded(const emulate_launch *l)
{
    std::lock_guard<std::mutex> held(*map_lock);

    return !loading_is_strict() || loaded->count(l->kernel);
}

static int is_allowed(const emulate_launch *l)
{
    size_t threads = (size_t)l->block.x * l->block.y * l->block.z;

    return threads >= 1 && threads <= MAX_THREADS && l->block.z <= 64 && l->grid.x >= 1 &&
           l->grid.y >= 1 && l->grid.z >= 1 && l->grid.x <= 0x7fffffffu && l->grid.y <= 65535 &&
           l->grid.z <= 65535 && l->shared_bytes <= shared_limit(l->kernel);
}

void emulate_run(const emulate_launch *launch, std::function<void()> body)
{
    emulate_launch l = *launch;

    if (!is_loaded(&l)) {
        last_error = cudaErrorNotReady;
        return;
    }
    if (!is_allowed(&l)) {
        last_error = cudaErrorInvalidConfiguration;
        return;
    }
    emulate_enqueue(l.stream, [l, body] {
        has_failed = has_failed || is_to_fail(&l);
        emulate_run_grid(l, body);
    });
}

/* ---- the runtime
 * -------------------------------------------------------------------------------- */

cudaError_t emulate_error(cudaError_t error)
{
    return last_error = error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

#define NAMED(error) \
    { \
        error, #error \
    }

const char *cudaGetErrorName(cudaError_t error)
{
    static const struct {
        cudaError_t error;
        const char *name;
    } names[] = {
        NAMED(cudaSuccess),
        NAMED(cudaErrorInvalidValue),
        NAMED(cudaErrorMemoryAllocation),
        NAMED(cudaErrorInvalidConfiguration),
        NAMED(cudaErrorInsufficientDriver),
        NAMED(cudaErrorNoDevice),
        NAMED(cudaErrorIllegalState),
        NAMED(cudaErrorIllegalAddress),
        NAMED(cudaErrorNotReady),
        NAMED(cudaErrorStreamCaptureUnsupported),
        NAMED(cudaErrorStreamCaptureInvalidated),
        NAMED(cudaErrorStreamCaptureMerge),
        NAMED(cudaErrorStreamCaptureUnmatched),
        NAMED(cudaErrorStreamCaptureIsolation),
        NAMED(cudaErrorCapturedEvent),
        NAMED(cudaErrorStreamCaptureWrongThread),
    };

    for (const auto &named : names)
        if (named.error == error)
            return named.name;
    return "cudaError";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}

cudaError_t cudaGetDeviceCount(int *n)
{
    int driver, runtime;

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    *n = driver < runtime ? 0 : emulate_n_visible();
    if (driver < runtime)
        return cudaErrorInsufficientDriver;
    return *n > 0 ? cudaSuccess : cudaErrorNoDevice;
}

static thread_local int current_device;

int emulate_device(void)
{
    return current_device;
}

cudaError_t cudaSetDevice(int device)
{
    int n;

    cudaGetDeviceCount(&n);
    if (device >= n)
        return emulate_error(cudaErrorInvalidValue);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    (void)device;
    memset(prop, 0, sizeof *prop);
    strcpy(prop->name, "emulated GPU");
    prop->totalGlobalMem = emulate_memory_bytes();
    prop->sharedMemPerBlockOptin = (size_t)arch_shared();
    prop->major = arch() / 10;
    prop->minor = arch() % 10;
    prop->multiProcessorCount = 4;
    prop->l2CacheSize = 50 << 20;
    return cudaSuccess;
}

/* $LMTRAIN_EMULATE_DRIVER: the driver's version, 12040 for CUDA 12.4. */
cudaError_t cudaDriverGetVersion(int *version)
{
    const char *text = getenv("LMTRAIN_EMULATE_DRIVER");

    *version = text ? atoi(text) : 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}
