/*
 * rng.cuh - base/rng.h's Philox in kernels: the same words for the same key and counter
 */
#ifndef CUDA_RNG_CUH
#define CUDA_RNG_CUH

#include "cuda/cuda.cuh"

/* At N counters low, low + 1, ... side by side, so that rounds' keys are made once. */
template <int N>
static __device__ __forceinline__ void cuda_philox_row(uint64_t key, uint64_t low, uint64_t high,
                                                       uint4 (&c)[N])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

#pragma unroll
    for (int i = 0; i < N; i++)
        c[i] = { (uint32_t)(low + i), (uint32_t)((low + i) >> 32), (uint32_t)high,
                 (uint32_t)(high >> 32) };
#pragma unroll
    for (int round = 0; round < 10; round++) {
        /* A __umulhi and its product are one instruction; of 64 bits they take an addition more. */
#pragma unroll
        for (int i = 0; i < N; i++)
            c[i] = { __umulhi(0xCD9E8D57u, c[i].z) ^ c[i].y ^ k0, 0xCD9E8D57u * c[i].z,
                     __umulhi(0xD2511F53u, c[i].x) ^ c[i].w ^ k1, 0xD2511F53u * c[i].x };
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

static __device__ __forceinline__ uint4 cuda_philox(uint64_t key, uint64_t low, uint64_t high)
{
    uint4 c[1];

    cuda_philox_row(key, low, high, c);
    return c[0];
}

#endif
