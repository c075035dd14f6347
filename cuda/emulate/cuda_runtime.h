/*
 * cuda_runtime.h - the part of CUDA that cuda/ uses, run on the CPU
 *
 * So that every kernel, and all host code around it, is tested where there is no GPU: g++ compiles
 * the same sources with this header in the place of the toolkit's. Blocks run one after the other;
 * a block's threads are fibers, switched where they meet (__syncthreads, warp shuffles, votes,
 * matrix instructions). A thread that does not come to a meeting ends the process with the place.
 *
 * A GPU may do what is wrong in a kernel a favour; here it is as unkind as CUDA allows. Always: an
 * asynchronous copy lands at its wait and no earlier, shared memory ends at a guard page and holds
 * 0xff when a block begins (shared.cc), device memory ends at one, too (memory.cc), a vector at an
 * odd address is refused (-fsanitize=alignment, mk/cuda.mk), as is what may not be called during a
 * capture (streams.cc). What is found names kernel, block and thread. The rest is chosen:
 *
 *   LMTRAIN_EMULATE_ASYNC    late | early     when asynchronous copies land
 *   LMTRAIN_EMULATE_BLOCKS   random | forward | reverse | SEED     the order of blocks; what was
 *                            drawn is said when the process fails
 *   LMTRAIN_EMULATE_ORDER    forward | backward | SEED     that of threads between meetings; a
 *                            result that depends on it is a race (op_case runs each op in two)
 *   LMTRAIN_EMULATE_STREAMS  eager | lazy | SEED     how far one stream may run ahead of another
 *   CUDA_DEVICE_MAX_CONNECTIONS                      how many hardware queues they share, of 8
 *   LMTRAIN_EMULATE_DEVICES, _MEMORY_GIB, _DRIVER, _WITHOUT, _FAIL     how many GPUs, how much
 *                            memory each has, their driver's version, which library is absent,
 *                            which kernel's launches fail
 *   CUDA_VISIBLE_DEVICES     which of the GPUs a process has, as CUDA reads it (needs _DEVICES)
 *   LMTRAIN_EMULATE_PCI      addresses of the machine's GPUs, `,` between them (machine.cc)
 *   LMTRAIN_EMULATE_NCCL, _NCCL_LOG     its version; a file for communicators made (nccl.h)
 *   LMTRAIN_EMULATE_ARCH     80 | 86 | 89 | 90 (of none other)     how much shared memory a block
 *                            may have; 90 where it is not set
 *   LMTRAIN_EMULATE_SLOW, _TARGET    which algorithm of cuBLASLt is slow, or is another with a target
 *                            of multiprocessors (cublaslt.cc)
 *   LMTRAIN_EMULATE_LOADING  strict     a kernel must have been loaded before it is launched; a
 *                            library's is by its first run, while no stream waits for a peer
 *
 * The first of each is the default; what is not drawn by default is run by single tests. Host
 * threads may be ranks, each with a device. test/cuda/emulator_test.cc has a wrong kernel for each.
 *
 * It knows nothing of time, of blocks that run at once, of the memory model beyond that, nor of
 * registers and instructions: those are for scripts/sass, and for real GPUs (scripts/gpu-check).
 */
#ifndef EMULATE_CUDA_RUNTIME_H
#define EMULATE_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <mutex>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
/* One block at a time runs on an OS thread. */
#define __shared__ static thread_local
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct uint3 {
    unsigned x, y, z;
};
struct __align__(8) int2
{
    int x, y;
};
struct __align__(16) int4
{
    int x, y, z, w;
};
struct __align__(8) uint2
{
    unsigned x, y;
};
struct __align__(16) uint4
{
    unsigned x, y, z, w;
};
struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return { x, y };
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return { x, y, z, w };
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return { x, y };
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return { x, y, z, w };
}

/* ---- where a thread is ---- */

extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* ---- meetings ---- */

void emulate_sync_block(void);
void emulate_sync_warp(unsigned mask);
/* What each lane of the mask gives, for all of them to read: [32], good until the lane's next
 * meeting but one. */
const uint64_t *emulate_exchange(unsigned mask, uint64_t value);
/* An instruction of a warp: once all lanes of the mask are here, work is called once with each
 * lane's record, NULL for lanes outside of the mask, and may write to them; then all go on. */
typedef void emulate_work(void *const *records);
void emulate_meet(unsigned mask, void *record, emulate_work *work);
/* The block's dynamic shared memory. It ends at a guard page: aligned to 16, or to the largest
 * power of two that its size is a multiple of. */
void *emulate_shared(void);
unsigned emulate_lane(void);

/* cp.async, for a kernel's thread (shared.cc); not is_given: zeros. */
void emulate_copy_async(void *to, const void *from, int n_bytes, bool is_given);
void emulate_copy_commit(void);
void emulate_copy_wait(int n_groups);
/* The instruction's n_bytes lie in the block's shared memory, at a multiple of n_bytes. */
void emulate_check_shared(const void *at, int n_bytes, const char *instruction);

static inline void __syncthreads(void)
{
    emulate_sync_block();
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulate_sync_warp(mask);
}
static inline void __threadfence(void)
{
}
static inline void __threadfence_block(void)
{
}
static inline void __trap(void)
{
    __builtin_trap();
}

