/*
 * operands.h - places of the operands in op_shape's and program's `in` and `out`
 *
 * In the order of the notation (ops.h, which includes this): in[EMBED_TABLE], out[EMBED_X].
 */
#ifndef OPS_OPERANDS_H
#define OPS_OPERANDS_H

/* clang-format off */
enum embed_in { EMBED_INDEX, EMBED_TABLE, EMBED_BASE, EMBED_OFFSET };
enum embed_out { EMBED_X };
enum embed_dw_in { EMBED_DW_DX, EMBED_DW_INDEX, EMBED_DW_OFFSET };
enum embed_dw_out { EMBED_DW_DTABLE };
enum rmsnorm_in { RMSNORM_X, RMSNORM_W };
enum rmsnorm_out { RMSNORM_Y, RMSNORM_RSTD, RMSNORM_CODES, RMSNORM_MOST };
enum rmsnorm_grad_in { RMSNORM_GRAD_DY, RMSNORM_GRAD_X, RMSNORM_GRAD_W, RMSNORM_GRAD_RSTD,
    RMSNORM_GRAD_ADD };
enum rmsnorm_grad_out { RMSNORM_GRAD_DX, RMSNORM_GRAD_DW, RMSNORM_GRAD_COPY, RMSNORM_GRAD_CODES,
    RMSNORM_GRAD_MOST };
enum layernorm_in { LAYERNORM_X, LAYERNORM_W, LAYERNORM_B };
enum layernorm_out { LAYERNORM_Y, LAYERNORM_MEAN, LAYERNORM_RSTD, LAYERNORM_CODES,
    LAYERNORM_MOST };
enum layernorm_grad_in { LAYERNORM_GRAD_DY, LAYERNORM_GRAD_X, LAYERNORM_GRAD_W,
    LAYERNORM_GRAD_MEAN, LAYERNORM_GRAD_RSTD, LAYERNORM_GRAD_ADD };
enum layernorm_grad_out { LAYERNORM_GRAD_DX, LAYERNORM_GRAD_DW, LAYERNORM_GRAD_DB,
    LAYERNORM_GRAD_COPY, LAYERNORM_GRAD_CODES, LAYERNORM_GRAD_MOST };
enum add_rmsnorm_in { ADD_RMSNORM_X, ADD_RMSNORM_DELTA, ADD_RMSNORM_W };
enum add_rmsnorm_out { ADD_RMSNORM_Y, ADD_RMSNORM_RSTD, ADD_RMSNORM_SUM, ADD_RMSNORM_CODES,
    ADD_RMSNORM_MOST };
enum add_layernorm_in { ADD_LAYERNORM_X, ADD_LAYERNORM_DELTA, ADD_LAYERNORM_W, ADD_LAYERNORM_B };
enum add_layernorm_out { ADD_LAYERNORM_Y, ADD_LAYERNORM_MEAN, ADD_LAYERNORM_RSTD,
    ADD_LAYERNORM_SUM, ADD_LAYERNORM_CODES, ADD_LAYERNORM_MOST };
enum linear_in { LINEAR_X, LINEAR_W, LINEAR_B };
enum linear_out { LINEAR_Y };
enum linear_fp8_in { LINEAR_FP8_X_MOST = LINEAR_B + 1, LINEAR_FP8_W_MOST };
enum linear_grad_fp8_in { LINEAR_GRAD_FP8_0_MOST = 2, LINEAR_GRAD_FP8_1_MOST };
enum fp8_amax_in { FP8_AMAX_X };
enum fp8_amax_out { FP8_AMAX_MOST };
enum fp8_weight_amax_in { FP8_WEIGHT_AMAX_X, FP8_WEIGHT_AMAX_MATRICES, FP8_WEIGHT_AMAX_BEGIN };
enum fp8_weight_amax_out { FP8_WEIGHT_AMAX_MOST };
enum fp8_weight_codes_in { FP8_WEIGHT_CODES_X, FP8_WEIGHT_CODES_MOST, FP8_WEIGHT_CODES_MATRICES,
    FP8_WEIGHT_CODES_BEGIN };
