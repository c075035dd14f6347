/*
 * router.cuh - what the kernels of routers and of their gradients share
 */
#ifndef CUDA_ROUTER_CUH
#define CUDA_ROUTER_CUH

#include "cuda/choices.cuh"

enum {
    TOKENS_A_BLOCK = 8,             /* a warp each */
    TOKENS_A_SUM = GPU_TOKENS_A_SUM /* of a block that adds up probabilities */
};

static __device__ __forceinline__ float sigmoid_of(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ double sum_of_all(const float *logits, int m, float max)
{
    double sum = 0;

    for (int e = (int)threadIdx.x % 32; e < m; e += 32)
        sum += (double)expf(logits[e] - max);
    return warp_sum(sum);
}

static __device__ __forceinline__ double sum_of_sigmoids(const float *logits, int m)
{
    double sum = 0;

    for (int e = (int)threadIdx.x % 32; e < m; e += 32)
        sum += (double)sigmoid_of(logits[e]);
    return warp_sum(sum);
}

/* Of the chosen: their sigmoids' sum, not 0. */
static __device__ __forceinline__ double sum_of_chosen(const float *logits, const int32_t *experts,
                                                       int n)
{
    double sum = 0;

    for (int i = (int)threadIdx.x % 32; i < n; i += 32)
        sum += (double)sigmoid_of(logits[experts[i]]);
    return warp_sum(sum) + 1e-20;
}

/* Tokens of which the balance is: n units of so many rows, each summed by so many blocks. */
struct balance_units {
    int64_t rows;
    int n, blocks;
};

static inline struct balance_units units_of(const struct op_attributes *a, int64_t n_tokens)
{
    struct balance_units u = {};

    u.rows = gpu_router_unit(a, n_tokens);
    u.n = (int)(n_tokens / u.rows);
    u.blocks = (int)ceil_div(u.rows, TOKENS_A_SUM);
    return u;
}

/*
 * A block a unit: how often each expert is chosen by its tokens, of all parts of n_tokens that
 * there are (layers, or parts of the same sequences). counts[units x m] of T choices.
 */
static __global__ void __launch_bounds__(256)
    unit_counts_kernel(struct choices c, struct balance_units u, int *counts)
{
    CUDA_SHARED(int, shared);
    unsigned n_tokens = (unsigned)(u.n * u.rows), n_rows = c.n_choices / c.n;
    unsigned n = (unsigned)u.rows * c.n;

    for (int e = (int)threadIdx.x; e < c.m; e += 256)
        shared[e] = 0;
    __syncthreads();
    for (unsigned part = 0; part < n_rows; part += n_tokens)
        for (unsigned i = threadIdx.x; i < n; i += 256)
            atomicAdd(
                &shared[choice_at<false>(c, (part + blockIdx.x * (unsigned)u.rows) * c.n + i, 0)],
                1);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < c.m; e += 256)
        counts[(int64_t)blockIdx.x * c.m + e] = shared[e];
}

/* Counts of each unit; of one unit by many blocks, whose counts are to be added. Returns how many
 * each unit has. */
static inline int count_units(struct kernels *kernels, const struct kernel_call *call,
                              const struct tensor *experts, int64_t m,
                              const struct balance_units &u, int *counts)
{
    struct choices c = choices_of(experts, m);

    if (u.n == 1) {
        choices_count(kernels, call, c, counts);
        return gpu_choices_blocks(experts);
    }
    cuda_launch(kernels, call, cuda_shape_of(u.n, 256, choices_shared_bytes(m)), unit_counts_kernel,
                c, u, counts);
    return 1;
}

#endif
