/*
 * attention.cuh - what the attentions share
 */
#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH

#include "cuda/mma.cuh"

/* ---- cuDNN's (attention_cudnn.cu) --------------------------------------------------------------
 *
 * Asked first when a call of attention or attention_grad is prepared. Weak: a build may lack it.
 */

struct cudnn_attention;

/* 1: it will do the call, by *attention; 0: it will not (the own kernels do); -1: failed. */
int cudnn_attention_prepare(struct cuda_kernels *cuda, const struct kernel_call *call,
                            struct cudnn_attention **attention, struct err *err)
    __attribute__((weak));
void cudnn_attention_run(struct cuda_kernels *cuda, const struct kernel_call *call,
                         struct cudnn_attention *attention) __attribute__((weak));
/* 0 where it will not do it. */
size_t cudnn_attention_scratch_bytes(struct cuda_kernels *cuda, const struct op_shape *op)
    __attribute__((weak));
void cudnn_attention_release(struct cudnn_attention *attention) __attribute__((weak));
/* All plans, when the backend goes. */
void cudnn_attention_close(struct cuda_kernels *cuda) __attribute__((weak));
/* What of it decides bits, for the backend's identity: "attention cudnn 91900 workspace 1024". */
void cudnn_attention_describe(struct cuda_kernels *cuda, char *text, size_t n_bytes)
    __attribute__((weak));

#endif
