/*
 * softmax.cuh - a row of logits: its largest, the sum of its exponentials, its loss, its gradient
 *
 * A block takes a row and reads it once for largest and sum together (Milakov & Gimelshein 2018): a
 * thread keeps both of what it has seen, in fp32, 16 elements at a time; threads' are joined in
 * fp64. Bits depend on the row's length alone: where rows are not aligned a thread has the same
 * elements, and loads them one by one.
 *
 * A NaN need not be the largest, but always reaches the sum, so the loss. Logits of -infinity add
 * nothing, and a row of nothing else has the sum 0.
 */
#ifndef CUDA_SOFTMAX_CUH
#define CUDA_SOFTMAX_CUH

#include "cuda/rows.cuh"

enum {
    SOFTMAX_THREADS = 512,
    SOFTMAX_BLOCKS = 3, /* that a multiprocessor is to have room for */
    SOFTMAX_AHEAD = 16  /* elements that a thread has loads of in flight */
};

struct softmax_row {
    float max;
    double sum; /* of e^(logit - max) */
};

/* What exponents are taken from; of a row of -infinity anything finite. */
static __device__ __forceinline__ float softmax_base(float max)
{
    return max == -CUDART_INF_F ? 0.0f : max;
}

/* Elements from `at` on, -infinity behind the row's end; N > 1: memory goes on to a whole pack. */
template <int N>
static __device__ __forceinline__ void load_logits(const float *row, int64_t at, int64_t n,
                                                   float *to)
{
    if (at < n)
        load_floats<float, N>(row + at, to);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (at + i >= n)
            to[i] = -CUDART_INF_F;
}

template <int N>
static __device__ __forceinline__ void add_logits(const float *logits, float *max, float *sum)
{
    float top = *max, more = 0, base;

#pragma unroll
    for (int i = 0; i < N; i++)
        top = fmaxf(top, logits[i]);
    base = softmax_base(top);
#pragma unroll
    for (int i = 0; i < N; i++)
        more += expf(logits[i] - base);
    *sum = (*max < top ? *sum * expf(*max - base) : *sum) + more;
    *max = top;
}

/* All threads of the block get it. WIDE: loads are of 16 bytes. */
template <int WIDE>
static __device__ inline struct softmax_row softmax_read(const float *row, int64_t n)
{
    __shared__ float shared_max[32];
    __shared__ double shared_sum[32];
    enum { PACK = 16 / sizeof(float), LOAD = WIDE ? PACK : 1 };
    float max = -CUDART_INF_F, sum = 0;
    struct softmax_row all;

    for (int64_t at = (int64_t)threadIdx.x * PACK; at < n; at += SOFTMAX_THREADS * SOFTMAX_AHEAD) {
        float logits[SOFTMAX_AHEAD];

#pragma unroll
        for (int i = 0; i < SOFTMAX_AHEAD; i += LOAD)
            load_logits<LOAD>(row, at + i / PACK * SOFTMAX_THREADS * PACK + i % PACK, n,
                              logits + i);
        add_logits<SOFTMAX_AHEAD>(logits, &max, &sum);
    }
    all.max = block_max(max, shared_max);
    all.sum = block_sum((double)sum * (double)expf(max - softmax_base(all.max)), shared_sum);
    return all;
}

/* -log softmax of the target's logit. */
static __device__ __forceinline__ double softmax_loss(float logit, float max, double log_sum)
{
    return log_sum - ((double)logit - (double)max);
}

/* What keeps log sum exp near 0: the coefficient of its square in the loss; where rows' squares
 * go, or NULL. */
struct softmax_z {
    double coefficient;
    double *squares;
};

/*
 * A row's square, by one thread; and what the gradient of the loss and of z lse^2 (2 z lse times the
 * probabilities) multiplies the probabilities by. Without z exactly 1.
 */
static __device__ __forceinline__ void softmax_put_square(const struct softmax_z &z, int64_t row,
                                                          double lse)
{
    if (z.squares)
        z.squares[row] = lse * lse;
}

