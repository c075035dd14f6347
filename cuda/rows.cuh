/*
 * rows.cuh - what kernels of rows share: some neighbouring elements to and from floats
 *
 * A thread's pack is N elements, read and written 16 bytes at a time: CUDA_PACK<T> of a 16-bit type
 * are one access, and two of the fp32 operand beside it. N = 1 is the path of rows that are not
 * aligned.
 */
#ifndef CUDA_ROWS_CUH
#define CUDA_ROWS_CUH

#include "cuda/cuda.cuh"

/* N: elements of type T that are 16 bytes. Or one. To be handed to what is made for either. */
template <typename T> struct pack_of {
    enum { N = 16 / sizeof(T) };
};
struct pack_of_one {
    enum { N = 1 };
};

/*
 * N elements as they are in memory: whole 16 bytes, or one. Loads that are to be in flight together
 * are taken so first, and turned into floats when all are under way. (As words: fields of 16 bits
 * would be taken apart, and so waited for, where they are loaded.)
 */
template <typename T, int N> struct raw_pack {
    uint4 part[N * sizeof(T) / 16];
};
template <typename T> struct raw_pack<T, 1> {
    T part[1];
};

template <typename T, int N>
static __device__ __forceinline__ void load_raw(const T *from, raw_pack<T, N> *to)
{
    if constexpr (N == 1)
        to->part[0] = *from;
    else
#pragma unroll
        for (int i = 0; i < (int)(N * sizeof(T) / 16); i++)
            to->part[i] = ((const uint4 *)from)[i];
}

/* Element i of those that begin in the word. */
static __device__ __forceinline__ float word_float(unsigned word, int, float)
{
    return __uint_as_float(word);
}

template <typename T> static __device__ __forceinline__ float word_float(unsigned word, int i, T)
{
    return to_float(T{ (uint16_t)(i % 2 ? word >> 16 : word) });
}

template <typename T, int N>
static __device__ __forceinline__ void floats_of(const raw_pack<T, N> &from, float *to)
{
    enum { A_PART = 16 / sizeof(T), A_WORD = 4 / sizeof(T) };

    if constexpr (N == 1)
        to[0] = to_float(from.part[0]);
    else
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint4 &part = from.part[i / A_PART];
            int word = i % A_PART / A_WORD;

            to[i] = word_float(word == 0   ? part.x
                               : word == 1 ? part.y
                               : word == 2 ? part.z
                                           : part.w,
                               i, T());
        }
}

template <typename T, int N>
static __device__ __forceinline__ void load_floats(const T *from, float *to)
{
    if constexpr (N > 1 && N * sizeof(T) < 16) {
        packed<T, N> pack = *(const packed<T, N> *)from;

#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = to_float(pack.at[i]);
    } else {
        raw_pack<T, N> raw;

        load_raw<T, N>(from, &raw);
        floats_of<T, N>(raw, to);
    }
}

/*
 * N registers to an address of global memory that is a multiple of their bytes, or of 16. By
 * __stwb, which stores as `=` does, but in one instruction: the compiler takes uint4 apart, and
 * does not always join its members again.
 */
template <int N> static __device__ __forceinline__ void store_words(void *to, const uint32_t *words)
{
    static_assert(N == 1 || N == 2 || N % 4 == 0, "what one instruction stores, or several");

    if constexpr (N == 1)
        *(uint32_t *)to = words[0];
    else if constexpr (N == 2)
        __stwb((uint2 *)to, make_uint2(words[0], words[1]));
    else
#pragma unroll
        for (int i = 0; i < N; i += 4)
            __stwb((uint4 *)to + i / 4,
                   make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]));
}

template <typename T, int N>
static __device__ __forceinline__ void store_floats(T *to, const float *from)
{
    if constexpr (N * sizeof(T) < 4) {
        to[0] = from_float<T>(from[0]);
    } else if constexpr (sizeof(T) == 2) {
        uint32_t words[N / 2];

#pragma unroll
        for (int i = 0; i < N / 2; i++)
            words[i] = from_floats<T>(from[2 * i], from[2 * i + 1]);
        store_words<N / 2>(to, words);
    } else {
        uint32_t words[N];

#pragma unroll
        for (int i = 0; i < N; i++)
            words[i] = __float_as_uint(from[i]);
        store_words<N>(to, words);
    }
}

/*
 * The same of a row's end, n_left elements before it (none where n_left <= 0), zeros behind. Which
 * thread has which element must not depend on where rows lie, as sums' bits would: where rows are
 * not aligned (WIDE 0) the same N elements are taken one by one. WIDE: N divides the row.
 */
template <typename T, int N, int WIDE>
static __device__ __forceinline__ void load_row_floats(const T *from, int64_t n_left, float *to)
{
    if constexpr (WIDE) {
        raw_pack<T, N> raw = {}; /* zero in any type */

        if (n_left > 0)
            load_raw<T, N>(from, &raw);
        floats_of<T, N>(raw, to);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = i < n_left ? to_float(from[i]) : 0.0f;
    }
}

/* The same of what no kernel writes meanwhile, so that stores before it don't hold it up. */
template <int N, int WIDE>
static __device__ __forceinline__ void load_constants(const float *from, int64_t n_left, float *to)
{
#pragma unroll
    for (int i = 0; i < N; i += WIDE ? 4 : 1)
        if (WIDE) {
            float4 four = { 0.0f, 0.0f, 0.0f, 0.0f };

            if (n_left > 0)
                four = __ldg((const float4 *)(from + i));
            to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
        } else {
            to[i] = i < n_left ? __ldg(from + i) : 0.0f;
        }
}

template <typename T, int N, int WIDE>
static __device__ __forceinline__ void store_row_floats(T *to, int64_t n_left, const float *from)
{
    if (WIDE && n_left > 0)
        store_floats<T, N>(to, from);
    if (!WIDE)
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < n_left)
                to[i] = from_float<T>(from[i]);
}

/*
 * K sums over the LANES threads that have a row: a warp each, or a block of them. All get them.
 * shared: K * 32 floats, which no other call may use without a __syncthreads between.
 */
template <int LANES, int K>
static __device__ __forceinline__ void row_sums(float (&sums)[K], float *shared)
{
    enum { N_WARPS = LANES / 32 };

#pragma unroll
    for (int k = 0; k < K; k++)
        sums[k] = warp_sum(sums[k]);
    if (N_WARPS == 1)
        return;

    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

    if (!lane)
#pragma unroll
        for (int k = 0; k < K; k++)
            shared[k * 32 + warp] = sums[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; k++) {
        sums[k] = shared[k * 32 + lane % N_WARPS];
#pragma unroll
        for (int lanes = N_WARPS / 2; lanes; lanes /= 2)
            sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], lanes);
    }
}

/* Rectangles of a block's threads times `a_thread` elements along a row, a block a row: rows on x,
 * which has room for them. */
static inline struct cuda_shape cuda_shape_of_rows(int64_t n_rows, int64_t n_cols, int n_threads,
                                                   int a_thread)
{
    struct cuda_shape shape = { dim3((unsigned)n_rows,
                                     (unsigned)ceil_div(n_cols, (int64_t)n_threads * a_thread)),
                                dim3((unsigned)n_threads), 0 };

    return shape;
}

#endif
