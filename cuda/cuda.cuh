/*
 * cuda.cuh - what the op families of the CUDA backend share: the device, launches, rows, dtypes
 *
 * Each family file (norm.cu, linear.cu, ...) fills its rows of the instance's table in its
 * cuda_register_ function. A launcher only enqueues on the compute queue; it allocates nothing,
 * never waits and reads no device memory, so that what it does can be captured into a graph and
 * replayed. Whatever differs between runs (lr, skip, counts of rows) is therefore read by kernels.
 *
 * Numerics (design.md §5): a kernel's partition follows from shapes alone, sums go in a fixed
 * order, no float atomics; compiled without contraction (-fmad=false), so every fmaf is written.
 *
 * The same sources are compiled by nvcc, and by g++ with cuda/emulate's cuda_runtime.h, which runs
 * kernels on the CPU: what a kernel may use is what that header has. Launch with cuda_launch,
 * never with <<< >>>; dynamic shared memory comes from CUDA_SHARED.
 */
#ifndef CUDA_CUDA_CUH
#define CUDA_CUDA_CUH

#include <cuda_runtime.h>
#ifndef LMTRAIN_EMULATE
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define CUDART_INF_F __int_as_float(0x7f800000)
#endif

extern "C" {
#include "base/num.h"
#include "device/device.h"
#include "kernels/gpu_sizes.h"
#include "kernels/kernels.h"
}

/* ---- the device (device.cu) --------------------------------------------------------------------
 */

struct cuda_device {
    struct device base;
    int index;
    cudaStream_t queues[DEVICE_N_QUEUES]; /* NULL: not open */
    struct cudaDeviceProp properties;
    char description[320];
    int is_loading;     /* launches only load their kernels: cuda_load */
    struct err failure; /* the first of anything enqueued; no code: none yet */
};

static inline struct cuda_device *cuda_device_of(struct device *device)
{
    return (struct cuda_device *)device;
}

/* An open queue's stream. */
static inline cudaStream_t cuda_stream_of(const struct cuda_device *device, int queue)
{
    CHECK(device->queues[queue]);
    return device->queues[queue];
}

/* Keep the device's first failure: "what: cudaErrorName". */
void cuda_failed(struct cuda_device *device, const char *what, cudaError_t error);

static inline void cuda_check(struct cuda_device *device, const char *what, cudaError_t error)
{
    if (error != cudaSuccess)
        cuda_failed(device, what, error);
}

/* ---- the backend (kernels.cu) ------------------------------------------------------------------
 */

struct cuda_kernels {
    struct kernels base;
    struct kernels_backend table; /* base.backend: filled by the families */
    struct cuda_device *device;
    cudaStream_t stream; /* of DEVICE_COMPUTE */
    void *gemm;          /* gemm.cu's own: cuBLASLt's handle, descriptors, workspace */
    void *attention;     /* attention_cudnn.cu's own; NULL: there is no cuDNN */
    char identity[256];
};

static inline struct cuda_kernels *cuda_of(struct kernels *kernels)
{
    return (struct cuda_kernels *)kernels;
}

