/*
 * catalogue.c - the rows of the catalogue
 *
 * One row per kind and two tables in the order of enum op_kind: what everybody may ask (names,
 * flags) and what the checks need (dimensions, dtypes). A new kind goes into the enum, into both
 * tables, into op_flops and op_bytes (cost.c) where it is no plain sum, and into op_spread
 * (spread.c).
 */
#include <math.h>
#include <string.h>

#include "ops/rules_impl.h"

/* clang-format off */
static const struct op_info infos[N_OP_KINDS] = {
    [OP_EMBED] = { "embed", 4, 1,
        { { "index", 0 }, { "table", 0 }, { "base", OPERAND_OPTIONAL },
          { "begin", OPERAND_OPTIONAL } },
        { { "x", 0 } } },
    [OP_EMBED_DW] = { "embed_dw", 3, 1,
        { { "dx", 0 }, { "index", 0 }, { "begin", OPERAND_OPTIONAL } },
        { { "dtable", OPERAND_ACCUMULATED } } },
    [OP_RMSNORM] = { "rmsnorm", 2, 2,
        { { "x", 0 }, { "w", 0 } },
        { { "y", 0 }, { "rstd", 0 } } },
    [OP_RMSNORM_GRAD] = { "rmsnorm_grad", 5, 3,
        { { "dy", 0 }, { "x", 0 }, { "w", 0 }, { "rstd", 0 }, { "add", OPERAND_OPTIONAL } },
        { { "dx", 0 }, { "dw", OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
          { "copy", OPERAND_OPTIONAL } } },
    [OP_LAYERNORM] = { "layernorm", 3, 3,
        { { "x", 0 }, { "w", 0 }, { "b", OPERAND_OPTIONAL } },
        { { "y", 0 }, { "mean", 0 }, { "rstd", 0 } } },
    [OP_LAYERNORM_GRAD] = { "layernorm_grad", 6, 4,
        { { "dy", 0 }, { "x", 0 }, { "w", 0 }, { "mean", 0 }, { "rstd", 0 },
          { "add", OPERAND_OPTIONAL } },
        { { "dx", 0 }, { "dw", OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
          { "db", OPERAND_OPTIONAL | OPERAND_ACCUMULATED }, { "copy", OPERAND_OPTIONAL } } },
    [OP_ADD_RMSNORM] = { "add_rmsnorm", 3, 3,
        { { "x", 0 }, { "delta", 0 }, { "w", 0 } },
        { { "y", 0 }, { "rstd", 0 }, { "sum", 0 } } },
    [OP_ADD_LAYERNORM] = { "add_layernorm", 4, 4,
        { { "x", 0 }, { "delta", 0 }, { "w", 0 }, { "b", OPERAND_OPTIONAL } },
        { { "y", 0 }, { "mean", 0 }, { "rstd", 0 }, { "sum", 0 } } },
    [OP_LINEAR] = { "linear", 3, 1,
        { { "x", 0 }, { "w", 0 }, { "b", OPERAND_OPTIONAL } },
        { { "y", 0 } } },
    [OP_LINEAR_DX] = { "linear_dx", 2, 1,
        { { "dy", 0 }, { "w", 0 } },
        { { "dx", 0 } } },
    [OP_LINEAR_DW] = { "linear_dw", 2, 2,
        { { "dy", 0 }, { "x", 0 } },
        { { "dw", OPERAND_ACCUMULATED }, { "db", OPERAND_OPTIONAL | OPERAND_ACCUMULATED } } },
    [OP_ROPE] = { "rope", 3, 1,
        { { "qkv", 0 }, { "position", 0 }, { "table", 0 } },
        { { "out", OPERAND_IN_PLACE } } },
    [OP_ROPE_GRAD] = { "rope_grad", 3, 1,
        { { "dout", 0 }, { "position", 0 }, { "table", 0 } },
        { { "dqkv", OPERAND_IN_PLACE } } },
    [OP_HEAD_NORM] = { "head_norm", 3, 2,
        { { "qkv", 0 }, { "wq", 0 }, { "wk", 0 } },
        { { "out", 0 }, { "rstd", 0 } } },
    [OP_HEAD_NORM_GRAD] = { "head_norm_grad", 5, 3,
        { { "dout", 0 }, { "qkv", 0 }, { "wq", 0 }, { "wk", 0 }, { "rstd", 0 } },
        { { "dqkv", 0 }, { "dwq", OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
          { "dwk", OPERAND_OPTIONAL | OPERAND_ACCUMULATED } } },
    [OP_NORMALIZE_ROWS] = { "normalize_rows", 1, 2,
        { { "w", 0 } },
        { { "y", 0 }, { "norm", 0 } } },
    [OP_NORMALIZE_ROWS_GRAD] = { "normalize_rows_grad", 3, 1,
        { { "dy", 0 }, { "w", 0 }, { "norm", 0 } },
        { { "dw", OPERAND_ACCUMULATED } } },
    [OP_ATTENTION] = { "attention", 4, 2,
        { { "qkv", 0 }, { "sample", OPERAND_OPTIONAL }, { "begin", OPERAND_OPTIONAL },
          { "start", OPERAND_OPTIONAL } },
        { { "out", 0 }, { "lse", 0 } } },
    [OP_ATTENTION_GRAD] = { "attention_grad", 7, 1,
        { { "dout", 0 }, { "qkv", 0 }, { "out", 0 }, { "lse", 0 },
          { "sample", OPERAND_OPTIONAL }, { "begin", OPERAND_OPTIONAL },
          { "start", OPERAND_OPTIONAL } },
        { { "dqkv", 0 } } },
    [OP_ATTENTION_CACHED] = { "attention_cached", 7, 1,
        { { "qkv", 0 }, { "position", 0 }, { "keys", OPERAND_UPDATED },
          { "values", OPERAND_UPDATED }, { "begin", OPERAND_OPTIONAL },
          { "segment", OPERAND_OPTIONAL }, { "segments", OPERAND_OPTIONAL } },
        { { "out", 0 } } },
    [OP_SWIGLU] = { "swiglu", 1, 1,
        { { "gu", 0 } },
        { { "y", 0 } } },
    [OP_SWIGLU_GRAD] = { "swiglu_grad", 2, 1,
        { { "dy", 0 }, { "gu", 0 } },
        { { "dgu", 0 } } },
    [OP_GELU] = { "gelu", 1, 1,
        { { "x", 0 } },
        { { "y", 0 } } },
    [OP_GELU_GRAD] = { "gelu_grad", 2, 1,
        { { "dy", 0 }, { "x", 0 } },
        { { "dx", 0 } } },
    [OP_SCALE] = { "scale", 1, 1,
        { { "x", 0 } },
        { { "y", 0 } } },
    [OP_LORA] = { "lora", 7, 1,
        { { "y", 0 }, { "h0", OPERAND_OPTIONAL }, { "b0", OPERAND_OPTIONAL },
          { "h1", OPERAND_OPTIONAL }, { "b1", OPERAND_OPTIONAL }, { "h2", OPERAND_OPTIONAL },
          { "b2", OPERAND_OPTIONAL } },
        { { "out", 0 } } },
    [OP_ROUTER] = { "router", 1, 3,
        { { "logits", 0 } },
        { { "weight", 0 }, { "expert", 0 },
          { "stats", OPERAND_OPTIONAL | OPERAND_ACCUMULATED } } },
    [OP_ROUTER_GRAD] = { "router_grad", 6, 1,
        { { "dweight", 0 }, { "weight", 0 }, { "expert", 0 }, { "logits", OPERAND_OPTIONAL },
          { "scale", OPERAND_OPTIONAL }, { "choices", OPERAND_OPTIONAL } },
        { { "dlogits", 0 } } },
    [OP_EXPERT_ORDER] = { "expert_order", 1, 2,
        { { "expert", 0 } },
        { { "place", 0 }, { "ends", 0 } } },
    [OP_DISPATCH] = { "dispatch", 2, 1,
        { { "place", 0 }, { "x", 0 } },
        { { "y", 0 } } },
    [OP_COMBINE] = { "combine", 2, 1,
        { { "place", 0 }, { "y", 0 } },
        { { "x", 0 } } },
    [OP_EXPERT_LINEAR] = { "expert_linear", 3, 1,
        { { "x", 0 }, { "ends", 0 }, { "w", 0 } },
        { { "y", 0 } } },
    [OP_EXPERT_LINEAR_DX] = { "expert_linear_dx", 3, 1,
        { { "dy", 0 }, { "ends", 0 }, { "w", 0 } },
        { { "dx", 0 } } },
    [OP_EXPERT_LINEAR_DW] = { "expert_linear_dw", 3, 1,
        { { "dy", 0 }, { "x", 0 }, { "ends", 0 } },
        { { "dw", OPERAND_ACCUMULATED } } },
    [OP_EXPERT_SWIGLU] = { "expert_swiglu", 3, 1,
        { { "weight", 0 }, { "place", 0 }, { "gu", 0 } },
        { { "y", 0 } } },
    [OP_EXPERT_SWIGLU_GRAD] = { "expert_swiglu_grad", 4, 2,
        { { "weight", 0 }, { "place", 0 }, { "dy", 0 }, { "gu", 0 } },
        { { "dgu", 0 }, { "dweight", 0 } } },
    [OP_DROPOUT] = { "dropout", 3, 1,
        { { "x", 0 }, { "sample", 0 }, { "begin", OPERAND_OPTIONAL } },
        { { "y", 0 } } },
    [OP_DROPOUT_GRAD] = { "dropout_grad", 3, 1,
        { { "dy", 0 }, { "sample", 0 }, { "begin", OPERAND_OPTIONAL } },
        { { "dx", 0 } } },
    [OP_ADD] = { "add", 2, 1,
        { { "a", 0 }, { "b", 0 } },
        { { "y", 0 } } },
    [OP_ADD_BIAS] = { "add_bias", 2, 1,
        { { "x", 0 }, { "b", 0 } },
        { { "y", 0 } } },
    [OP_BIAS_GRAD] = { "bias_grad", 1, 1,
        { { "dy", 0 } },
        { { "db", OPERAND_ACCUMULATED } } },
    [OP_CAST] = { "cast", 1, 1,
        { { "x", 0 } },
        { { "y", 0 } } },
    [OP_SELECT_ROWS] = { "select_rows", 2, 1,
        { { "x", 0 }, { "index", 0 } },
        { { "y", 0 } } },
    [OP_HEAD_CROSS_ENTROPY] = { "head_cross_entropy", 4, 3,
        { { "x", 0 }, { "w", 0 }, { "target", 0 }, { "scale", 0 } },
        { { "dx", 0 }, { "dw", OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
          { "loss", OPERAND_ACCUMULATED } } },
    [OP_HEAD_LOSS] = { "head_loss", 3, 1,
        { { "x", 0 }, { "w", 0 }, { "target", 0 } },
        { { "loss", OPERAND_ACCUMULATED } } },
    [OP_LOGIT_STATS] = { "logit_stats", 3, 1,
        { { "logits", 0 }, { "target", 0 }, { "begin", OPERAND_OPTIONAL } },
        { { "stats", 0 } } },
    [OP_CROSS_ENTROPY] = { "cross_entropy", 5, 2,
        { { "logits", 0 }, { "stats", 0 }, { "target", 0 }, { "scale", 0 },
          { "begin", OPERAND_OPTIONAL } },
        { { "dlogits", OPERAND_OPTIONAL }, { "loss", OPERAND_ACCUMULATED } } },
    [OP_ACCUMULATE] = { "accumulate", 1, 1,
        { { "x", 0 } },
        { { "y", OPERAND_ACCUMULATED } } },
    [OP_ALL_GATHER] = { "all_gather", 1, 1,
        { { "shard", 0 } },
        { { "full", 0 } } },
    [OP_REDUCE_SCATTER] = { "reduce_scatter", 1, 1,
        { { "full", 0 } },
        { { "shard", 0 } } },
    [OP_ALL_REDUCE] = { "all_reduce", 1, 1,
        { { "x", 0 } },
        { { "y", 0 } } },
    [OP_ALL_REDUCE_SCALAR] = { "all_reduce_scalar", 1, 1,
        { { "x", 0 } },
        { { "y", 0 } } },
    [OP_GATHER_HEADS] = { "gather_heads", 1, 1,
        { { "qkv", 0 } },
        { { "out", 0 } } },
    [OP_GATHER_HEADS_GRAD] = { "gather_heads_grad", 1, 1,
        { { "dout", 0 } },
        { { "dqkv", 0 } } },
    [OP_SEND] = { "send", 1, 0,
        { { "x", 0 } },
        { { 0 } } },
    [OP_RECEIVE] = { "receive", 0, 1,
        { { 0 } },
        { { "y", 0 } } },
    [OP_SUM_RUNS] = { "sum_runs", 3, 1,
        { { "x", 0 }, { "ends", 0 }, { "order", OPERAND_OPTIONAL } },
        { { "y", 0 } } },
    [OP_SUMSQ] = { "sumsq", 1, 1,
        { { "x", 0 } },
        { { "sums", 0 } } },
    [OP_GRADIENT_NORM] = { "gradient_norm", 3, 3,
        { { "sums", 0 }, { "order", OPERAND_OPTIONAL }, { "scale", OPERAND_OPTIONAL } },
        { { "norm", 0 }, { "factor", 0 }, { "skip", 0 } } },
    [OP_ADAMW] = { "adamw", 10, 1,
        { { "gradient", 0 }, { "scalars", 0 }, { "factor", 0 }, { "skip", 0 },
          { "master", OPERAND_UPDATED }, { "m", OPERAND_UPDATED }, { "v", OPERAND_UPDATED },
          { "decay", OPERAND_OPTIONAL }, { "place", OPERAND_OPTIONAL },
          { "part", OPERAND_OPTIONAL } },
        { { "weight", OPERAND_OPTIONAL } } },
};

static const struct op_rules rules[N_OP_KINDS] = {
    [OP_EMBED] = {
        { { DIM_T, DIM_ONE, TYPE_I32 }, { DIM_R, DIM_D, TYPE_ACT },
          { DIM_T, DIM_D, TYPE_STREAM }, { DIM_ONE, DIM_ONE, TYPE_I32 } },
        { { DIM_T, DIM_D, TYPE_STREAM } } },
    [OP_EMBED_DW] = {
        { { DIM_T, DIM_D, TYPE_STREAM }, { DIM_T, DIM_ONE, TYPE_I32 },
          { DIM_ONE, DIM_ONE, TYPE_I32 } },
        { { DIM_R, DIM_D, TYPE_KEPT } } },
    [OP_RMSNORM] = {
        { { DIM_T, DIM_D, TYPE_STREAM }, { DIM_ONE, DIM_D, TYPE_F32 } },
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_T, DIM_ONE, TYPE_F32 } } },
    [OP_RMSNORM_GRAD] = {
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_T, DIM_D, TYPE_STREAM },
          { DIM_ONE, DIM_D, TYPE_F32 }, { DIM_T, DIM_ONE, TYPE_F32 },
          { DIM_T, DIM_D, TYPE_STREAM } },
        { { DIM_T, DIM_D, TYPE_STREAM }, { DIM_ONE, DIM_D, TYPE_F32 },
          { DIM_T, DIM_D, TYPE_ACT } } },
    [OP_LAYERNORM] = {
        { { DIM_T, DIM_D, TYPE_STREAM }, { DIM_ONE, DIM_D, TYPE_F32 },
          { DIM_ONE, DIM_D, TYPE_F32 } },
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_T, DIM_ONE, TYPE_F32 },
          { DIM_T, DIM_ONE, TYPE_F32 } } },
    [OP_LAYERNORM_GRAD] = {
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_T, DIM_D, TYPE_STREAM },
          { DIM_ONE, DIM_D, TYPE_F32 }, { DIM_T, DIM_ONE, TYPE_F32 }, { DIM_T, DIM_ONE, TYPE_F32 },
          { DIM_T, DIM_D, TYPE_STREAM } },
        { { DIM_T, DIM_D, TYPE_STREAM }, { DIM_ONE, DIM_D, TYPE_F32 },
          { DIM_ONE, DIM_D, TYPE_F32 }, { DIM_T, DIM_D, TYPE_ACT } } },
    [OP_ADD_RMSNORM] = {
        { { DIM_T, DIM_D, TYPE_STREAM }, { DIM_T, DIM_D, TYPE_ACT },
          { DIM_ONE, DIM_D, TYPE_F32 } },
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_T, DIM_ONE, TYPE_F32 },
          { DIM_T, DIM_D, TYPE_STREAM } } },
    [OP_ADD_LAYERNORM] = {
        { { DIM_T, DIM_D, TYPE_STREAM }, { DIM_T, DIM_D, TYPE_ACT }, { DIM_ONE, DIM_D, TYPE_F32 },
          { DIM_ONE, DIM_D, TYPE_F32 } },
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_T, DIM_ONE, TYPE_F32 },
          { DIM_T, DIM_ONE, TYPE_F32 }, { DIM_T, DIM_D, TYPE_STREAM } } },
    [OP_LINEAR] = {
        { { DIM_T, DIM_K, TYPE_ACT }, { DIM_N, DIM_K, TYPE_ACT }, { DIM_ONE, DIM_N, TYPE_F32 } },
        { { DIM_T, DIM_N, TYPE_ACT_OR_F32 } } },
    [OP_LINEAR_DX] = {
        { { DIM_T, DIM_N, TYPE_ACT }, { DIM_N, DIM_K, TYPE_ACT } },
        { { DIM_T, DIM_K, TYPE_ACT } } },
    [OP_LINEAR_DW] = {
        { { DIM_T, DIM_N, TYPE_ACT }, { DIM_T, DIM_K, TYPE_ACT } },
        { { DIM_N, DIM_K, TYPE_KEPT }, { DIM_ONE, DIM_N, TYPE_F32 } } },
    [OP_ROPE] = {
        { { DIM_T, DIM_C, TYPE_ACT }, { DIM_T, DIM_ONE, TYPE_I32 },
          { DIM_FREE, DIM_E, TYPE_F32 } },
        { { DIM_T, DIM_C, TYPE_ACT } } },
    [OP_ROPE_GRAD] = {
        { { DIM_T, DIM_C, TYPE_ACT }, { DIM_T, DIM_ONE, TYPE_I32 },
          { DIM_FREE, DIM_E, TYPE_F32 } },
        { { DIM_T, DIM_C, TYPE_ACT } } },
    [OP_HEAD_NORM] = {
        { { DIM_T, DIM_C, TYPE_ACT }, { DIM_ONE, DIM_E, TYPE_F32 }, { DIM_ONE, DIM_E, TYPE_F32 } },
        { { DIM_T, DIM_C, TYPE_ACT }, { DIM_T, DIM_QK_HEADS, TYPE_F32 } } },
    [OP_HEAD_NORM_GRAD] = {
        { { DIM_T, DIM_C, TYPE_ACT }, { DIM_T, DIM_C, TYPE_ACT }, { DIM_ONE, DIM_E, TYPE_F32 },
          { DIM_ONE, DIM_E, TYPE_F32 }, { DIM_T, DIM_QK_HEADS, TYPE_F32 } },
        { { DIM_T, DIM_C, TYPE_ACT }, { DIM_ONE, DIM_E, TYPE_F32 },
          { DIM_ONE, DIM_E, TYPE_F32 } } },
    [OP_NORMALIZE_ROWS] = {
        { { DIM_V, DIM_D, TYPE_ACT } },
        { { DIM_V, DIM_D, TYPE_ACT }, { DIM_V, DIM_ONE, TYPE_F32 } } },
    [OP_NORMALIZE_ROWS_GRAD] = {
        { { DIM_V, DIM_D, TYPE_F32 }, { DIM_V, DIM_D, TYPE_ACT }, { DIM_V, DIM_ONE, TYPE_F32 } },
        { { DIM_V, DIM_D, TYPE_KEPT } } },
    [OP_ATTENTION] = {
        { { DIM_T, DIM_C, TYPE_ACT }, { DIM_SEQUENCES, DIM_ONE, TYPE_I64 },
          { DIM_ONE, DIM_ONE, TYPE_I32 }, { DIM_T, DIM_ONE, TYPE_I32 } },
        { { DIM_T, DIM_HE, TYPE_ACT }, { DIM_T, DIM_H, TYPE_F32 } } },
    [OP_ATTENTION_GRAD] = {
        { { DIM_T, DIM_HE, TYPE_ACT }, { DIM_T, DIM_C, TYPE_ACT }, { DIM_T, DIM_HE, TYPE_ACT },
          { DIM_T, DIM_H, TYPE_F32 }, { DIM_SEQUENCES, DIM_ONE, TYPE_I64 },
          { DIM_ONE, DIM_ONE, TYPE_I32 }, { DIM_T, DIM_ONE, TYPE_I32 } },
        { { DIM_T, DIM_C, TYPE_ACT } } },
    [OP_ATTENTION_CACHED] = {
        { { DIM_T, DIM_C, TYPE_ACT }, { DIM_T, DIM_ONE, TYPE_I32 },
          { DIM_CACHE, DIM_GE, TYPE_ACT }, { DIM_CACHE, DIM_GE, TYPE_ACT },
          { DIM_ONE, DIM_ONE, TYPE_I32 }, { DIM_T, DIM_ONE, TYPE_I32 },
          { DIM_FREE, DIM_THREE, TYPE_I32 } },
        { { DIM_T, DIM_HE, TYPE_ACT } } },
    [OP_SWIGLU] = {
        { { DIM_T, DIM_2F, TYPE_ACT } },
        { { DIM_T, DIM_F, TYPE_ACT } } },
    [OP_SWIGLU_GRAD] = {
        { { DIM_T, DIM_F, TYPE_ACT }, { DIM_T, DIM_2F, TYPE_ACT } },
        { { DIM_T, DIM_2F, TYPE_ACT } } },
    [OP_GELU] = {
        { { DIM_T, DIM_F, TYPE_ACT } },
        { { DIM_T, DIM_F, TYPE_ACT } } },
    [OP_GELU_GRAD] = {
        { { DIM_T, DIM_F, TYPE_ACT }, { DIM_T, DIM_F, TYPE_ACT } },
        { { DIM_T, DIM_F, TYPE_ACT } } },
    [OP_SCALE] = {
        { { DIM_T, DIM_D, TYPE_ACT } },
        { { DIM_T, DIM_D, TYPE_ACT } } },
    [OP_LORA] = {
        { { DIM_T, DIM_N, TYPE_ACT }, { DIM_T, DIM_FREE, TYPE_ACT }, { DIM_FREE, DIM_FREE, TYPE_ACT },
          { DIM_T, DIM_FREE, TYPE_ACT }, { DIM_FREE, DIM_FREE, TYPE_ACT },
          { DIM_T, DIM_FREE, TYPE_ACT }, { DIM_FREE, DIM_FREE, TYPE_ACT } },
        { { DIM_T, DIM_N, TYPE_ACT } } },
    [OP_ROUTER] = {
        { { DIM_T, DIM_M, TYPE_F32 } },
        { { DIM_T, DIM_S, TYPE_F32 }, { DIM_T, DIM_S, TYPE_I32 }, { DIM_ONE, DIM_1M, TYPE_F64 } } },
    [OP_ROUTER_GRAD] = {
        { { DIM_T, DIM_S, TYPE_F32 }, { DIM_T, DIM_S, TYPE_F32 }, { DIM_T, DIM_S, TYPE_I32 },
          { DIM_T, DIM_M, TYPE_F32 }, { DIM_ONE, DIM_ONE, TYPE_F32 },
          { DIM_SIZE_T, DIM_S, TYPE_I32 } },
        { { DIM_T, DIM_M, TYPE_F32 } } },
    [OP_EXPERT_ORDER] = {
        { { DIM_T, DIM_S, TYPE_I32 } },
        { { DIM_T, DIM_S, TYPE_I32 }, { DIM_ONE, DIM_M, TYPE_I32 } } },
    [OP_DISPATCH] = {
        { { DIM_T, DIM_S, TYPE_I32 }, { DIM_T, DIM_D, TYPE_ACT } },
        { { DIM_TS, DIM_D, TYPE_ACT } } },
    [OP_COMBINE] = {
        { { DIM_T, DIM_S, TYPE_I32 }, { DIM_TS, DIM_D, TYPE_ACT } },
        { { DIM_T, DIM_D, TYPE_ACT } } },
    [OP_EXPERT_LINEAR] = {
        { { DIM_T, DIM_K, TYPE_ACT }, { DIM_ONE, DIM_M, TYPE_I32 }, { DIM_MN, DIM_K, TYPE_ACT } },
        { { DIM_T, DIM_N, TYPE_ACT } } },
    [OP_EXPERT_LINEAR_DX] = {
        { { DIM_T, DIM_N, TYPE_ACT }, { DIM_ONE, DIM_M, TYPE_I32 }, { DIM_MN, DIM_K, TYPE_ACT } },
        { { DIM_T, DIM_K, TYPE_ACT } } },
    [OP_EXPERT_LINEAR_DW] = {
        { { DIM_T, DIM_N, TYPE_ACT }, { DIM_T, DIM_K, TYPE_ACT }, { DIM_ONE, DIM_M, TYPE_I32 } },
        { { DIM_MN, DIM_K, TYPE_KEPT } } },
    [OP_EXPERT_SWIGLU] = {
        { { DIM_T, DIM_S, TYPE_F32 }, { DIM_T, DIM_S, TYPE_I32 }, { DIM_TS, DIM_2F, TYPE_ACT } },
        { { DIM_TS, DIM_F, TYPE_ACT } } },
    [OP_EXPERT_SWIGLU_GRAD] = {
        { { DIM_T, DIM_S, TYPE_F32 }, { DIM_T, DIM_S, TYPE_I32 }, { DIM_TS, DIM_F, TYPE_ACT },
          { DIM_TS, DIM_2F, TYPE_ACT } },
        { { DIM_TS, DIM_2F, TYPE_ACT }, { DIM_T, DIM_S, TYPE_F32 } } },
    [OP_DROPOUT] = {
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_SEQUENCES, DIM_ONE, TYPE_I64 },
          { DIM_ONE, DIM_ONE, TYPE_I32 } },
        { { DIM_T, DIM_D, TYPE_ACT } } },
    [OP_DROPOUT_GRAD] = {
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_SEQUENCES, DIM_ONE, TYPE_I64 },
          { DIM_ONE, DIM_ONE, TYPE_I32 } },
        { { DIM_T, DIM_D, TYPE_ACT } } },
    [OP_ADD] = {
        { { DIM_T, DIM_D, TYPE_FLOAT }, { DIM_T, DIM_D, TYPE_FLOAT } },
        { { DIM_T, DIM_D, TYPE_FLOAT } } },
    [OP_ADD_BIAS] = {
        { { DIM_T, DIM_N, TYPE_ACT }, { DIM_ONE, DIM_N, TYPE_F32 } },
        { { DIM_T, DIM_N, TYPE_ACT } } },
    [OP_BIAS_GRAD] = {
        { { DIM_T, DIM_N, TYPE_ACT } },
        { { DIM_ONE, DIM_N, TYPE_F32 } } },
    [OP_CAST] = {
        { { DIM_T, DIM_D, TYPE_FLOAT } },
        { { DIM_T, DIM_D, TYPE_FLOAT } } },
    [OP_SELECT_ROWS] = {
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_ANY_ROWS, DIM_ONE, TYPE_I32 } },
        { { DIM_ANY_ROWS, DIM_D, TYPE_ACT } } },
    [OP_HEAD_CROSS_ENTROPY] = {
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_V, DIM_D, TYPE_ACT }, { DIM_T, DIM_ONE, TYPE_I32 },
          { DIM_ONE, DIM_ONE, TYPE_F32 } },
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_V, DIM_D, TYPE_KEPT },
          { DIM_ONE, DIM_ONE, TYPE_F64 } } },
    [OP_HEAD_LOSS] = {
        { { DIM_T, DIM_D, TYPE_ACT }, { DIM_V, DIM_D, TYPE_ACT }, { DIM_T, DIM_ONE, TYPE_I32 } },
        { { DIM_ONE, DIM_ONE, TYPE_F64 } } },
    [OP_LOGIT_STATS] = {
        { { DIM_T, DIM_V, TYPE_F32 }, { DIM_T, DIM_ONE, TYPE_I32 },
          { DIM_ONE, DIM_ONE, TYPE_I32 } },
        { { DIM_T, DIM_STATS, TYPE_F32 } } },
    [OP_CROSS_ENTROPY] = {
        { { DIM_T, DIM_V, TYPE_F32 }, { DIM_SIZE_T, DIM_STATS, TYPE_F32 },
          { DIM_T, DIM_ONE, TYPE_I32 }, { DIM_ONE, DIM_ONE, TYPE_F32 },
          { DIM_ONE, DIM_ONE, TYPE_I32 } },
        { { DIM_T, DIM_V, TYPE_FLOAT }, { DIM_ONE, DIM_ONE, TYPE_F64 } } },
    [OP_ACCUMULATE] = {
        { { DIM_R, DIM_D, TYPE_ACT } },
        { { DIM_R, DIM_D, TYPE_ACT } } },
    [OP_ALL_GATHER] = {
        { { DIM_T, DIM_N, TYPE_MOVED } },
        { { DIM_SIZE_T, DIM_SIZE_N, TYPE_MOVED } } },
    [OP_REDUCE_SCATTER] = {
        { { DIM_SIZE_T, DIM_SIZE_N, TYPE_MOVED } },
        { { DIM_T, DIM_N, TYPE_MOVED } } },
    [OP_ALL_REDUCE] = {
        { { DIM_T, DIM_N, TYPE_MOVED } },
        { { DIM_T, DIM_N, TYPE_MOVED } } },
    [OP_ALL_REDUCE_SCALAR] = {
        { { DIM_ONE, DIM_N, TYPE_F64 } },
        { { DIM_ONE, DIM_N, TYPE_F64 } } },
    [OP_GATHER_HEADS] = {
        { { DIM_T, DIM_C_PART, TYPE_ACT } },
        { { DIM_T, DIM_C, TYPE_ACT } } },
    [OP_GATHER_HEADS_GRAD] = {
        { { DIM_T, DIM_C, TYPE_ACT } },
        { { DIM_T, DIM_C_PART, TYPE_ACT } } },
    [OP_SEND] = {
        { { DIM_T, DIM_D, TYPE_MOVED } },
        { { DIM_ONE, DIM_ONE, TYPE_F32 } } },
    [OP_RECEIVE] = {
        { { DIM_ONE, DIM_ONE, TYPE_F32 } },
        { { DIM_T, DIM_D, TYPE_MOVED } } },
    [OP_SUM_RUNS] = {
        { { DIM_ONE, DIM_FREE, TYPE_F64 }, { DIM_ONE, DIM_N, TYPE_I32 },
          { DIM_ONE, DIM_FREE, TYPE_I32 } },
        { { DIM_ONE, DIM_N, TYPE_F64 } } },
    [OP_SUMSQ] = {
        { { DIM_R, DIM_D, TYPE_KEPT } },
        { { DIM_ONE, DIM_BLOCKS, TYPE_F64 } } },
    [OP_GRADIENT_NORM] = {
        { { DIM_ONE, DIM_N, TYPE_F64 }, { DIM_ONE, DIM_FREE, TYPE_I32 },
          { DIM_ONE, DIM_ONE, TYPE_F32 } },
        { { DIM_ONE, DIM_ONE, TYPE_F64 }, { DIM_ONE, DIM_ONE, TYPE_F32 },
          { DIM_ONE, DIM_ONE, TYPE_I32 } } },
    [OP_ADAMW] = {
        { { DIM_R, DIM_D, TYPE_KEPT }, { DIM_ONE, DIM_SCALARS, TYPE_F32 },
          { DIM_ONE, DIM_ONE, TYPE_F32 }, { DIM_ONE, DIM_ONE, TYPE_I32 },
          { DIM_R, DIM_D, TYPE_KEPT }, { DIM_R, DIM_D, TYPE_KEPT },
          { DIM_R, DIM_D, TYPE_KEPT }, { DIM_ONE, DIM_BLOCKS, TYPE_F64 },
          { DIM_ONE, DIM_BLOCKS, TYPE_F64 }, { DIM_ONE, DIM_ONE, TYPE_I32 } },
        { { DIM_R, DIM_D, TYPE_ACT } } },
};
/* clang-format on */

