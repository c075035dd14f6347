/*
 * linear_impl.h - what linear.c, linear_fp8.c and experts_fp8.c share
 */
#ifndef KERNELS_CPU_LINEAR_IMPL_H
#define KERNELS_CPU_LINEAR_IMPL_H

#include "kernels/cpu/gemm_impl.h"

/* Of the product behind an op: a and b are its inputs in order, c its output. */
struct cpu_gemm_shape cpu_linear_shape(const struct op_shape *op);

/* db = (first ? 0 : db) + the sums of dy's columns. */
void cpu_linear_db(struct kernels *kernels, const struct tensor *dy, const struct tensor *db,
                   int first);

/* One of linear_fp8 and its gradients, db left out. scratch: aligned to 64. */
void cpu_linear_fp8(struct kernels *kernels, const struct op_shape *op, char *scratch, int first);

/* No less than such an op takes that has at most as many rows of its first operand (of dw: of
 * both). */
size_t cpu_linear_fp8_scratch_most(struct kernels *kernels, const struct op_shape *op);

#endif
