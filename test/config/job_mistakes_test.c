/*
 * job_mistakes_test.c - every mistake of a job file and of --set, with its place and a hint
 */
#include "config_fixture.h"

#define M "model: llama-tiny\n"
#define D "data: {train: a}\n"
#define T "train: {steps: 10}\n"

/* A job that is wrong, and a part of what must be said about it. */
static const char *const mistakes[][2] = {
    /* no job */
    { "", "j.yaml:1:1: a job is a map of fields (hint: model, data and train.steps are required)" },
    { "- a\n", "j.yaml:1:1: a job is a map of fields" },
    { "42\n", "j.yaml:1:1: a job is a map of fields" },
    { M M D T, "j.yaml:2:1: key model is given twice (first in line 1)" },
    { "model: [\n", "j.yaml:2:1: " },
    /* missing */
    { D T, "j.yaml: model is missing (hint: a name such as llama-100m" },
    { M T, "j.yaml: data.train is missing" },
    { M D, "j.yaml: train.steps is missing" },
    { "model: {hidden_size: 64}\n" D T, "j.yaml: model.n_heads is missing" },
    /* the loss scale */
    { M D "train: {steps: 1, dtype: fp16, loss_scale: {initial: 1000}}\n",
      "train.loss_scale.initial is 1000, not a power of two (hint: 512)" },
    { M D "train: {steps: 1, dtype: fp16, loss_scale: {min: 3}}\n",
      "train.loss_scale.min is 3, not a power of two (hint: 2)" },
    { M D "train: {steps: 1, dtype: fp16, loss_scale: {initial: 8, min: 16}}\n",
      "train.loss_scale.initial is 8, not from min 16 to max 16777216" },
    { M D "train: {steps: 1, dtype: fp16, loss_scale: {max: 1024}}\n",
      "train.loss_scale.initial is 65536, not from min 1 to max 1024" },
    { M D "train: {steps: 1, dtype: fp16, loss_scale: 1024}\n", "train.loss_scale" },
    { M D "train: {steps: 1, fp16: true}\n", "(hint: train.dtype: fp16)" },
    { M D "train: {steps: 1, init_scale: 4}\n", "(hint: train.loss_scale.initial)" },
    /* models */
    { "model: llama-tinny\n" D T,
      "j.yaml:1:8: model is llama-tinny, neither a name in "
      "configs/models/ nor a folder with config.json (hint: llama-tiny)" },
    { "model: ./nowhere\n" D T, "j.yaml:1:8: model is ./nowhere, neither" },
    { "model:\n" D T, "j.yaml:1:7: model is not the name of a model" },
    { "model: [a]\n" D T, "j.yaml:1:8: model is not the name of a model" },
    { "model: {from: [a]}\n" D T, "j.yaml:1:15: model.from is not the name of a model" },
    { "model: {from: nothing-like-it}\n" D T, "j.yaml:1:15: model is nothing-like-it, neither" },
    { "model: {from: llama-tiny, n_heads: 3}\n" D T,
      "model.n_heads is 3, does not divide hidden_size 64" },
    { "model: {from: llama-tiny, n_kv_heads: 3}\n" D T,
      "j.yaml:1:39: model.n_kv_heads is 3, does not divide n_heads 4 (hint: 1, 2, 4)" },
    { "model: {from: llama-tiny, head_dim: 15}\n" D T,
      "j.yaml:1:37: model.head_dim is 15, but rope needs an even number" },
    { "model: {from: llama-tiny, window: 0}\n" D T,
      "j.yaml:1:35: model.window is 0, not a whole number from 1" },
    { "model: {from: llama-tiny, window_first_layer: 1}\n" D T,
      "j.yaml:1:47: model.window_first_layer is 1, but there is no window (hint: give "
      "model.window)" },
    { "model: {from: llama-tiny, window_period: 2}\n" D T,
      "j.yaml:1:42: model.window_period is 2, but there is no window (hint: give model.window)" },
    { "model: {from: llama-tiny, window: 8, window_first_layer: 2}\n" D T,
      "j.yaml:1:58: model.window_first_layer is 2, but layers are 0 to 1 (hint: at most 1, or "
      "window: none)" },
    { "model: {from: mixtral-tiny, n_active_experts: 5}\n" D T,
      "j.yaml:1:47: model.n_active_experts is 5, more than the 4 experts (hint: 4)" },
    { "model: {from: llama-tiny, n_experts: 1}\n" D T,
      "j.yaml:1:38: model.n_active_experts is 2, more than the 1 expert (hint: 1)" },
    { "model: {from: mixtral-tiny, expert_every: 3}\n" D T,
      "j.yaml:1:43: model.expert_every is 3, more than the 2 layers: none would have experts "
      "(hint: "
      "2, or n_experts: 0)" },
    { "model: {from: mixtral-tiny, router_balance: 0.1, router_balance_kind: pooled}\n" D T
      "ranks: 2\nparallel: {pp: 2}\n",
      "parallel.pp is 2, but model.router_balance_kind pooled needs the choices of all layers on "
      "each rank (hint: parallel.pp: 1, or model.router_balance_kind: per_layer)" },
    { "model: {from: gpt2-tiny, n_experts: 4}\n" D T,
      "model.activation is gelu, but experts are built with swiglu only (hint: swiglu)" },
    { "model: {from: llama-tiny}\nmoe: {capacity_factor: 1.25}\n" D T,
      "j.yaml:2:24: moe.capacity_factor is 1.25, but the model has no experts" },
    { "model: {from: mixtral-tiny}\nmoe: {drop: probability}\n" D T,
      "moe.drop is probability, but no choice is dropped without a capacity (hint: "
      "moe.capacity_factor: 1.25)" },
    { "model: {from: mixtral-tiny, bias: true}\n" D T,
      "j.yaml:1:35: model.bias is true, but experts have no biases (hint: attention_bias: all)" },
    { "model: {from: mixtral-tiny, num_local_experts: 4}\n" D T,
      "j.yaml:1:29: unknown key model.num_local_experts (hint: model.n_experts)" },
    { "model: {from: mixtral-tiny, expert_ffn_size: 90}\n" D T "parallel: {tp: 4}\n",
      "j.yaml:4:16: parallel.tp is 4, does not divide expert_ffn_size 90 (hint: 1, 2)" },
    { "model: {from: gpt2-tiny}\ndata: {train: a, seq_len: 129}\n" T,
      "j.yaml:2:27: data.seq_len is 129, more than the model's 128 learned positions" },
    { "model: {vocab_size: 9, hidden_size: 8, n_layers: 1, n_heads: 1, ffn_size: 9, position: "
      "learned}\n" D T,
      "model.max_seq_len is missing (hint: position learned needs the number of position "
      "embeddings)" },
    { "model: {from: llama-tiny, n_heads: 65536, head_dim: 65536}\n" D T,
      "model.n_heads * head_dim is 4294967296, more than 1048576" },
    { "model: {from: llama-tiny, num_hidden_layers: 3}\n" D T,
      "j.yaml:1:27: unknown key model.num_hidden_layers (hint: model.n_layers)" },
    /* unknown keys */
    { M D "train: {steps: 10, stesp: 3}\n",
      "j.yaml:3:20: unknown key train.stesp (hint: train.steps)" },
    { M D "trian: {steps: 10}\n", "j.yaml:3:1: unknown key trian (hint: train)" },
    { M D T "seed: 3\n", "j.yaml:4:1: unknown key seed (hint: train.seed)" },
    { M D T "lora: {rank: 4, use_dora: true}\n",
      "unknown key lora.use_dora (hint: nothing: DoRA is not supported, lora.rslora is)" },
    { M D T "lora: {r: 4}\n", "unknown key lora.r (hint: lora.rank)" },
    { M D T "lora: {rank: 4, alpha_pattern: {q_proj: 4}}\n",
      "unknown key lora.alpha_pattern (hint: lora.alpha, which all targets have)" },
    { M D T "lora: {rank: 4, trainable_token_indices: [3]}\n",
      "unknown key lora.trainable_token_indices (hint: lora.modules_to_save: [embed_tokens], which "
      "trains all rows)" },
    { M D T "lora: {rank: 4, targets: [lm_head]}\n",
      "lora.targets has lm_head, but only the layers' matrices can have adapters (hint: "
      "lora.modules_to_save: [lm_head], which trains it whole)" },
    { M D T "lora: {rank: 4, targets: [q_proj, embed_tokens]}\n",
      "(hint: lora.modules_to_save: [embed_tokens], which trains it whole)" },
    { M D T "per_device_train_batch_size: 4\n",
      "j.yaml:4:1: unknown key per_device_train_batch_size (hint: train.micro_batch)" },
    { M D T "gradient_accumulation_steps: 4\n",
      "(hint: train.global_batch = micro_batch * accumulation steps * dp)" },
    { M D T "tensor-model-parallel-size: 4\n", "(hint: parallel.tp)" },
    { M D "train: {steps: 10, max_grad_norm: 1}\n", "(hint: optimizer.clip)" },
    { M D T "learning_rate: 1e-4\n", "(hint: optimizer.lr)" },
    { M D T "gradient_checkpointing: true\n", "(hint: recompute: full)" },
    { M D T "train_on_inputs: true\n", "(hint: data.mask: none)" },
    { M D T "neat_packing: true\n", "(hint: data.packing)" },
    { M D T "qqqqqqqqqq: 1\n", "unknown key qqqqqqqqqq (hint: lmtrain config --explain" },
    { M D T "parallel: {zero_stage: 1}\n", "(hint: parallel.zero)" },
    { M D T "eval: {early_stop: {patienc: 3}}\n",
      "unknown key eval.early_stop.patienc (hint: eval.early_stop.patience)" },
    /* whole numbers */
    { M D "train: {steps: ten}\n",
      "j.yaml:3:16: train.steps is ten, not a whole number from 1 to 1000000000000000 or auto" },
    { M D "train: {steps: 0}\n", "train.steps is 0, not a whole number from 1 to" },
    { M D "train: {steps: -5}\n", "train.steps is -5, not a whole number from 1 to" },
    { M D "train: {steps: 1.5}\n", "train.steps is 1.5, not a whole number" },
    { M D "train: {steps: 1e4}\n", "train.steps is 1e4, not a whole number from 1 to "
                                   "1000000000000000 or auto (hint: 10000)" },
    { M D "train: {steps: \"10\"}\n", "train.steps is \"10\", not a whole number from 1 to "
                                      "1000000000000000 or auto (hint: 10 without quotes)" },
    { M D "train: {steps: 0x10}\n", "train.steps is 0x10, not a whole number" },
    { M D "train: {steps: }\n", "train.steps is empty, not a whole number" },
    { M D "train: {steps: [1]}\n", "train.steps is a list, not a whole number" },
    { M D "train: {steps: {a: 1}}\n", "train.steps is a map, not a whole number" },
    { M D "train: {steps: 99999999999999999999}\n", "train.steps is 99999999999999999999, not" },
    { M D "train: {steps: 5, seed: -1}\n", "train.seed is -1, not a whole number from 0 to "
                                           "9223372036854775807" },
    { M D T "ranks: none\n", "ranks is none, not a whole number from 1 to 1000000 or auto" },
    { M D T "parallel: {dp: 0}\n",
      "parallel.dp is 0, not a whole number from 1 to 1000000 or auto" },
    { M D T "parallel: {zero: 4}\n", "parallel.zero is 4, not a whole number from 0 to 3" },
    /* numbers */
    { M D T "optimizer: {lr: fast}\n", "optimizer.lr is fast, not a number above 0 and up to 100" },
    { M D T "optimizer: {lr: 0}\n", "optimizer.lr is 0, not a number above 0 and up to 100" },
    { M D T "optimizer: {lr: .nan}\n", "optimizer.lr is .nan, not a number" },
    { M D T "optimizer: {lr: .inf}\n", "optimizer.lr is .inf, not a number" },
    { M D T "optimizer: {lr: '3e-4'}\n", "(hint: 3e-4 without quotes)" },
    { M D T "optimizer: {beta2: 1}\n", "optimizer.beta2 is 1, not a number from 0 to 0.9999999" },
    { M D T "eval: {split: 0.6}\n", "eval.split is 0.6, not a number from 0 to 0.5" },
    /* booleans */
    { M D T "debug: {poison: yes}\n",
      "j.yaml:4:17: debug.poison is yes, not true or false (hint: true)" },
    { M D T "debug: {poison: no}\n", "not true or false (hint: false)" },
    { M D T "debug: {poison: 1}\n", "not true or false (hint: true)" },
    { M D T "debug: {poison: 'true'}\n", "not true or false (hint: true without quotes)" },
    { M D T "debug: {poison: [true]}\n", "debug.poison is a list, not true or false" },
    /* words */
    { M D T "optimizer: {schedule: cosin}\n", "optimizer.schedule is cosin, not one of constant, "
                                              "linear, cosine, wsd, inverse_sqrt (hint: cosine)" },
    { M D T "optimizer: {name: shampoo}\n",
      "optimizer.name is shampoo, not one of adamw, lion, sgd, cadam, muon" },
    { M D T "optimizer: {name: sgd}\n", "optimizer.lr is auto, which sgd has not (hint: give one" },
    { M D T "optimizer: {name: cadam, beta2: 0.9}\n",
      "optimizer.beta2 is 0.9, but cadam has none (hint: leave it out)" },
    { M D T "optimizer: {momentum: 0.9}\n", "optimizer.momentum is 0.9, but adamw has none" },
    { M D T "optimizer: {nesterov: true}\n",
      "optimizer.nesterov is true, but adamw has no momentum of that form" },
    { M D T "optimizer: {name: sgd, lr: 0.1, states: int8}\n",
      "optimizer.states is int8, but sgd has states of fp32 or bf16 (hint: optimizer.states: "
      "fp32)" },
    { M D T "optimizer: {name: cadam, states: bf16}\n",
      "optimizer.states is bf16, but cadam has a state of fp16 with scales" },
    { M D T "optimizer: {states: fp16}\n",
      "optimizer.states is fp16, not one of fp32, bf16, int8" },
    { M D T "optimizer: {masters: split}\n",
      "optimizer.masters is split and optimizer.weight_rounding nearest_even, of which 16 bits "
      "beside the weight don't tell the master (hint: optimizer.weight_rounding: half_away" },
    { M D T "optimizer: {masters: split, weight_rounding: half_away, states: bf16}\n",
      "optimizer.masters is split beside train.dtype bf16 and optimizer.states bf16: there are no "
      "fp32 masters of bf16 weights" },
    { M D T "optimizer: {name: muon, states: bf16}\n",
      "optimizer.states is bf16 and optimizer.name muon, whose momentum is fp32 (hint: "
      "optimizer.states: fp32, or optimizer.name: adamw)" },
    { M D T "optimizer: {name: muon, masters: split, weight_rounding: half_away}\n",
      "optimizer.masters is split and optimizer.name muon, which updates whole masters (hint: "
      "optimizer.masters: whole, or optimizer.name: adamw)" },
    { M D "train: {steps: 1, dtype: fp32}\noptimizer: {weight_rounding: half_away}\n",
      "optimizer.weight_rounding is half_away beside train.dtype fp32 and optimizer.states fp32" },
    { M D "train: {steps: 1, dtype: fp16}\noptimizer: {masters: split, weight_rounding: "
          "half_away}\n",
      "optimizer.masters is split beside train.dtype fp16 and optimizer.states fp32" },
    { M D "train: {steps: 1, dtype: fp32, residual: bf16}\n",
      "j.yaml:3:42: train.residual is bf16 and train.dtype fp32: the stream would be narrower than "
      "what is added to it" },
    { M D "train: {steps: 1, dtype: fp16, residual: bf16}\n",
      "train.residual is bf16 and train.dtype fp16" },
    { M D "train: {steps: 1, residual: fp16}\n", "train.residual is fp16, not one of fp32, bf16" },
    { M D "train: {steps: 16777216}\noptimizer: {states: bf16}\n",
      "optimizer.states is bf16 and train.steps 16777216, more than 16777215, the most that bf16 "
      "states allow" },
    { M D "train: {steps: 1, dtype: float64}\n", "train.dtype is float64, not one of fp32, bf16" },
    { M D T "recompute: [rmsnorm, swigul]\n",
      "j.yaml:4:22: recompute has swigul, which is not an op of the forward (hint: swiglu)" },
    { M D T "recompute: [add_rmsnorm]\n",
      "j.yaml:4:13: recompute has add_rmsnorm, which is not an op of the forward (hint: rmsnorm)" },
    { M D T "recompute: [adamw, zzzzzzzz]\n",
      "recompute has zzzzzzzz, which is not an op of the forward "
      "(hint: embed, rmsnorm, layernorm, linear" },
    { M D T "search: {schedules: [zzzzzzzz]}\n",
      "search.schedules has zzzzzzzz, which is not a pipeline schedule (hint: " },
    { M D T "recompute: linear\n", "(hint: [linear])" },
    { M D T "recompute: [[rmsnorm]]\n", "j.yaml:4:13: recompute has an item that is not a string" },
    { M D T "recompute: []\n", "j.yaml:4:12: recompute is an empty list (hint: none)" },
    { M D T "recompute: {keep: [a]}\n",
      "recompute is a map, not one of none, selective, full, auto, or a list of embed, rmsnorm" },
    { M D T "recompute: selectiv\n", "(hint: selective)" },
    { M D T "recompute: true\n", "recompute is true, not one of" },
    /* groups */
    { M D "train: 5\n",
      "j.yaml:3:8: train is \"5\", not a map of fields (hint: train: {KEY: VALUE})" },
    { M D "train: [steps]\n", "train is a list, not a map of fields" },
    { M D T "parallel: automatic\n", "parallel is \"automatic\", not a map of fields" },
    { M D T "eval: {early_stop: 5}\n", "eval.early_stop is \"5\", not a map of fields" },
    /* texts and data */
    { M D T "output: ''\n", "output is \"\", not a non-empty string" },
    { M D T "output: [a]\n", "output is a list, not a non-empty string" },
    { M "data: {train: []}\n" T, "data.train is an empty list, not a prefix or a list of them" },
    { M "data: {train: [[a]]}\n" T, "data.train is a list, not a prefix" },
    { M "data: {train: }\n" T, "data.train is empty, not a prefix" },
    { M "data: {train: [{weight: 1}]}\n" T, "data.train: an item without path" },
    { M "data: {train: [{path: a, weight: 0}]}\n" T,
      "data.train.weight is 0, not a number above 0" },
    { M "data: {train: [{path: a, weight: x}]}\n" T,
      "data.train.weight is x, not a number above 0" },
    { M "data: {train: [{path: [a]}]}\n" T, "data.train.path is empty or not a string" },
    { M "data: {train: [{path: a, wieght: 2}]}\n" T,
      "j.yaml:2:26: unknown key data.train.wieght (hint: path or weight)" },
    /* fields that do not fit together */
    { M D "train: {steps: 10}\noptimizer: {warmup_steps: 11}\n",
      "j.yaml:4:27: optimizer.warmup_steps is 11, more than train.steps 10" },
    { M D T "optimizer: {schedule: wsd, warmup_steps: 5, decay_steps: 6}\n",
      "optimizer.decay_steps is 6, more than the 5 steps after warm-up" },
    { M D "train: {steps: 10, ema: 1.0}\n", "train.ema is 1.0, not a number from 0 to 0.9999999" },
    { M D T "optimizer: {groups: 3}\n",
      "j.yaml:4:21: optimizer.groups is not a list of {match, lr_scale, weight_decay}, or none" },
    { M D T "optimizer: {groups: [{lr_scale: 2}]}\n", "optimizer.groups: an item without match" },
    { M D T "optimizer: {groups: [{match: a, lr: 2}]}\n",
      "unknown key optimizer.groups.lr (hint: match, lr_scale or weight_decay)" },
    { M D T "optimizer: {groups: [{match: '*', lr_scale: -1}]}\n",
      "optimizer.groups.lr_scale is -1, not a number from 0 to 1e+06" },
    { M D T "optimizer: {groups: [{match: 'layers.*.dwn.weight'}]}\n",
      "optimizer.groups has layers.*.dwn.weight, which matches no trained parameter that no group "
      "before it has (hint: layers.*.down.weight)" },
    { M D T "optimizer: {groups: [{match: '*'}, {match: 'embedding.weight'}]}\n",
      "optimizer.groups has embedding.weight, which matches no trained parameter that no group "
      "before it has" },
    { M D T "optimizer: {cycles: 11}\n",
      "optimizer.cycles is 11, more than the 10 steps after warm-up" },
    { M D T "optimizer: {schedule: wsd, cycles: 2}\n",
      "j.yaml:4:36: optimizer.cycles is 2, and schedule wsd has none (hint: optimizer.schedule: "
      "cosine or linear)" },
    { M D T "optimizer: {decay_shape: 1-sqrt}\n",
      "j.yaml:4:26: optimizer.decay_shape is 1-sqrt, which schedule cosine does not have (hint: "
      "optimizer.schedule: wsd)" },
    { M D T "optimizer: {lr: 1e-4, min_lr: 2e-4}\n",
      "optimizer.min_lr is 0.0002, more than lr 0.0001" },
    { M D "train: {steps: 1, global_batch: 10, micro_batch: 4}\n",
      "j.yaml:3:33: train.global_batch is 10, not a multiple of micro_batch 4 (hint: 8 or 12)" },
    { M D T "parallel: {schedule: fold3d, gradient_sum: early}\n",
      "j.yaml:4:44: parallel.gradient_sum is early, but parallel.schedule is fold3d, which sums "
      "the "
      "gradients of a chunk behind its last backward (hint: gradient_sum: late, or schedule: "
      "breadth-first)" },
    { M D "train: {steps: 1}\nparallel: {schedule: dynamic}\n",
      "j.yaml:4:22: parallel.schedule dynamic needs parallel.micro_batches (hint: micro_batches: "
      "auto or [1, 2, 4, 4, 2, 1], or schedule: interleaved)" },
    { M D "train: {steps: 1}\nparallel: {micro_batches: auto}\n",
      "j.yaml:4:27: parallel.micro_batches is auto, but schedule 1f1b has micro-batches of one "
      "size (hint: schedule: dynamic)" },
    { M D "train: {steps: 1, global_batch: 4}\nparallel: {micro_batches: [1, 2, 1]}\n",
      "j.yaml:4:27: parallel.micro_batches is given, but schedule 1f1b has micro-batches of one "
      "size "
      "(hint: schedule: dynamic, or train.micro_batch: 2)" },
    { M D "train: {steps: 1, global_batch: 4, micro_batch: 1}\n"
          "parallel: {schedule: dynamic, micro_batches: [1, 2, 1]}\n",
      "j.yaml:3:49: train.micro_batch is 1, the largest of parallel.micro_batches is 2 (hint: 2, "
      "or "
      "leave it out)" },
    { M D "train: {steps: 1}\nparallel: {schedule: dynamic, micro_batches: [1, 0]}\n",
      "parallel.micro_batches has an item that is not a whole number from 1 to 1000000" },
    { M "data: {train: a, seq_len: 127}\ntrain: {steps: 1, global_batch: 9}\n"
        "parallel: {tp: 2, sequence_parallel: true, schedule: dynamic, micro_batches: [2, 3, 4]}\n",
      "j.yaml:4:38: parallel.sequence_parallel: micro_batch 3 * seq_len 127 is 381 tokens, not a "
      "multiple of tp 2 (hint: data.seq_len: 126" },
    { M D "train: {steps: 1, global_batch: 2, micro_batch: 4}\n", "of micro_batch 4 (hint: 4)" },
    { M D "train: {steps: 1, micro_batch: 5}\n",
      "j.yaml:3:32: train.global_batch is 64, not a multiple of micro_batch 5 (hint: 60 or 65)" },
    { M D T "eval: {data: x, split: 0.1}\n", "eval.split is given together with eval.data" },
    { M D T "eval: {every_steps: 5}\n",
      "eval.every_steps is given, but there is no data to evaluate on" },
    { M D T "eval: {split: 0.1, early_stop: {patience: 3}}\n",
      "eval.early_stop is given, but there are no evaluations" },
    { M D "train: {steps: 1, hang_abort_seconds: 5}\n",
      "train.hang_abort_seconds is 5, less than hang_seconds 30" },
    /* layouts */
    { M D T "parallel: {tp: 3}\n",
      "j.yaml:4:16: parallel.tp is 3, does not divide n_heads 4 (hint: 1, 2, 4)" },
    { "model: {from: llama-tiny, ffn_size: 126}\n" D T "parallel: {tp: 4}\n",
      "j.yaml:4:16: parallel.tp is 4, does not divide ffn_size 126 (hint: 1, 2)" },
    { "model: {from: llama-tiny, hidden_size: 72, n_heads: 12, n_kv_heads: 4, ffn_size: 240}\n" D T
      "parallel: {tp: 6}\n",
      "j.yaml:4:16: parallel.tp is 6, neither divides n_kv_heads 4 nor is a multiple of it (hint: "
      "1, 2, 4, 12)" },
    { "model: {from: llama-tiny, head_dim: 6, n_heads: 12, n_kv_heads: 1, ffn_size: 240}\n" D T
      "parallel: {tp: 4}\n",
      "j.yaml:4:16: parallel.tp is 4, shares a kv head (n_kv_heads 1) among 4 ranks, which do not "
      "divide its head_dim 6 (hint: 1, 2, 3, 6)" },
    { M D T "parallel: {pp: 3}\n",
      "j.yaml:4:16: parallel.pp is 3, more than the 2 layers (hint: 2)" },
    { M D T "parallel: {cp: 3}\n",
      "data.seq_len is 128, not a multiple of 6, as parallel.cp 3 with cp_kind gather needs (hint: "
      "126 or 132)" },
    { M D T "parallel: {cp: 4, cp_kind: {ulysses: 2, gather: 4}}\n",
      "parallel.cp_kind is 2 * 4 ranks, but parallel.cp is 4 (hint: cp: 8)" },
    { M D T "parallel: {cp: 4, cp_kind: {ulysses: 2}}\n",
      "parallel.cp_kind is a map without ulysses and one other (hint: {ulysses: 2, gather: 2})" },
    { M D T "parallel: {cp: 4, cp_kind: {ulyses: 2, gather: 2}}\n",
      "unknown key parallel.cp_kind.ulyses (hint: {ulysses: 2, gather: 2})" },
    { M D T "parallel: {cp: 4, cp_kind: {ulysses: 2, gather: none}}\n",
      "parallel.cp_kind.gather is not a whole number from 1 to 65536" },
    { M D T "parallel: {cp: 2, cp_kind: ulysses, cp_slices: 2}\n",
      "parallel.cp_slices is 2, but keys are not gathered with cp_kind ulysses (hint: cp_kind: "
      "gather)" },
    { M D T "parallel: {cp: 4, cp_kind: fastseq}\n",
      "parallel.cp_kind fastseq divides the heads, and their matrices, among tp 1 * cp 4 ranks, "
      "which do not divide 2 kv heads (hint: cp_kind: gather)" },
    { M D T "parallel: {tp: 2, cp: 2, cp_kind: fastseq}\n",
      "among tp 2 * cp 2 ranks, which do not divide 2 kv heads" },
    { M D T "parallel: {cp: 16, cp_kind: ulysses}\n",
      "parallel.cp: 16 ranks exchange heads, but do not divide the" },
    { M "data: {train: a, seq_len: 127}\ntrain: {steps: 1, micro_batch: 1}\n"
        "parallel: {tp: 2, sequence_parallel: true}\n",
      "j.yaml:4:38: parallel.sequence_parallel: micro_batch 1 * seq_len 127 is 127 tokens, not a "
      "multiple of tp 2 (hint: data.seq_len: 126, or sequence_parallel: false)" },
    { M "data: {train: a, seq_len: 1}\ntrain: {steps: 1, micro_batch: 2}\n"
        "parallel: {tp: 4, sequence_parallel: true}\n",
      "j.yaml:4:38: parallel.sequence_parallel: micro_batch 2 * seq_len 1 is 2 tokens, not a "
      "multiple of tp 4 (hint: data.seq_len: 2," },
    { M D T "parallel: {zero_group: 2}\n",
      "j.yaml:4:24: parallel.zero_group is 2, but zero 0 shards nothing (hint: zero: 1," },
    { M D T "parallel: {zero: 3, zero_group: 1}\n",
      "j.yaml:4:33: parallel.zero_group is 1: a group of one shards nothing" },
    { M D T "parallel: {zero: 3, hold: passes}\n",
      "j.yaml:4:27: parallel.hold is passes, not one of op, pass, run, step (hint: pass)" },
    /* the environment */
    { M D T "output: ${LMTRAIN_TEST_UNSET}\n",
      "j.yaml:4:9: environment variable LMTRAIN_TEST_UNSET is not set" },
    { M D T "output: a${b\n", "j.yaml:4:9: a${b: ${ without a name and }" },
    { M D T "output: ${}\n", "${}: ${ without a name and }" },
};

