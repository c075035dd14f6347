/*
 * kernel_case.h - one call of a kernel under hard conditions
 *
 * Operands have rows farther apart than they are long, with a canary in between; scratch is exactly
 * as large as the kernel asked for, poisoned, with a canary behind it.
 */
#ifndef SUPPORT_KERNEL_CASE_H
#define SUPPORT_KERNEL_CASE_H

#include "kernels/kernels.h"
#include "ops/op_info.h"
#include "support/acts.h"

/* Unit roundoff of fp32. */
#define CASE_U32 0x1p-24

/* Allocates rows x cols with pad elements between rows: canaries there, zeros else. */
void case_make(struct tensor *tensor, int64_t rows, int64_t cols, int64_t pad, enum dtype dtype);

/* Float elements uniform in [-1, 1), by element and seed; the canaries stay. */
void case_fill(struct tensor *tensor, uint64_t seed);

/* All elements NaN (integers: -1). */
void case_poison(struct tensor *tensor);

/* A dense copy of the same elements, with canaries of its own. */
void case_copy(struct tensor *to, const struct tensor *from);

void case_free(struct tensor *tensor);

/* Frees all operands of an op. */
void case_free_op(struct op_shape *op);

double case_get(const struct tensor *tensor, int64_t row, int64_t col);
void case_set(struct tensor *tensor, int64_t row, int64_t col, double value);

/* Whether two tensors of one shape hold the same bits. */
int case_equal(const struct tensor *a, const struct tensor *b);

/* Make a CPU backend of n_threads, prepare, run with first, release; fails the test if a canary
 * died. */
void case_run(const struct op_shape *op, int n_threads, int first);

/* Whether the backend here multiplies bf16 by itself. */
int case_has_bf16(void);

/*
 * Call tests() with each of LMTRAIN_CPU_ISA's values that this machine has, each in a process of its
 * own: another would be its best once more. On a GPU with each of them, for they come with an order
 * of the emulated GPU's threads. Returns the sum of failures.
 */
int case_each_isa(int (*tests)(void));

#endif