enum fp8_weight_codes_out { FP8_WEIGHT_CODES_CODES, FP8_WEIGHT_CODES_JOINED };
enum linear_dx_in { LINEAR_DX_DY, LINEAR_DX_W };
enum linear_dx_out { LINEAR_DX_DX };
enum linear_dw_in { LINEAR_DW_DY, LINEAR_DW_X };
enum linear_dw_out { LINEAR_DW_DW, LINEAR_DW_DB };
enum rope_in { ROPE_X, ROPE_POSITION, ROPE_TABLE };
enum rope_out { ROPE_OUT };
enum rope_grad_in { ROPE_GRAD_DOUT, ROPE_GRAD_POSITION, ROPE_GRAD_TABLE };
enum rope_grad_out { ROPE_GRAD_DX };
enum head_norm_in { HEAD_NORM_QK, HEAD_NORM_WQ, HEAD_NORM_WK };
enum head_norm_out { HEAD_NORM_OUT, HEAD_NORM_RSTD };
enum head_norm_grad_in { HEAD_NORM_GRAD_DOUT, HEAD_NORM_GRAD_QK, HEAD_NORM_GRAD_WQ,
    HEAD_NORM_GRAD_WK, HEAD_NORM_GRAD_RSTD };
enum head_norm_grad_out { HEAD_NORM_GRAD_DQK, HEAD_NORM_GRAD_DWQ, HEAD_NORM_GRAD_DWK };
enum normalize_rows_in { NORMALIZE_ROWS_W };
enum normalize_rows_out { NORMALIZE_ROWS_Y, NORMALIZE_ROWS_NORM };
enum normalize_rows_grad_in { NORMALIZE_ROWS_GRAD_DY, NORMALIZE_ROWS_GRAD_W,
    NORMALIZE_ROWS_GRAD_NORM };
enum normalize_rows_grad_out { NORMALIZE_ROWS_GRAD_DW };
enum attention_in { ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_SAMPLE, ATTENTION_HEAD_OFFSET,
    ATTENTION_FIRST, ATTENTION_LAST };
enum attention_out { ATTENTION_OUT, ATTENTION_LSE };
enum attention_received_in { ATTENTION_RECEIVED_Q, ATTENTION_RECEIVED_K, ATTENTION_RECEIVED_LSE,
    ATTENTION_RECEIVED_HEAD_OFFSET, ATTENTION_RECEIVED_FIRST, ATTENTION_RECEIVED_LAST };
enum attention_received_out { ATTENTION_RECEIVED_SCORES };
enum attention_grad_in { ATTENTION_GRAD_DOUT, ATTENTION_GRAD_Q, ATTENTION_GRAD_K,
    ATTENTION_GRAD_V, ATTENTION_GRAD_OUT, ATTENTION_GRAD_LSE, ATTENTION_GRAD_SAMPLE,
    ATTENTION_GRAD_HEAD_OFFSET, ATTENTION_GRAD_FIRST, ATTENTION_GRAD_LAST };
enum attention_grad_out { ATTENTION_GRAD_DQ, ATTENTION_GRAD_DK, ATTENTION_GRAD_DV };
enum attention_cached_in { ATTENTION_CACHED_Q, ATTENTION_CACHED_K, ATTENTION_CACHED_V,
    ATTENTION_CACHED_POSITION, ATTENTION_CACHED_KEYS,
    ATTENTION_CACHED_VALUES, ATTENTION_CACHED_HEAD_OFFSET, ATTENTION_CACHED_SEGMENT,
    ATTENTION_CACHED_SEGMENTS };
enum attention_cached_out { ATTENTION_CACHED_OUT };
enum attention_part_in { ATTENTION_PART_STATE, ATTENTION_PART_Q, ATTENTION_PART_K, ATTENTION_PART_V,
    ATTENTION_PART_FIRST, ATTENTION_PART_LAST };