static void test_mistakes(void **state)
{
    (void)state;
    unsetenv("LMTRAIN_TEST_UNSET");
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        struct arena arena = { 0 };
        struct err err = { 0 };
        struct job job = { .ranks = 77 };

        if (!read_job(&job, mistakes[i][0], &arena, &err))
            fail_msg("no mistake in:\n%s", mistakes[i][0]);
        if (!strstr(err.text, mistakes[i][1]))
            fail_msg("%s\ngave \"%s\"\nnot  \"%s\"", mistakes[i][0], err.text, mistakes[i][1]);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_int_equal(job.ranks, 77);
        arena_release(&arena);
    }
}

static void test_all_mistakes_in_order(void **state)
{
    struct arena arena = { 0 };
    struct str text = { 0 };
    struct err err;
    struct job job;

    (void)state;
    assert_int_equal(read_job(&job,
                              "model: llama-tiny\n"
                              "train: {stps: 1, dtype: x}\n"
                              "ranks: 0\n"
                              "data: {trian: a}\n",
                              &arena, &err),
                     -1);
    assert_string_equal(err.text,
                        "j.yaml:2:9: unknown key train.stps (hint: train.steps)\n"
                        "j.yaml:2:25: train.dtype is x, not one of fp32, bf16, fp16\n"
                        "j.yaml:3:8: ranks is 0, not a whole number from 1 to 1000000 or auto\n"
                        "j.yaml:4:8: unknown key data.trian (hint: data.train)");
    assert_int_equal(read_job(&job, "ranks: 0\n", &arena, &err), -1);
    assert_string_equal(
        err.text, "j.yaml:1:8: ranks is 0, not a whole number from 1 to 1000000 or auto\n"
                  "j.yaml: model is missing (hint: a name such as llama-100m, a folder with "
                  "config.json, or fields)\n"
                  "j.yaml: data.train is missing (hint: training data: prefix of a .bin/.idx pair "
                  "(Megatron format), or a list of prefixes or of {path, weight} to blend; for "
                  "finetune and lora also files and folders of rows, shuffled together if all "
                  "weights are 1, else drawn by weight)\n"
                  "j.yaml: train.steps is missing (hint: optimizer steps; auto (finetune and lora "
                  "only): as many as train.epochs need)");
    for (int i = 0; i < 500; i++)
        str_printf(&text, "key_%d: 1\n", i);
    assert_int_equal(read_job(&job, text.data, &arena, &err), -1);
    assert_true(str_starts_with(err.text, "j.yaml:1:1: unknown key key_0"));
    const char *rest = strstr(err.text, "\n... and ");
    assert_non_null(rest);
    assert_true(str_ends_with(err.text, " more"));
    str_release(&text);
    arena_release(&arena);
}

