/*
 * optimizer.cuh - what the optimizers' kernels share: masters in two words, rounding by chance
 */
#ifndef CUDA_OPTIMIZER_CUH
#define CUDA_OPTIMIZER_CUH

#include "cuda/rows.cuh"

/* optimizer_blocks.cu: the update of any optimizer, whatever its states. */
void cuda_update_by_blocks(struct kernels *kernels, const struct kernel_call *call);

/*
 * A bf16 that is rounded as an upper word is (base/halves.h), to nearest, halves away from zero. As
 * a master beside fp32 moments it has another operand for the lower words.
 */
struct upper16 {
    uint16_t bits;
};

static __device__ __forceinline__ uint32_t is_nan(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

template <> __device__ __forceinline__ upper16 from_float<upper16>(float x)
{
    uint32_t bits = __float_as_uint(x);

    return upper16{ (uint16_t)(is_nan(bits) ? bits >> 16 | 0x40 : (bits + 0x8000u) >> 16) };
}

/* What the upper word leaves out. */
static __device__ __forceinline__ uint16_t lower_of(float x)
{
    uint32_t bits = __float_as_uint(x);

    return (uint16_t)(is_nan(bits) ? 0 : bits);
}

/* The lower word counts as a negative number where the upper one was rounded up. */
static __device__ __forceinline__ float join(uint32_t upper, uint32_t lower)
{
    return __uint_as_float((upper << 16) + lower - ((lower & 0x8000u) << 1));
}

/*
 * The upper half is x rounded by 16 random bits. Infinity has none below, so it stays; so does NaN,
 * which an operation has made, and so one whose upper half alone is one.
 */
static __device__ __forceinline__ uint32_t rounded(float x, uint32_t bits16)
{
    uint32_t bits = __float_as_uint(x);

    return x == x ? bits + bits16 : bits;
}

#endif
