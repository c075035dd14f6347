/*
 * linear_impl.h - what linear.c and linear_fp8.c share
 */
#ifndef KERNELS_CPU_LINEAR_IMPL_H
#define KERNELS_CPU_LINEAR_IMPL_H

#include "kernels/cpu/gemm_impl.h"

/* Of the product behind an op: a and b are its inputs in order, c its output. */
struct cpu_gemm_shape cpu_linear_shape(const struct op_shape *op);

/* db = (first ? 0 : db) + the sums of dy's columns. */
void cpu_linear_db(struct kernels *kernels, const struct tensor *dy, const struct tensor *db,
                   int first);

#endif
