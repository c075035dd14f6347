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

/* Of products whose operands are rounded (fp8_recipe.h): the recipe is one; the first operand is
 * bf16. Return 0, or -1 and ERR_FAILED. */
int check_fp8_recipe(const struct op_shape *op, struct err *err);
int check_bf16_operand(const struct op_shape *op, struct err *err);

/* Members that rows of products of experts share; w_type: what w may be. */
#define EXPERT_LINEAR_ROW(w_type) \
    .inputs[EXPERT_LINEAR_X] = { "x", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN }, \
    .inputs[EXPERT_LINEAR_ENDS] = { "ends", DIM_ONE, DIM_M, TYPE_I32, OPERAND_PLAIN }, \
    .inputs[EXPERT_LINEAR_W] = { "w", DIM_MN, DIM_K, w_type, OPERAND_PLAIN }, .n_outputs = 1, \
    .outputs[EXPERT_LINEAR_Y] = { "y", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN }, \
    .traits = TRAIT_EXPERT_ROWS, .ends_input = 1 + EXPERT_LINEAR_ENDS, .routed_rows = DIM_T, \
    .flops = flops_expert_linear, .backward = backward_expert_linear

#define EXPERT_LINEAR_DX_ROW(w_type) \
    .inputs[EXPERT_LINEAR_DX_DY] = { "dy", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN }, \
    .inputs[EXPERT_LINEAR_DX_ENDS] = { "ends", DIM_ONE, DIM_M, TYPE_I32, OPERAND_PLAIN }, \
    .inputs[EXPERT_LINEAR_DX_W] = { "w", DIM_MN, DIM_K, w_type, OPERAND_PLAIN }, .n_outputs = 1, \
    .outputs[EXPERT_LINEAR_DX_DX] = { "dx", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN }, \
    .ends_input = 1 + EXPERT_LINEAR_DX_ENDS, .routed_rows = DIM_T, .flops = flops_expert_linear

#define EXPERT_LINEAR_DW_ROW \
    .n_inputs = 3, .inputs[EXPERT_LINEAR_DW_DY] = { "dy", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN }, \
    .inputs[EXPERT_LINEAR_DW_X] = { "x", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN }, \
    .inputs[EXPERT_LINEAR_DW_ENDS] = { "ends", DIM_ONE, DIM_M, TYPE_I32, OPERAND_PLAIN }, \
    .n_outputs = 1, \
    .outputs[EXPERT_LINEAR_DW_DW] = { "dw", DIM_MN, DIM_K, TYPE_KEPT, OPERAND_ACCUMULATED }, \
    .routed_rows = DIM_T, .ends_input = 1 + EXPERT_LINEAR_DW_ENDS, \
    .spread = spread_expert_linear_dw, .flops = flops_expert_linear_dw

#endif