void cuda_register_elementwise(struct kernels_backend *table);
void cuda_register_norm(struct kernels_backend *table);
void cuda_register_rope(struct kernels_backend *table);
void cuda_register_head_norm(struct kernels_backend *table);
void cuda_register_normalize_rows(struct kernels_backend *table);
void cuda_register_embed(struct kernels_backend *table);
void cuda_register_dropout(struct kernels_backend *table);
void cuda_register_gradient_norm(struct kernels_backend *table);
void cuda_register_compress(struct kernels_backend *table);
void cuda_register_ema(struct kernels_backend *table);
void cuda_register_row_codec(struct kernels_backend *table);
void cuda_register_top_k(struct kernels_backend *table);
void cuda_register_low_rank(struct kernels_backend *table);
void cuda_register_optimizer(struct kernels_backend *table);
void cuda_register_muon(struct kernels_backend *table);
void cuda_register_pages(struct kernels_backend *table);
void cuda_register_router(struct kernels_backend *table);
void cuda_register_router_grad(struct kernels_backend *table);
void cuda_register_gate_rows(struct kernels_backend *table);
void cuda_register_dispatch(struct kernels_backend *table);
void cuda_register_linear(struct kernels_backend *table);
void cuda_register_linear_fp8(struct kernels_backend *table);
void cuda_register_fp8_weights(struct kernels_backend *table);
void cuda_register_expert_linear(struct kernels_backend *table);
void cuda_register_experts_fp8(struct kernels_backend *table);
void cuda_register_limit_choices(struct kernels_backend *table);
void cuda_register_lora(struct kernels_backend *table);
void cuda_register_head(struct kernels_backend *table);
void cuda_register_cross_entropy(struct kernels_backend *table);
void cuda_register_attention(struct kernels_backend *table);
void cuda_register_attention_cached(struct kernels_backend *table);

/* For prepare: the kind's accumulator, output k, is written as fp32 alone. */
static inline int cuda_want_fp32(const struct kernel_call *call, int k, struct err *err)
{
    if (!tensor_given(&call->op.out[k]) || call->op.out[k].dtype == DTYPE_F32)
        return 0;
    return err_set(err, ERR_DEVICE,
                   "%s: the cuda backend has no kernel with an accumulator of %s (hint: "
                   "train.gradient_dtype fp32)",
                   op_info(call->op.kind)->name, dtype_name(call->op.out[k].dtype));
}

/* What collectives compute around their moves (reduce.cu); of it, what is done with rows of experts
 * (expert_rows.cu), and loading that. */
const struct kernels_traffic *cuda_traffic(void);
void cuda_pack_rows(struct kernels *kernels, int queue, const struct kernels_rows *rows);
void cuda_unpack_rows(struct kernels *kernels, int queue, const struct kernels_rows *rows);
void cuda_load_rows(struct kernels *kernels, int queue);

/* ---- launching ---------------------------------------------------------------------------------
 */

struct cuda_shape {
    dim3 grid, block;
    size_t shared_bytes; /* dynamic */
};

enum { CUDA_SHARED_BYTES = 48 << 10 }; /* that every launch may have without asking for it */

/* More than CUDA_SHARED_BYTES for the launches that follow. */
template <typename... P>
static inline void cuda_allow_shared(struct cuda_device *device, const char *name,
                                     void (*kernel)(P...), size_t n_bytes)
{
    cuda_check(
        device, name,
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes));
}

/*
 * A kernel's code is otherwise loaded when it is first launched, which may wait for the device to
 * be idle: without end, where a receive waits on it for a rank that waits to load a kernel, too.
 */
template <typename... P>
static inline void cuda_load(struct cuda_device *device, const char *name, void (*kernel)(P...))
{
    struct cudaFuncAttributes attributes;

    cuda_check(device, name, cudaFuncGetAttributes(&attributes, kernel));
}

/*
 * Enqueue kernel(arguments...) on the stream. name: the op's, for a failure's message. A grid of
 * no block is nothing.
 */
template <typename... P, typename... A>
static inline void cuda_launch_on(struct cuda_device *device, cudaStream_t stream, const char *name,
                                  struct cuda_shape shape, void (*kernel)(P...), A... arguments)
{
    if (device->is_loading)
        cuda_load(device, name, kernel);
    if (device->is_loading || !shape.grid.x || !shape.grid.y || !shape.grid.z)
        return;
    if (shape.shared_bytes > CUDA_SHARED_BYTES)
        cuda_allow_shared(device, name, kernel, shape.shared_bytes);
#ifdef LMTRAIN_EMULATE
    struct emulate_launch launch = { name,        (const void *)kernel, shape.grid,
                                     shape.block, shape.shared_bytes,   stream };
    emulate_run(&launch, [=] { kernel(P(arguments)...); });
#else
    kernel<<<shape.grid, shape.block, shape.shared_bytes, stream>>>(P(arguments)...);
#endif
    cuda_check(device, name, cudaGetLastError());
}

