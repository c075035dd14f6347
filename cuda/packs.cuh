/*
 * packs.cuh - what launchers of kernels that take packs of columns share
 */
#ifndef CUDA_PACKS_CUH
#define CUDA_PACKS_CUH

#include "cuda/cuda.cuh"

/* Call f(T(), packs' length) for an activation: N as a type, 16 bytes where all are aligned. */
template <int N> struct length_of {
    enum { N_ELEMENTS = N };
};

template <typename F> static void with_packs(enum dtype dtype, int wide, F f)
{
    cuda_with_act(dtype, [&](auto zero) {
        if (wide)
            f(zero, length_of<16 / sizeof zero>());
        else
            f(zero, length_of<1>());
    });
}

#endif