static void test_wrong_overrides(void **state)
{
    static const char *const rows[][2] = {
        { "train.steps", "--set: train.steps is not path.to.key=value" },
        { "=3", "--set: =3 is not path.to.key=value" },
        { "train.steps=x", "--set train.steps: train.steps is x, not a whole number" },
        { "train.stesp=4", "--set train.stesp: unknown key train.stesp (hint: train.steps)" },
        { "train..steps=4", "--set train..steps: not a key of 1 to 8 names" },
        { "a.b.c.d.e.f.g.h.i=4", "not a key of 1 to 8 names" },
        { "train.steps=[1", "--set train.steps: " },
        { "train.steps=&a 1", "--set train.steps: anchor &a" },
        { "data.train.0=4", "unknown key data.train" },
        { "output=${LMTRAIN_TEST_UNSET}",
          "--set output: environment variable LMTRAIN_TEST_UNSET is not set" },
        { "model=nope-at-all", "--set model: model is nope-at-all, neither" },
        { "train.steps.x=4", "--set train.steps.x: train.steps is a map, not a whole number" },
    };
    struct arena arena = { 0 };

    (void)state;
    unsetenv("LMTRAIN_TEST_UNSET");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = { 0 };
        struct job job;

        assert_int_equal(read_job_with(&job, SMALL, rows[i][0], &arena, &err), -1);
        if (!strstr(err.text, rows[i][1]))
            fail_msg("--set %s gave \"%s\", not \"%s\"", rows[i][0], err.text, rows[i][1]);
    }
    struct err err;
    struct job job;
    assert_int_equal(read_job_with(&job, "{data: {train: [a]}}", "data.train.x=1", &arena, &err),
                     -1);
    assert_non_null(strstr(err.text, "--set data.train.x: train is a list (hint: set the whole"));
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_all_mistakes_in_order),
        cmocka_unit_test(test_wrong_overrides),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