enum attention_part_out { ATTENTION_PART_NEXT };
enum attention_end_in { ATTENTION_END_STATE };
enum attention_end_out { ATTENTION_END_OUT, ATTENTION_END_LSE };
enum attention_part_grad_in { ATTENTION_PART_GRAD_SUM, ATTENTION_PART_GRAD_DOUT,
    ATTENTION_PART_GRAD_Q, ATTENTION_PART_GRAD_K, ATTENTION_PART_GRAD_V, ATTENTION_PART_GRAD_OUT,
    ATTENTION_PART_GRAD_LSE, ATTENTION_PART_GRAD_FIRST, ATTENTION_PART_GRAD_LAST };
enum attention_part_grad_out { ATTENTION_PART_GRAD_DQ, ATTENTION_PART_GRAD_DK,
    ATTENTION_PART_GRAD_DV };
enum attention_dq_end_in { ATTENTION_DQ_END_SUM };
enum attention_dq_end_out { ATTENTION_DQ_END_DQ };
enum swiglu_in { SWIGLU_GU };
enum swiglu_out { SWIGLU_Y, SWIGLU_CODES, SWIGLU_MOST };
enum swiglu_grad_in { SWIGLU_GRAD_DY, SWIGLU_GRAD_GU };
enum swiglu_grad_out { SWIGLU_GRAD_DGU, SWIGLU_GRAD_CODES, SWIGLU_GRAD_MOST };
enum gelu_in { GELU_X };
enum gelu_out { GELU_Y, GELU_CODES, GELU_MOST };
enum gelu_grad_in { GELU_GRAD_DY, GELU_GRAD_X };
enum gelu_grad_out { GELU_GRAD_DX, GELU_GRAD_CODES, GELU_GRAD_MOST };
enum scale_in { SCALE_X };
enum scale_out { SCALE_Y };
enum lora_in { LORA_Y, LORA_H0, LORA_B0, LORA_H1, LORA_B1, LORA_H2, LORA_B2 };
enum lora_out { LORA_OUT };
enum router_in { ROUTER_LOGITS, ROUTER_BIAS };
enum router_out { ROUTER_WEIGHT, ROUTER_EXPERT, ROUTER_STATS, ROUTER_COUNTS };
enum router_grad_in { ROUTER_GRAD_DWEIGHT, ROUTER_GRAD_WEIGHT, ROUTER_GRAD_EXPERT,
    ROUTER_GRAD_LOGITS, ROUTER_GRAD_SCALE, ROUTER_GRAD_CHOICES, ROUTER_GRAD_COUNTS };
enum router_grad_out { ROUTER_GRAD_DLOGITS };
enum limit_choices_in { LIMIT_CHOICES_EXPERT, LIMIT_CHOICES_WEIGHT };
enum limit_choices_out { LIMIT_CHOICES_KEPT, LIMIT_CHOICES_DROPPED };
enum balance_bias_in { BALANCE_BIAS_COUNTS, BALANCE_BIAS_SKIP_UPDATE, BALANCE_BIAS_BIAS };
enum gate_rows_in { GATE_ROWS_X, GATE_ROWS_GATE };
enum gate_rows_out { GATE_ROWS_Y };
enum gate_rows_grad_in { GATE_ROWS_GRAD_DY, GATE_ROWS_GRAD_X, GATE_ROWS_GRAD_GATE };
enum gate_rows_grad_out { GATE_ROWS_GRAD_DX, GATE_ROWS_GRAD_DGATE };
enum expert_order_in { EXPERT_ORDER_EXPERT, EXPERT_ORDER_BEGIN };
enum expert_order_out { EXPERT_ORDER_PLACE, EXPERT_ORDER_ENDS };
enum dispatch_in { DISPATCH_PLACE, DISPATCH_X, DISPATCH_ENDS };
enum dispatch_out { DISPATCH_Y };
enum combine_in { COMBINE_PLACE, COMBINE_Y };
enum combine_out { COMBINE_X };
enum expert_linear_in { EXPERT_LINEAR_X, EXPERT_LINEAR_ENDS, EXPERT_LINEAR_W };
enum expert_linear_out { EXPERT_LINEAR_Y };
enum expert_linear_dx_in { EXPERT_LINEAR_DX_DY, EXPERT_LINEAR_DX_ENDS, EXPERT_LINEAR_DX_W };
enum expert_linear_dx_out { EXPERT_LINEAR_DX_DX };
enum expert_linear_dw_in { EXPERT_LINEAR_DW_DY, EXPERT_LINEAR_DW_X, EXPERT_LINEAR_DW_ENDS };
enum expert_linear_dw_out { EXPERT_LINEAR_DW_DW };
/* Of expert_linear_fp8 and expert_linear_dx_fp8, behind the operands that they have without. */
enum expert_linear_fp8_in { EXPERT_LINEAR_FP8_W_MOST = EXPERT_LINEAR_W + 1 };
enum expert_lora_in { EXPERT_LORA_Y, EXPERT_LORA_ENDS, EXPERT_LORA_H0, EXPERT_LORA_B0,
    EXPERT_LORA_H1, EXPERT_LORA_B1, EXPERT_LORA_H2, EXPERT_LORA_B2 };
