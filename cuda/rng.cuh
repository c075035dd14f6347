/*
 * rng.cuh - base/rng.h's Philox in kernels: the same words for the same key and counter
 */
#ifndef CUDA_RNG_CUH
#define CUDA_RNG_CUH

#include "cuda/cuda.cuh"

static __device__ __forceinline__ uint4 cuda_philox(uint64_t key, uint64_t low, uint64_t high)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint4 c = { (uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32) };

#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c.x, p1 = (uint64_t)0xCD9E8D57u * c.z;

        c = { (uint32_t)(p1 >> 32) ^ c.y ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c.w ^ k1,
              (uint32_t)p0 };
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

#endif
