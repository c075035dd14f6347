/*
 * limit_choices.cu - choices beyond an expert's capacity are dropped
 *
 * A block an expert, which reads all choices, 256 at a time: they lie in the L2. By weight it first
 * finds the last one that is kept, eight bits at a time (a histogram of what agrees so far, by
 * integers: any order); then choices are kept in their order, as far as those before leave room.
 * Then one block counts what is dropped. Some ten microseconds, where experts take milliseconds.
 */
#include "cuda/cuda.cuh"

enum { N_THREADS = 256, WARPS = N_THREADS / 32 };

struct limiting {
    const int32_t *expert;
    const float *weight; /* or none */
    int32_t *kept;
    int64_t ld_expert, ld_weight, ld_kept, n_choices, capacity;
    int n_chosen, n_experts;
};

static __device__ __forceinline__ int expert_at(const limiting &p, int64_t choice)
{
    int expert = p.expert[choice / p.n_chosen * p.ld_expert + choice % p.n_chosen];

    device_check(expert >= 0 && expert < p.n_experts);
    return expert;
}

/* The larger, the more is the weight; what is no number is the largest. */
static __device__ __forceinline__ uint32_t key_at(const limiting &p, int64_t choice)
{
    if (!p.weight)
        return 0;
    float weight = p.weight[choice / p.n_chosen * p.ld_weight + choice % p.n_chosen];
    if (weight != weight)
        return 0xffffffffu;
    uint32_t bits = weight == 0 ? 0u : __float_as_uint(weight);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The key of the last that is kept, where there are more than the capacity; else 0. *n_equal: how
 * many that are equal to it are kept. By all threads. */
static __device__ uint32_t least_kept(const limiting &p, int expert, int64_t *n_equal, int *counts)
{
    uint32_t key = 0, known = 0;
    int64_t left = p.capacity;

    for (int shift = 24; shift >= 0; shift -= 8) {
        int digit = 255;

        counts[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t c = threadIdx.x; c < p.n_choices; c += N_THREADS)
            if (expert_at(p, c) == expert) {
                uint32_t k = key_at(p, c);

                if ((k & known) == key)
                    atomicAdd(&counts[k >> shift & 255], 1);
            }
        __syncthreads();
        for (; digit > 0 && left > counts[digit]; digit--)
            left -= counts[digit];
        key |= (uint32_t)digit << shift;
        known |= 255u << shift;
        __syncthreads();
    }
    *n_equal = left;
    return key;
}

static __global__ void __launch_bounds__(N_THREADS) limit_choices_kernel(limiting p)
{
    __shared__ int counts[N_THREADS], sums[WARPS];
    int expert = (int)blockIdx.x, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t n_equal = p.capacity, n = 0;
    uint32_t least = p.weight ? least_kept(p, expert, &n_equal, counts) : 0;

    for (int64_t begin = 0; begin < p.n_choices; begin += N_THREADS) {
        int64_t c = begin + threadIdx.x, before = n;
        bool is_own = c < p.n_choices && expert_at(p, c) == expert;
        uint32_t key = is_own ? key_at(p, c) : 0;
        unsigned lanes = __ballot_sync(0xffffffffu, is_own && key == least);

        if (!lane)
            sums[warp] = __popc(lanes);
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            before += w < warp ? sums[w] : 0;
            n += sums[w];
        }
        before += __popc(lanes & ((1u << lane) - 1));
        if (is_own)
            p.kept[c / p.n_chosen * p.ld_kept + c % p.n_chosen] =
                key > least || (key == least && before < n_equal) ? expert : -1;
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(N_THREADS)
    count_dropped_kernel(limiting p, double *dropped, int first)
{
    __shared__ int n;

    if (!threadIdx.x)
        n = 0;
    __syncthreads();
    for (int64_t c = threadIdx.x; c < p.n_choices; c += N_THREADS)
        if (p.kept[c / p.n_chosen * p.ld_kept + c % p.n_chosen] < 0)
            atomicAdd(&n, 1);
    __syncthreads();
    if (!threadIdx.x)
        *dropped = (first ? 0 : *dropped) + n;
}

static void limit_choices_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *expert = &call->op.in[LIMIT_CHOICES_EXPERT];
    const struct tensor *weight = &call->op.in[LIMIT_CHOICES_WEIGHT];
    const struct tensor *kept = &call->op.out[LIMIT_CHOICES_KEPT];
    const struct tensor *dropped = &call->op.out[LIMIT_CHOICES_DROPPED];
    limiting p = {};

    p.expert = (const int32_t *)expert->data;
    p.weight = tensor_given(weight) ? (const float *)weight->data : NULL;
    p.kept = (int32_t *)kept->data;
    p.ld_expert = expert->stride;
    p.ld_weight = weight->stride;
    p.ld_kept = kept->stride;
    p.n_choices = tensor_elements(expert);
    p.capacity = call->op.attributes.capacity;
    p.n_chosen = (int)expert->cols;
    p.n_experts = call->op.attributes.n_experts;
    cuda_launch(kernels, call, cuda_shape_of(p.n_experts, N_THREADS), limit_choices_kernel, p);
    if (tensor_given(dropped))
        cuda_launch(kernels, call, cuda_shape_of(1, N_THREADS), count_dropped_kernel, p,
                    (double *)dropped->data, first);
}

void cuda_register_limit_choices(struct kernels_backend *table)
{
    table->entries[OP_LIMIT_CHOICES].run = limit_choices_run;
}
