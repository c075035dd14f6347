/*
 * norm.cuh - that norm.cu's gradients are in norm_grad.cu
 */
#ifndef CUDA_NORM_CUH
#define CUDA_NORM_CUH

#include "cuda/cuda.cuh"

void cuda_register_norm_grad(struct kernels_backend *table);

#endif
