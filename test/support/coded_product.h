/*
 * coded_product.h - products of fp8 with an operand that was rounded before, beside those that
 * round it themselves: their bits are the same
 */
#ifndef TEST_SUPPORT_CODED_PRODUCT_H
#define TEST_SUPPORT_CODED_PRODUCT_H

#include "support/op_case.h"

/* Inputs of a product: its weight, and the largest elements of the weight's blocks. */
struct coded_weight {
    int w, most;
    struct ops_fp8_matrix matrix; /* or those of experts */
};

/*
 * coded, whose weight is of u8: gets own's operands, its weight in codes of fp8_weight_codes, and
 * what fp8_weight_amax has found of it.
 */
void coded_product_fill(struct op_case *coded, const struct op_case *own,
                        const struct coded_weight *weight);

/* coded agrees with its reference and has own's bits, else the test fails with what they depend on.
 * Both are destroyed. */
void coded_product_check(struct op_case *coded, struct op_case *own, const char *what);

#endif