enum expert_lora_out { EXPERT_LORA_OUT };
enum expert_swiglu_in { EXPERT_SWIGLU_WEIGHT, EXPERT_SWIGLU_PLACE, EXPERT_SWIGLU_GU,
    EXPERT_SWIGLU_ENDS };
enum expert_swiglu_out { EXPERT_SWIGLU_Y };
enum expert_swiglu_grad_in { EXPERT_SWIGLU_GRAD_WEIGHT, EXPERT_SWIGLU_GRAD_PLACE,
    EXPERT_SWIGLU_GRAD_DY, EXPERT_SWIGLU_GRAD_GU, EXPERT_SWIGLU_GRAD_ENDS };
enum expert_swiglu_grad_out { EXPERT_SWIGLU_GRAD_DGU, EXPERT_SWIGLU_GRAD_DWEIGHT };
enum page_start_in { PAGE_START_FREE };
enum page_out_in { PAGE_OUT_X, PAGE_OUT_ENDS, PAGE_OUT_PAGES, PAGE_OUT_FREE };
enum page_out_out { PAGE_OUT_TABLE };
enum page_in_in { PAGE_IN_TABLE, PAGE_IN_ENDS, PAGE_IN_PAGES, PAGE_IN_FREE };
enum page_in_out { PAGE_IN_X };
enum dropout_in { DROPOUT_X, DROPOUT_SAMPLE, DROPOUT_OFFSET, DROPOUT_ROW };
enum dropout_out { DROPOUT_Y };
enum dropout_grad_in { DROPOUT_GRAD_DY, DROPOUT_GRAD_SAMPLE, DROPOUT_GRAD_OFFSET,
    DROPOUT_GRAD_ROW };
enum dropout_grad_out { DROPOUT_GRAD_DX };
enum add_in { ADD_A, ADD_B };
enum add_out { ADD_Y };
enum add_bias_in { ADD_BIAS_X, ADD_BIAS_B };
enum add_bias_out { ADD_BIAS_Y };
enum bias_grad_in { BIAS_GRAD_DY };
enum bias_grad_out { BIAS_GRAD_DB };
enum cast_in { CAST_X };
enum cast_out { CAST_Y };
enum select_rows_in { SELECT_ROWS_X, SELECT_ROWS_INDEX };
enum select_rows_out { SELECT_ROWS_Y };
enum head_cross_entropy_in { HEAD_CROSS_ENTROPY_X, HEAD_CROSS_ENTROPY_W,
    HEAD_CROSS_ENTROPY_TARGET, HEAD_CROSS_ENTROPY_SCALE };
enum head_cross_entropy_out { HEAD_CROSS_ENTROPY_DX, HEAD_CROSS_ENTROPY_DW,
    HEAD_CROSS_ENTROPY_LOSS, HEAD_CROSS_ENTROPY_SQUARES };
