/*
 * same_bits.h - two runs of one op give the same bits: on the device under test and on the CPU, or
 * of operands that lie otherwise
 */
#ifndef TEST_SUPPORT_SAME_BITS_H
#define TEST_SUPPORT_SAME_BITS_H

#include "support/op_case.h"

/* As op_case_run, by the CPU's kernels whatever the device under test is. */
void op_case_run_on_cpu(struct op_case *c, int first);

/* Fails the test at the first element of an output that differs; `what` says against what. */
void op_case_same_outputs(const struct op_case *a, const struct op_case *b, const char *what);

#endif
