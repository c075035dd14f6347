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

template <typename T, int N>
static __device__ __forceinline__ void load_floats(const T *from, float *to)
{
    enum { A_LOAD = N < 16 / (int)sizeof(T) ? N : 16 / (int)sizeof(T) };

#pragma unroll
    for (int i = 0; i < N; i += A_LOAD) {
        packed<T, A_LOAD> pack = *(const packed<T, A_LOAD> *)(from + i);

#pragma unroll
        for (int k = 0; k < A_LOAD; k++)
            to[i + k] = to_float(pack.at[k]);
    }
}

template <typename T, int N>
static __device__ __forceinline__ void store_floats(T *to, const float *from)
{
    enum { A_STORE = N < 16 / (int)sizeof(T) ? N : 16 / (int)sizeof(T) };

#pragma unroll
    for (int i = 0; i < N; i += A_STORE) {
        packed<T, A_STORE> pack;

#pragma unroll
        for (int k = 0; k < A_STORE; k++)
            pack.at[k] = from_float<T>(from[i + k]);
        *(packed<T, A_STORE> *)(to + i) = pack;
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
