/*
 * job_choices.c - the names of the values of job.h's enums
 */
#include "config/job.h"

const struct choice job_kind_choices[] = {
    { "pretrain", JOB_PRETRAIN }, { "finetune", JOB_FINETUNE }, { "lora", JOB_LORA }, { 0 }
};
const struct choice recompute_choices[] = { { "none", RECOMPUTE_NONE },
                                            { "selective", RECOMPUTE_SELECTIVE },
                                            { "full", RECOMPUTE_FULL },
                                            { "auto", RECOMPUTE_AUTO },
                                            { 0 } };
const struct choice offload_choices[] = { { "none", OFFLOAD_NONE },
                                          { "auto", OFFLOAD_AUTO },
                                          { 0 } };
const struct choice offload_kind_choices[] = { { "activations", OFFLOAD_ACTIVATIONS },
                                               { "optimizer", OFFLOAD_OPTIMIZER },
                                               { "gradients", OFFLOAD_GRADIENTS },
                                               { "weights", OFFLOAD_WEIGHTS },
                                               { 0 } };
const struct choice memory_update_choices[] = {
    { "auto", UPDATE_AUTO }, { "device", UPDATE_DEVICE }, { "host", UPDATE_HOST }, { 0 }
};
const struct choice cp_kind_choices[] = { { "auto", CP_AUTO },       { "ulysses", CP_ULYSSES },
                                          { "gather", CP_GATHER },   { "ring", CP_RING },
                                          { "fastseq", CP_FASTSEQ }, { 0 } };
const struct choice overlap_choices[] = { { "auto", JOB_OVERLAP_AUTO },
                                          { "none", JOB_OVERLAP_NONE },
                                          { "slices", JOB_OVERLAP_SLICES },
                                          { "halves", JOB_OVERLAP_HALVES },
                                          { 0 } };
const struct choice gradient_sum_choices[] = { { "auto", GRADIENT_SUM_LATE },
                                               { "late", GRADIENT_SUM_LATE },
                                               { "early", GRADIENT_SUM_EARLY },
                                               { 0 } };
const struct choice codec_choices[] = { { "none", CODEC_NONE },         { "int8", CODEC_INT8 },
                                        { "fp8", CODEC_FP8 },           { "topk", CODEC_TOP_K },
                                        { "powersgd", CODEC_POWERSGD }, { 0 } };
const struct choice fp8_choices[] = {
    { "none", FP8_NONE }, { "blockwise", FP8_BLOCKWISE }, { "tensor", FP8_TENSOR }, { 0 }
};
const struct choice fp8_weights_choices[] = { { "step", FP8_WEIGHTS_STEP },
                                              { "product", FP8_WEIGHTS_PRODUCT },
                                              { 0 } };
const struct choice fp8_dw_choices[] = { { "fp8", FP8_DW_FP8 }, { "bf16", FP8_DW_BF16 }, { 0 } };
const struct choice fp8_gradients_choices[] = { { "e4m3", FP8_GRADIENTS_E4M3 },
                                                { "e5m2", FP8_GRADIENTS_E5M2 },
                                                { 0 } };
const struct choice fp8_experts_choices[] = { { "bf16", FP8_EXPERTS_BF16 },
                                              { "fp8", FP8_EXPERTS_FP8 },
                                              { 0 } };
const struct choice moe_drop_choices[] = { { "position", MOE_DROP_POSITION },
                                           { "probability", MOE_DROP_PROBABILITY },
                                           { 0 } };
const struct choice hold_choices[] = {
    { "op", HOLD_OP }, { "pass", HOLD_PASS }, { "run", HOLD_RUN }, { "step", HOLD_STEP }, { 0 }
};
const struct choice rank_order_choices[] = { { "tp-dp-pp", ORDER_STAGES },
                                             { "tp-dp-pp-reversed", ORDER_STAGES_REVERSED },
                                             { "tp-pp-dp", ORDER_PIPELINES },
                                             { 0 } };
const struct choice expert_tp_choices[] = { { "tp", EXPERT_TP_ALL },
                                            { "1", EXPERT_TP_ONE },
                                            { 0 } };
const struct choice spike_choices[] = {
    { "log", SPIKE_LOGGED }, { "skip", SPIKE_SKIPPED }, { "rewind", SPIKE_REWOUND }, { 0 }
};
const struct choice reduction_choices[] = { { "fixed", REDUCTIONS_FIXED },
                                            { "fast", REDUCTIONS_FAST },
                                            { 0 } };
const struct choice search_objective_choices[] = { { "time", OBJECTIVE_TIME },
                                                   { "device_time", OBJECTIVE_DEVICE_TIME },
                                                   { 0 } };

const struct choice search_micro_batch_choices[] = { { "fixed", SEARCH_MICRO_BATCH_FIXED },
                                                     { "auto", SEARCH_MICRO_BATCH_AUTO },
                                                     { 0 } };

const struct choice parallel_mode_choices[] = { { "manual", PARALLEL_MANUAL },
                                                { "auto", PARALLEL_AUTO },
                                                { "semi", PARALLEL_SEMI },
                                                { "data", PARALLEL_DATA },
                                                { 0 } };
const struct choice lr_schedule_choices[] = { { "constant", LR_CONSTANT },
                                              { "linear", LR_LINEAR },
                                              { "cosine", LR_COSINE },
                                              { "wsd", LR_WSD },
                                              { "inverse_sqrt", LR_INVERSE_SQRT },
                                              { 0 } };
const struct choice lr_decay_shape_choices[] = {
    { "linear", LR_DECAY_LINEAR }, { "cosine", LR_DECAY_COSINE }, { "1-sqrt", LR_DECAY_SQRT }, { 0 }
};
const struct choice output_mode_choices[] = {
    { "private", OUTPUT_PRIVATE }, { "group", OUTPUT_GROUP }, { "all", OUTPUT_ALL }, { 0 }
};
const struct choice job_masters_choices[] = { { "whole", MASTERS_WHOLE },
                                              { "split", MASTERS_SPLIT },
                                              { 0 } };
const struct choice job_weight_rounding_choices[] = { { "nearest_even",
                                                        WEIGHT_ROUNDING_NEAREST_EVEN },
                                                      { "half_away", WEIGHT_ROUNDING_HALF_AWAY },
                                                      { 0 } };
const struct choice job_device_choices[] = {
    { "auto", JOB_DEVICE_AUTO }, { "cpu", JOB_DEVICE_CPU }, { "cuda", JOB_DEVICE_CUDA }, { 0 }
};
const struct choice sweep_search_choices[] = {
    { "random", SWEEP_RANDOM }, { "grid", SWEEP_GRID }, { "list", SWEEP_LIST }, { 0 }
};
const struct choice sweep_goal_choices[] = { { "minimize", SWEEP_MINIMIZE },
                                             { "maximize", SWEEP_MAXIMIZE },
                                             { 0 } };
const struct choice sweep_stop_choices[] = {
    { "none", SWEEP_STOP_NONE }, { "asha", SWEEP_STOP_ASHA }, { "median", SWEEP_STOP_MEDIAN }, { 0 }
};
const struct choice preflight_choices[] = {
    { "off", PREFLIGHT_OFF }, { "quick", PREFLIGHT_QUICK }, { "full", PREFLIGHT_FULL }, { 0 }
};
