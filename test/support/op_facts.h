/*
 * op_facts.h - what tests know of each op kind
 *
 * The other side of the catalogue's rows (ops/op_info.h): an example, all spreads that the op
 * takes, what it computes in plain double precision, and its own checks. They stand together in a
 * file a family, support/ops/FAMILY.c, and tests go through all kinds.
 *
 * References are written to be read beside ops.h, not to be fast. Floating-point operands are dense
 * DTYPE_F64 whatever the catalogue says; integers are as there. Nothing is shared with lib/kernels
 * but the definition of random numbers. What run executes (collectives, copies) has none.
 */
#ifndef TEST_SUPPORT_OP_FACTS_H
#define TEST_SUPPORT_OP_FACTS_H

#include "ops/ops.h"

/* How an accumulated output starts: at zero (as a kernel's under KERNELS_FIRST), or as it is. */
enum run_turn { RUN_AGAIN, RUN_FIRST };

struct op_facts {
    /* A good op with every optional operand, as op_text.h has it, by the attributes there. */
    const char *example;

    /*
     * All spreads that the op takes, inputs > outputs, a letter each: s same, r split(rows), c
     * split(cols), p partial. "ss > s; rs > r". Whatever is not here must be refused.
     */
    const char *spreads;

    /* Called by reference_run, which lets accumulated outputs start at zero where the op is
     * first. */
    void (*reference)(const struct op_shape *op);

    /* Holds references of gradients against differences of this forward's (gradient_check.h);
     * one of a family's may do so for several. Or NULL. */
    void (*gradients)(void);

    /* Holds kernels against the reference (op_case_check): sizes and dtypes that they must be right
     * at. On the CPU and on the emulated GPU. NULL: a test in test/kernels does. */
    void (*kernels)(void);
};

const struct op_facts *op_facts(enum op_kind kind);

/* Its example. */
const char *op_example(enum op_kind kind);

/* Run an op's reference. */
void reference_run(const struct op_shape *op, enum run_turn turn);

#endif