enum head_loss_in { HEAD_LOSS_X, HEAD_LOSS_W, HEAD_LOSS_TARGET };
enum head_loss_out { HEAD_LOSS_LOSS };
enum logit_stats_in { LOGIT_STATS_LOGITS, LOGIT_STATS_TARGET, LOGIT_STATS_OFFSET };
enum logit_stats_out { LOGIT_STATS_STATS };
enum cross_entropy_in { CROSS_ENTROPY_LOGITS, CROSS_ENTROPY_STATS, CROSS_ENTROPY_TARGET,
    CROSS_ENTROPY_SCALE, CROSS_ENTROPY_OFFSET };
enum cross_entropy_out { CROSS_ENTROPY_DLOGITS, CROSS_ENTROPY_LOSS,
    CROSS_ENTROPY_SQUARES };
enum accumulate_in { ACCUMULATE_X };
enum accumulate_out { ACCUMULATE_Y };
enum all_gather_in { ALL_GATHER_SHARD };
enum all_gather_out { ALL_GATHER_FULL };
enum reduce_scatter_in { REDUCE_SCATTER_FULL };
enum reduce_scatter_out { REDUCE_SCATTER_SHARD };
enum all_reduce_in { ALL_REDUCE_X };
enum all_reduce_out { ALL_REDUCE_Y };
enum all_reduce_scalar_in { ALL_REDUCE_SCALAR_X };
enum all_reduce_scalar_out { ALL_REDUCE_SCALAR_Y };
enum gather_heads_in { GATHER_HEADS_QKV };
enum gather_heads_out { GATHER_HEADS_OUT };
enum gather_heads_grad_in { GATHER_HEADS_GRAD_DOUT };
enum gather_heads_grad_out { GATHER_HEADS_GRAD_DQKV };
enum rows_to_heads_in { ROWS_TO_HEADS_X };
enum rows_to_heads_out { ROWS_TO_HEADS_Y };
enum heads_to_rows_in { HEADS_TO_ROWS_Y };
enum heads_to_rows_out { HEADS_TO_ROWS_X };
enum gather_sequence_in { GATHER_SEQUENCE_PART };
enum gather_sequence_out { GATHER_SEQUENCE_WHOLE };
enum scatter_sequence_in { SCATTER_SEQUENCE_WHOLE };
enum scatter_sequence_out { SCATTER_SEQUENCE_PART };
enum rotate_in { ROTATE_X };
enum rotate_out { ROTATE_Y };
enum gather_window_in { GATHER_WINDOW_PART };
enum gather_window_out { GATHER_WINDOW_SEEN };
enum scatter_window_in { SCATTER_WINDOW_SEEN };
enum scatter_window_out { SCATTER_WINDOW_PART };
enum exchange_codes_in { EXCHANGE_CODES_X };
enum exchange_codes_out { EXCHANGE_CODES_Y };
enum gather_codes_in { GATHER_CODES_X };
enum gather_codes_out { GATHER_CODES_Y };
enum send_rows_in { SEND_ROWS_X, SEND_ROWS_CHOICES, SEND_ROWS_PLACE };
enum send_rows_out { SEND_ROWS_Y };
enum return_rows_in { RETURN_ROWS_Y, RETURN_ROWS_CHOICES, RETURN_ROWS_PLACE };
enum return_rows_out { RETURN_ROWS_X };
enum send_in { SEND_X };
enum receive_out { RECEIVE_Y };
enum to_host_in { TO_HOST_X };
enum to_host_out { TO_HOST_Y };
enum to_device_in { TO_DEVICE_X };
enum to_device_out { TO_DEVICE_Y };
enum await_in { AWAIT_X };
enum sum_runs_in { SUM_RUNS_X, SUM_RUNS_ENDS, SUM_RUNS_ORDER };
enum sum_runs_out { SUM_RUNS_Y };
enum sumsq_in { SUMSQ_X };
enum sumsq_out { SUMSQ_SUMS };
enum gradient_norm_in { GRADIENT_NORM_SUMS, GRADIENT_NORM_ORDER, GRADIENT_NORM_SCALE };
enum gradient_norm_out { GRADIENT_NORM_NORM, GRADIENT_NORM_CLIP_FACTOR, GRADIENT_NORM_SKIP_UPDATE };
enum optimizer_in { OPTIMIZER_GRADIENT, OPTIMIZER_SCALARS, OPTIMIZER_CLIP_FACTOR, OPTIMIZER_SKIP_UPDATE,
    OPTIMIZER_MASTER, OPTIMIZER_M, OPTIMIZER_V, OPTIMIZER_DECAY, OPTIMIZER_RNG_SITE, OPTIMIZER_PART,
    OPTIMIZER_LOW, OPTIMIZER_M_SCALE, OPTIMIZER_V_SCALE }; /* of each optimizer (optimizers.h) */