const struct op_info *op_info(enum op_kind kind)
{
    CHECK((unsigned)kind < N_OP_KINDS);
    return &infos[kind];
}

const struct op_rules *op_rules(enum op_kind kind)
{
    CHECK((unsigned)kind < N_OP_KINDS);
    return &rules[kind];
}

enum op_kind op_find(const char *name)
{
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (!strcmp(infos[kind].name, name))
            return (enum op_kind)kind;
    return N_OP_KINDS;
}

int op_is_collective(enum op_kind kind)
{
    return kind == OP_ALL_GATHER || kind == OP_REDUCE_SCATTER || kind == OP_ALL_REDUCE ||
           kind == OP_ALL_REDUCE_SCALAR || kind == OP_GATHER_HEADS ||
           kind == OP_GATHER_HEADS_GRAD || kind == OP_SEND || kind == OP_RECEIVE;
}

double ops_alibi_slope(int head, int n_heads)
{
    int n = 1; /* the largest power of two among them; the others go between its first slopes */

    CHECK(head >= 0);
    CHECK(head < n_heads);
    while (2 * n <= n_heads)
        n *= 2;
    return head < n ? exp2(-8.0 * (head + 1) / n) : exp2(-4.0 * (2 * (head - n) + 1) / n);
}

const char *axis_name(enum mesh_axis axis)
{
    static const char *const names[N_AXES] = { "dp", "tp", "pp", "cp", "ep", "replica" };

    return names[axis];
}
