/*
 * expert_slots.cuh - which rows of which expert a block has
 *
 * Rows come sorted by expert, and where an expert's end is known on the device alone. So the grid
 * is a bound, and blocks find out whose they are: expert e's tiles of OWN_ROWS rows are slots from
 * floor(begin / OWN_ROWS) + e on; these grow with e, so a warp finds a slot's expert by searching
 * in ends, two looks for 1024 experts, and no more than n_experts slots are too many; such blocks
 * end at once.
 */
#ifndef CUDA_EXPERT_SLOTS_CUH
#define CUDA_EXPERT_SLOTS_CUH

#include "cuda/gemm_own.cuh"

static __device__ __forceinline__ int begin_of(const int32_t *ends, int expert)
{
    return expert ? ends[expert - 1] : 0;
}

static __device__ __forceinline__ int slot_of(const int32_t *ends, int expert)
{
    return begin_of(ends, expert) / OWN_ROWS + expert;
}

/* The last expert whose slots begin at or before this one. By whole warps. */
static __device__ __forceinline__ int find_expert(const int32_t *ends, int n_experts, int slot)
{
    int lane = (int)threadIdx.x % 32, expert = 0;

    for (int left = n_experts; left > 1;) {
        int step = (left + 31) / 32, at = lane * step;
        int before = at < left && slot_of(ends, expert + at) <= slot;
        int skipped = (__popc(__ballot_sync(0xffffffffu, before)) - 1) * step;

        expert += skipped;
        left = min(step, left - skipped);
    }
    return expert;
}

/* Slots of so many rows of n_experts in all. */
static inline int n_expert_slots(int64_t n_rows, int n_experts)
{
    return (int)(n_rows / OWN_ROWS) + n_experts;
}

#endif
