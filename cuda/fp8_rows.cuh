/*
 * fp8_rows.cuh - codes of rows that products of fp8 read, by the kernel that makes the rows
 * (codes_output of ops/op_info.h), with the bits of linear_fp8.cu's own
 *
 * A thread has a pack of columns in registers, neighbouring lanes of a warp have neighbouring
 * packs, so that the lanes of a block of 128 find its largest element among themselves: the rows
 * are not read again. Where packs are single columns, or rows too long for a kernel's registers,
 * cuda_code_rows reads them after it.
 */
#ifndef CUDA_FP8_ROWS_CUH
#define CUDA_FP8_ROWS_CUH

#include <type_traits>

#include "cuda/e4m3.cuh"
#include "cuda/rows.cuh"

struct fp8_rows {
    uint8_t *codes; /* NULL: each row has one largest element */
    int64_t code_stride;
    float *most; /* NULL: nothing is rounded */
    int64_t most_stride;
};

struct fp8_rows cuda_fp8_rows(const struct op_shape *op);

/* Of what the op has stored, which is bf16. */
void cuda_code_rows(struct kernels *kernels, const struct kernel_call *call);

/* The bits of the largest |x| of each group of so many neighbouring lanes, a power of two. All of a
 * warp call it. */
static __device__ __forceinline__ uint32_t largest_among(uint32_t most, int lanes)
{
    for (lanes /= 2; lanes > 0; lanes /= 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, most, lanes);

        most = other > most ? other : most;
    }
    return most;
}

/* The same of the LANES threads that have a row; shared as of row_sums. */
template <int LANES>
static __device__ __forceinline__ uint32_t largest_of_row(uint32_t most, uint32_t *shared)
{
    enum { N_WARPS = LANES / 32 };

    most = largest_among(most, 32);
    if (N_WARPS == 1)
        return most;
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = most;
    __syncthreads();
    return largest_among(shared[threadIdx.x % N_WARPS], N_WARPS);
}

static __device__ __forceinline__ uint32_t coded_word(const float *x, float scale)
{
    float divisor = scale > 0 ? scale : 1.0f; /* nor NaN */
    uint32_t word = 0;

#pragma unroll
    for (int i = 0; i < 4; i++)
        word |= (uint32_t)e4m3_code(x[i] / divisor) << 8 * i;
    return scale > 0 ? word : 0;
}

/*
 * A pack of N columns from col on, as they are stored (n_left <= 0: there is none here), whose
 * block of 128 the `lanes` neighbours have. Returns the bits of its largest |x|.
 */
template <int N>
static __device__ __forceinline__ uint32_t code_pack(const fp8_rows &r, int64_t row, int64_t col,
                                                     const float (&x)[N], int64_t n_left, int lanes)
{
    uint32_t most = 0;

#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t size = __float_as_uint(x[i]) & 0x7fffffffu;

        most = size > most && n_left > 0 ? size : most;
    }
    if (!r.codes)
        return most;
    uint32_t all = largest_among(most, lanes);
    if (n_left <= 0)
        return most;
    if (threadIdx.x % lanes == 0)
        r.most[row * r.most_stride + col / OPS_FP8_BLOCK] = __uint_as_float(all);

    uint32_t words[N / 4];
    float scale = e4m3_scale(all);

#pragma unroll
    for (int i = 0; i < N / 4; i++)
        words[i] = coded_word(x + 4 * i, scale);
    store_words<N / 4>(r.codes + row * r.code_stride + col, words);
    return most;
}

/* The same of numbers before they are rounded to bf16; of another T there are no codes. */
template <typename T, int N>
static __device__ __forceinline__ uint32_t code_unrounded(const fp8_rows &r, int64_t row,
                                                          int64_t col, const float (&x)[N],
                                                          int64_t n_left, int lanes)
{
    if constexpr (!std::is_same<T, bf16>::value) {
        return 0;
    } else {
        float stored[N];

#pragma unroll
        for (int i = 0; i < N; i++)
            stored[i] = to_float(from_float<bf16>(x[i]));
        return code_pack<N>(r, row, col, stored, n_left, lanes);
    }
}

/* A row's largest element, of those that its LANES threads have found. */
template <int LANES>
static __device__ __forceinline__ void put_largest(const fp8_rows &r, int64_t row, uint32_t most,
                                                   uint32_t *shared)
{
    if (r.codes)
        return;
    most = largest_of_row<LANES>(most, shared);
    if (threadIdx.x % LANES == 0)
        r.most[row * r.most_stride] = __uint_as_float(most);
}

#endif
