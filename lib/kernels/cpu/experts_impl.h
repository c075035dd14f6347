/*
 * experts_impl.h - what products of experts share, whatever their operands are rounded to
 */
#ifndef KERNELS_CPU_EXPERTS_IMPL_H
#define KERNELS_CPU_EXPERTS_IMPL_H

#include "kernels/cpu/cpu_impl.h"

/* What an op is made of, whichever it is. */
struct cpu_expert_operands {
    const struct tensor *rows, *ends, *other, *out; /* x or dy; ends; w, or x of dw; y, dx or dw */
    bool is_dw;
};
struct cpu_expert_operands cpu_expert_operands(const struct op_shape *op);

/* Rows of w, or of its gradient, that an expert has. */
int64_t cpu_rows_an_expert(const struct op_shape *op);

/* An expert and its rows, of which there is at least one. */
struct cpu_expert {
    int64_t number, begin, end;
};
typedef void (*cpu_expert_fn)(struct kernels *kernels, const struct kernel_call *call,
                              const struct cpu_expert *expert, int first);

/* run, for each of the op's experts that has rows; gradients of those that have none start over. */
void cpu_run_experts(struct kernels *kernels, const struct kernel_call *call, int first,
                     cpu_expert_fn run);

#endif