template <typename T> static inline T emulate_shuffle(unsigned mask, T value, int from)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
    uint64_t bits = 0;
    T result;

    memcpy(&bits, &value, sizeof value);
    bits = emulate_exchange(mask, bits)[from & 31];
    memcpy(&result, &bits, sizeof result);
    return result;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32)
{
    int base = (int)emulate_lane() / width * width;
    return emulate_shuffle(mask, value, base + (from & (width - 1)));
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32)
{
    int lane = (int)emulate_lane(), from = lane ^ lanes;
    return emulate_shuffle(mask, value, from / width > lane / width ? lane : from);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    int lane = (int)emulate_lane(), from = lane + (int)by;
    return emulate_shuffle(mask, value, from / width > lane / width ? lane : from);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    int lane = (int)emulate_lane(), from = lane - (int)by;
    return emulate_shuffle(mask, value, from < lane / width * width ? lane : from);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    const uint64_t *all = emulate_exchange(mask, predicate != 0);
    unsigned result = 0;

    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1)
            result |= (unsigned)all[lane] << lane;
    return result;
}
/* The lanes of the mask whose value is this one's. */
static inline unsigned __match_any_sync(unsigned mask, unsigned value)
{
    const uint64_t *all = emulate_exchange(mask, value);
    unsigned result = 0;

    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane] == value)
            result |= 1u << lane;
    return result;
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned value)
{
    const uint64_t *all = emulate_exchange(mask, value);

    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane] > value)
            value = (unsigned)all[lane];
    return value;
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned value)
{
    return ~__reduce_max_sync(mask, ~value);
}
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}
static inline unsigned __activemask(void)
{
    return 0xffffffffu;
}
int __syncthreads_or(int predicate);
int __syncthreads_and(int predicate);
int __syncthreads_count(int predicate);

/* ---- arithmetic ---- */

#define CUDART_INF_F ((float)INFINITY)
static inline float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline float rsqrtf(float a)
{
    return 1.0f / sqrtf(a);
}
static inline unsigned __float_as_uint(float a)
{
    unsigned bits;
    memcpy(&bits, &a, sizeof bits);
    return bits;
}
static inline float __uint_as_float(unsigned bits)
{
    float a;
    memcpy(&a, &bits, sizeof a);
    return a;
}
static inline int __float_as_int(float a)
{
    return (int)__float_as_uint(a);
}
static inline float __int_as_float(int bits)
{
    return __uint_as_float((unsigned)bits);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __popc(unsigned a)
{
    return __builtin_popcount(a);
}
static inline int __clz(int a)
{
    return a ? __builtin_clz((unsigned)a) : 32;
}
static inline int __ffs(int a)
{
    return __builtin_ffs(a);
}
template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline void __stwb(T *p, T value)
{
    *p = value;
}
template <typename T> static inline T atomicAdd(T *p, T value)
{
    T old = *p;
    *p = old + value;
    return old;
}
template <typename T> static inline T atomicMax(T *p, T value)
{
    T old = *p;
    *p = old > value ? old : value;
    return old;
}
static inline unsigned atomicExch(unsigned *p, unsigned value)
{
    unsigned old = *p;
    *p = value;
    return old;
}
static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}

/* ---- the host's side ---- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorIllegalState = 401,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureMerge = 902,
    cudaErrorStreamCaptureUnmatched = 903,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorCapturedEvent = 907,
    cudaErrorStreamCaptureWrongThread = 908,
};
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError(void);

struct emulate_stream;
struct emulate_event;
struct emulate_graph;
typedef struct emulate_stream *cudaStream_t;
typedef struct emulate_event *cudaEvent_t;
typedef struct emulate_graph *cudaGraph_t;
typedef struct emulate_graph *cudaGraphExec_t;

enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum { cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, l2CacheSize;
};

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMalloc(void **memory, size_t n_bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t n_bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t n_bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t emulate_set_shared(const void *kernel, int n_bytes);
void emulate_load(const void *kernel);
bool emulate_may_load(void); /* what loads itself as it is first run */
struct cudaFuncAttributes {
    int numRegs;
};
template <typename K>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, K kernel)
{
    attributes->numRegs = 0;
    emulate_load((const void *)kernel);
    return cudaSuccess;
}
template <typename K>
static inline cudaError_t cudaFuncSetAttribute(K kernel, cudaFuncAttribute attribute, int value)
{
    return attribute == cudaFuncAttributeMaxDynamicSharedMemorySize
               ? emulate_set_shared((const void *)kernel, value)
               : cudaErrorInvalidValue;
}

struct emulate_launch {
    const char *name;   /* of the kernel, for messages */
    const void *kernel; /* its address: how much shared memory it may have */
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};

/* Every thread calls body once. Limits of a real device are checked; cudaGetLastError tells. */
void emulate_run(const struct emulate_launch *launch, std::function<void()> body);

/* Something for a stream to do in its turn (libraries that are emulated, too). */
cudaError_t emulate_enqueue(cudaStream_t stream, std::function<void()> work);

/*
 * The same, where it is not up to the stream alone when: ready is asked before run is called, needs
 * names streams that must go on first. Both are called, often, with emulate_lock held, which guards
 * whatever they look at; run is called without it. Each may be empty. What continues is part of the
 * kernel whose first item is before it in the stream: it needs no turn in the hardware's queue.
 */
struct emulate_item {
    std::function<void()> run;
    std::function<bool()> ready;
    std::function<void(std::vector<cudaStream_t> &needs)> needs;
    bool continues;
};
cudaError_t emulate_enqueue_item(cudaStream_t stream, emulate_item item);
std::mutex &emulate_lock(void);

bool emulate_is_capturing(cudaStream_t stream);
bool emulate_waits_for_peers(void); /* whether a call of NCCL is under way on any stream */
void emulate_settle(void);          /* run all that can run */
cudaError_t emulate_failure(void);  /* of kernels that have run: sticky */
cudaError_t emulate_error(cudaError_t error); /* for cudaGetLastError; returns it */

#endif