template <typename... P, typename... A>
static inline void cuda_launch(struct kernels *kernels, const struct kernel_call *call,
                               struct cuda_shape shape, void (*kernel)(P...), A... arguments)
{
    cuda_launch_on(cuda_of(kernels)->device, cuda_of(kernels)->stream, op_info(call->op.kind)->name,
                   shape, kernel, arguments...);
}

/* Shared memory that a block may have: 227 KiB on sm_90, 163 on sm_80, 99 on sm_86 and sm_89. */
static inline size_t cuda_shared_bytes_max(struct kernels *kernels)
{
    return cuda_of(kernels)->device->properties.sharedMemPerBlockOptin;
}

/* For prepare: whether the device has the shared memory that a block of the call's needs. */
static inline int cuda_want_shared(struct kernels *kernels, const struct kernel_call *call,
                                   size_t n_bytes, struct err *err)
{
    if (n_bytes <= cuda_shared_bytes_max(kernels))
        return 0;
    return err_set(err, ERR_DEVICE, "%s: needs %zu bytes of shared memory for a block, %s has %zu",
                   op_info(call->op.kind)->name, n_bytes, cuda_of(kernels)->device->properties.name,
                   cuda_shared_bytes_max(kernels));
}

/* Declares `type *name`: the block's dynamic shared memory. */
#ifdef LMTRAIN_EMULATE
#define CUDA_SHARED(type, name) type *name = (type *)emulate_shared()
#else
#define CUDA_SHARED(type, name) \
    extern __shared__ __align__(1024) unsigned char cuda_shared_bytes[]; \
    type *name = (type *)cuda_shared_bytes
#endif

/* One-dimensional grids: n things, `each` a block. */
static inline struct cuda_shape cuda_shape_of(int64_t n_blocks, int n_threads,
                                              size_t shared_bytes = 0)
{
    struct cuda_shape shape = { dim3((unsigned)n_blocks), dim3((unsigned)n_threads), shared_bytes };

    return shape;
}

/* A bug in what a kernel was given (an index out of its table): as CHECK, but the device tells no
 * place; its next wait fails. */
static __device__ __forceinline__ void device_check(bool holds)
{
    if (!holds)
        __trap();
}

/* ---- elements ----------------------------------------------------------------------------------
 */

/* Storage of activations and weights; arithmetic is float's. */
struct bf16 {
    uint16_t bits;
};
struct fp16 {
    uint16_t bits;
};

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}

static __device__ __forceinline__ float to_float(bf16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

static __device__ __forceinline__ float to_float(fp16 x)
{
#ifdef LMTRAIN_EMULATE
    _Float16 half;
    memcpy(&half, &x, sizeof half);
    return (float)half;
#else
    return __half2float(__ushort_as_half(x.bits));
#endif
}

/* Round to nearest, ties to even. from_float<T>(x). */
template <typename T> __device__ __forceinline__ T from_float(float x);

template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}

template <> __device__ __forceinline__ bf16 from_float<bf16>(float x)
{
#ifdef LMTRAIN_EMULATE
    return bf16{ bf16_from_float(x) };
#else
    return bf16{ __bfloat16_as_ushort(__float2bfloat16_rn(x)) };
#endif
}

template <> __device__ __forceinline__ fp16 from_float<fp16>(float x)
{
#ifdef LMTRAIN_EMULATE
    _Float16 half = (_Float16)x;
    fp16 result;
    memcpy(&result, &half, sizeof half);
    return result;
#else
    return fp16{ __half_as_ushort(__float2half_rn(x)) };
#endif
}

/* Two floats, rounded by one instruction to one register: the first in its lower half. */
template <typename T> static __device__ __forceinline__ uint32_t from_floats(float low, float high)
{
    return (uint32_t)from_float<T>(high).bits << 16 | from_float<T>(low).bits;
}

