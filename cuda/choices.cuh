/*
 * choices.cuh - the experts that tokens chose, read in order, and how often each was
 *
 * Choice c is of token c / n, its c % n-th. A block takes CHOICES_A_BLOCK that follow one another:
 * that, and not the machine, decides how counts are cut. Counts are integers, so they may be added
 * in any order.
 */
#ifndef CUDA_CHOICES_CUH
#define CUDA_CHOICES_CUH

#include "cuda/cuda.cuh"

enum { CHOICES_THREADS = 256, CHOICES_A_BLOCK = GPU_CHOICES_A_BLOCK };

struct choices {
    const int32_t *expert; /* [tokens x n], rows `stride` apart */
    int64_t stride;
    unsigned n, n_choices;
    int m;                /* experts */
    const int32_t *begin; /* where they are some of all: the number of the first; else NULL */
    int n_experts;        /* all */
};

static inline struct choices choices_of(const struct tensor *experts, int64_t m)
{
    struct choices c = { (const int32_t *)experts->data,
                         experts->stride,
                         (unsigned)experts->cols,
                         (unsigned)tensor_elements(experts),
                         (int)m,
                         NULL,
                         (int)m };

    return c;
}

template <bool PART> static __device__ __forceinline__ int first_expert(const struct choices &c)
{
    return PART ? *c.begin : 0;
}

/* PART: of the m experts from `begin` on; -1: it is another, or none. */
template <bool PART>
static __device__ __forceinline__ int choice_at(const struct choices &c, unsigned i, int begin)
{
    int expert = c.expert[i / c.n * c.stride + i % c.n];

    if constexpr (PART) {
        device_check(expert >= -1 && expert < c.n_experts);
        expert -= begin;
        return expert >= 0 && expert < c.m ? expert : -1;
    }
    device_check(expert >= 0 && expert < c.m);
    return expert;
}

static inline size_t choices_shared_bytes(int64_t m)
{
    return (size_t)m * sizeof(int);
}

/* counts[blocks x m]. Shared: m ints. */
template <bool PART>
__global__ void __launch_bounds__(CHOICES_THREADS)
    choices_count_kernel(struct choices c, int *counts)
{
    CUDA_SHARED(int, shared);
    unsigned begin = blockIdx.x * CHOICES_A_BLOCK;
    int first = first_expert<PART>(c);

    for (int e = (int)threadIdx.x; e < c.m; e += CHOICES_THREADS)
        shared[e] = 0;
    __syncthreads();
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < CHOICES_A_BLOCK; i += CHOICES_THREADS)
        if (begin + i < c.n_choices) {
            int e = choice_at<PART>(c, begin + i, first);

            if (!PART || e >= 0)
                atomicAdd(&shared[e], 1);
        }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < c.m; e += CHOICES_THREADS)
        counts[(int64_t)blockIdx.x * c.m + e] = shared[e];
}

static inline void choices_count(struct kernels *kernels, const struct kernel_call *call,
                                 const struct choices &c, int *counts)
{
    cuda_launch(kernels, call,
                cuda_shape_of(ceil_div(c.n_choices, CHOICES_A_BLOCK), CHOICES_THREADS,
                              choices_shared_bytes(c.m)),
                c.begin ? choices_count_kernel<true> : choices_count_kernel<false>, c, counts);
}

#endif