static __device__ __forceinline__ double softmax_pull(const struct softmax_z &z, double lse)
{
    return z.coefficient > 0 ? 1.0 + 2.0 * z.coefficient * lse : 1.0;
}

/* Gradient in the target's logit; e: e^(logit - max). All others' is e * softmax_factor. */
static __device__ __forceinline__ float softmax_at_target(float e, double sum, double pull,
                                                          float scale)
{
    return (float)(((double)e / sum * pull - 1.0) * (double)scale);
}

static __device__ __forceinline__ float softmax_factor(double sum, double pull, float scale)
{
    return (float)((double)scale * pull / sum);
}

/*
 * to[i] = e^(from[i] - max) * factor for i < n, 0 for the rest of n_cols; but at_target at
 * `target`, where 0 <= target < n. N elements are stored at once; N > 1: memory goes on to a whole
 * pack.
 *
 * to may be the memory of from, of 16-bit elements too: step s then writes over what steps up to s
 * / 2 read, so no thread may be at s before all have read that. Where they meet in step s, they may
 * go on to 2 s + 1; so they meet in steps 0, 2, 6, 14, ...
 */
template <typename T, int N>
static __device__ inline void softmax_gradient(T *to, const float *from, int64_t n, int64_t n_cols,
                                               float max, float factor, int64_t target,
                                               float at_target)
{
    enum { PACKS = SOFTMAX_AHEAD / 2 / N, STEP = SOFTMAX_THREADS * N };
    int64_t own = (int64_t)threadIdx.x * N;

    for (int64_t begin = 0, step = 0; begin < n_cols; begin += STEP * PACKS, step++) {
        float x[PACKS * N];

#pragma unroll
        for (int i = 0; i < PACKS; i++)
            load_logits<N>(from, begin + own + i * STEP, n, x + i * N);
        if (sizeof(T) < sizeof(float) && ((step + 2) & (step + 1)) == 0)
            __syncthreads();
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            int64_t at = begin + own + i * STEP;

            if (at >= n_cols)
                continue;
#pragma unroll
            for (int k = 0; k < N; k++)
                x[i * N + k] = expf(x[i * N + k] - max) * factor;
            /* Seldom: no test of each element. */
            if (at + N > n)
#pragma unroll
                for (int k = 0; k < N; k++)
                    x[i * N + k] = at + k < n ? x[i * N + k] : 0.0f;
            if (at <= target && target < at + N)
#pragma unroll
                for (int k = 0; k < N; k++)
                    x[i * N + k] = at + k == target ? at_target : x[i * N + k];
            store_floats<T, N>(to + at, x + i * N);
        }
    }
}

/* to[0 .. n_cols - 1] = 0; N as above. */
template <typename T, int N> static __device__ inline void softmax_zero(T *to, int64_t n_cols)
{
    const float zeros[N] = {};

    for (int64_t at = (int64_t)threadIdx.x * N; at < n_cols; at += SOFTMAX_THREADS * N)
        store_floats<T, N>(to + at, zeros);
}

/* ---- the sum over rows ---- */

enum { LOSS_THREADS = 1024 };

/* *loss = (first ? 0 : *loss) + the sum of n rows': a thread's in order, then a tree over
 * threads. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    sum_losses_kernel(const double *losses, int64_t n, double *loss, int first)
{
    __shared__ double shared[32];
    double sum = 0;

#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += LOSS_THREADS)
        sum += losses[i];
    sum = block_sum(sum, shared);
    if (!threadIdx.x)
        *loss = (first ? 0.0 : *loss) + sum;
}

static inline void cuda_sum_losses(struct kernels *kernels, const struct kernel_call *call,
                                   const double *losses, int64_t n, const struct tensor *loss,
                                   int first)
{
    cuda_launch(kernels, call, cuda_shape_of(1, LOSS_THREADS), sum_losses_kernel, losses, n,
                (double *)loss->data, first);
}

#endif
