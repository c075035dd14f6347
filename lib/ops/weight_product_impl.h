/*
 * weight_product_impl.h - what products with a weight share, whatever their operands are rounded to
 */
#ifndef OPS_WEIGHT_PRODUCT_IMPL_H
#define OPS_WEIGHT_PRODUCT_IMPL_H

#include "ops/family_impl.h"

/* Members of the rows of linear, linear_dx and linear_dw; and of kinds with their operands. */
double flops_linear(const struct op_shape *op);
double flops_linear_dx(const struct op_shape *op);
double flops_linear_dw(const struct op_shape *op);
int spread_linear(const struct spread_query *q);
int spread_linear_dx(const struct spread_query *q);
void backward_linear(struct backward *b, const struct op_node *op);

#endif
