/*
 * reference_ops.h - every op of the catalogue in plain double precision, one loop nest each
 *
 * The other side of the kernels' tests. Floating-point operands are dense DTYPE_F64 whatever the
 * catalogue says; integers are as there. Nothing is shared with lib/kernels but the definition of
 * random numbers. Backward references are themselves held against finite differences of the forward
 * ones (test/kernels/reference_ops_test.c). Collectives are not here: run executes them.
 */
#ifndef TEST_SUPPORT_REFERENCE_OPS_H
#define TEST_SUPPORT_REFERENCE_OPS_H

#include "ops/ops.h"

/* Accumulated outputs start at zero where first is set. */
void reference_run(const struct op_shape *op, int first);

#endif
