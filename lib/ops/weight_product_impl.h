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

/* Likewise, of expert_linear, expert_linear_dx (its check and FLOPs are the forward's) and
 * expert_linear_dw. */
double flops_expert_linear(const struct op_shape *op);
double flops_expert_linear_dw(const struct op_shape *op);
int check_expert_linear(const struct op_shape *op, struct err *err);
int spread_expert_linear(const struct spread_query *q);
int spread_expert_linear_dx(const struct spread_query *q);
int spread_expert_linear_dw(const struct spread_query *q);
void backward_expert_linear(struct backward *b, const struct op_node *op);

#endif