#ifndef LMTRAIN_EMULATE
template <> __device__ __forceinline__ uint32_t from_floats<bf16>(float low, float high)
{
    __nv_bfloat162_raw pair = __floats2bfloat162_rn(low, high);

    return (uint32_t)pair.y << 16 | pair.x;
}

template <> __device__ __forceinline__ uint32_t from_floats<fp16>(float low, float high)
{
    __half2_raw pair = __floats2half2_rn(low, high);

    return (uint32_t)pair.y << 16 | pair.x;
}
#endif

/* N elements that are loaded and stored at once; the address must be a multiple of their size. */
template <typename T, int N> struct __align__(sizeof(T) * N) packed
{
    T at[N];
};

/* Call f(T()) with the element type of an activation: cuda_with_act(dtype, [&](auto zero)
 * {...}). */
template <typename F> static inline void cuda_with_act(enum dtype dtype, F f)
{
    switch (dtype) {
    case DTYPE_BF16:
        f(bf16());
        break;
    case DTYPE_F16:
        f(fp16());
        break;
    case DTYPE_F32:
        f(0.0f);
        break;
    default:
        CHECK(!"an activation's dtype");
    }
}

/* The same of ops on the residual stream: f(T(), R()), R its element type, float or T where that is
 * bf16. */
template <typename F> static inline void cuda_with_act_and_res(enum dtype act, enum dtype res, F f)
{
    if (res == DTYPE_BF16)
        f(bf16(), bf16());
    else
        cuda_with_act(act, [&](auto zero) { f(zero, 0.0f); });
}

/* ---- operands ----------------------------------------------------------------------------------
 */

/* A tensor as a kernel sees it: element (r, c) is at[r * stride + c]; at is NULL if not given. */
template <typename T> struct rows_of {
    T *at;
    int64_t stride;
    __device__ __forceinline__ T *row(int64_t r) const
    {
        return at + r * stride;
    }
};

template <typename T> static inline struct rows_of<T> cuda_rows(const struct tensor *t) {
    return rows_of<T>{ tensor_given(t) ? (T *)t->data : NULL, t->stride };
}

/* Rows one after the other, or no rows at all. */
static inline bool
cuda_is_dense(const struct tensor *t)
{
    return !tensor_given(t) || t->rows == 1 || t->stride == t->cols;
}

/*
 * Whether rows begin at multiples of n_bytes and are whole multiples of it long, so that they can
 * be read n_bytes at a time. Ask it of every operand; else the kernel goes one by one.
 */
static inline int cuda_is_aligned(const struct tensor *t, size_t n_bytes)
{
    size_t element = dtype_bytes(t->dtype);

    return !tensor_given(t) ||
           ((uintptr_t)t->data % n_bytes == 0 && (size_t)t->cols * element % n_bytes == 0 &&
            (t->rows == 1 || (size_t)t->stride * element % n_bytes == 0));
}

/* ---- sums over threads -------------------------------------------------------------------------
 *
 * A tree of fixed shape: the same bits whatever runs beside.
 */

template <typename T> static __device__ __forceinline__ T warp_sum(T x)
{
    for (int lanes = 16; lanes; lanes /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
    for (int lanes = 16; lanes; lanes /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

/*
 * Over all threads of a block of whole warps, at most 1024; all get it. shared: 32 elements of T
 * that nothing else uses between two of these calls.
 */
template <typename T> static __device__ inline T block_sum(T x, T *shared)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int n_warps = (int)blockDim.x / 32;

    x = warp_sum(x);
    __syncthreads();
    if (!lane)
        shared[warp] = x;
    __syncthreads();
    return warp_sum(lane < n_warps ? shared[lane] : T(0));
}

static __device__ inline float block_max(float x, float *shared)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int n_warps = (int)blockDim.x / 32;

    x = warp_max(x);
    __syncthreads();
    if (!lane)
        shared[warp] = x;
    __syncthreads();
    return warp_max(lane < n_warps ? shared[lane] : -CUDART_INF_F);
}

#endif