enum optimizer_out { OPTIMIZER_WEIGHT };
enum encode_in { ENCODE_X };
enum encode_out { ENCODE_CODES, ENCODE_SUMS };
enum encode_rows_in { ENCODE_ROWS_X, ENCODE_ROWS_SCORES };
enum encode_rows_out { ENCODE_ROWS_CODES };
enum decode_rows_in { DECODE_ROWS_CODES };
enum decode_rows_out { DECODE_ROWS_Y };
enum decode_in { DECODE_CODES };
enum decode_out { DECODE_Y };
enum top_k_in { TOP_K_X, TOP_K_PARTS };
enum top_k_out { TOP_K_PAIRS, TOP_K_SUMS };
enum add_pairs_in { ADD_PAIRS_PAIRS };
enum add_pairs_out { ADD_PAIRS_Y };
enum muon_momentum_in { MUON_MOMENTUM_GRADIENT, MUON_MOMENTUM_CLIP_FACTOR,
    MUON_MOMENTUM_SKIP_UPDATE, MUON_MOMENTUM_M };
enum muon_momentum_out { MUON_MOMENTUM_U };
enum newton_schulz_in { NEWTON_SCHULZ_X };
enum muon_update_in { MUON_UPDATE_X, MUON_UPDATE_SCALARS, MUON_UPDATE_SKIP_UPDATE, MUON_UPDATE_MASTER,
    MUON_UPDATE_DECAY };
enum muon_update_out { MUON_UPDATE_WEIGHT };
enum add_error_in { ADD_ERROR_ERROR, ADD_ERROR_SCALE, ADD_ERROR_X };
enum keep_error_in { KEEP_ERROR_LEFT, KEEP_ERROR_SKIP_UPDATE, KEEP_ERROR_ERROR,
    KEEP_ERROR_SCALARS, KEEP_ERROR_SCALE };
enum low_rank_basis_in { LOW_RANK_BASIS_X, LOW_RANK_BASIS_PARTS };
enum low_rank_basis_out { LOW_RANK_BASIS_Y };
enum low_rank_left_in { LOW_RANK_LEFT_X, LOW_RANK_LEFT_PARTS, LOW_RANK_LEFT_RIGHT };
enum low_rank_left_out { LOW_RANK_LEFT_LEFT };
enum low_rank_right_in { LOW_RANK_RIGHT_X, LOW_RANK_RIGHT_PARTS, LOW_RANK_RIGHT_LEFT };
enum low_rank_right_out { LOW_RANK_RIGHT_RIGHT };
enum low_rank_sum_in { LOW_RANK_SUM_X, LOW_RANK_SUM_PARTS, LOW_RANK_SUM_LEFT, LOW_RANK_SUM_RIGHT };
enum low_rank_sum_out { LOW_RANK_SUM_Y, LOW_RANK_SUM_SUMS };
enum ema_in { EMA_X, EMA_SCALARS, EMA_SKIP_UPDATE, EMA_AVERAGE, EMA_LOW };

/* The first input, or output, of an op whose kind does not matter. */
enum ops_operand { OPS_FIRST };
/* clang-format on */

#endif
