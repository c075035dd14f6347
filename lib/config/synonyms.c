/*
 * synonyms.c - what other tools call our fields
 *
 * The names of LLaMA-Factory, axolotl, torchtune, litgpt, Hugging Face's Trainer and configs,
 * torchtitan, DeepSpeed, FSDP and Megatron-LM. They are answered, not taken: their units and
 * defaults differ.
 */
#include <stddef.h>
#include <string.h>

#include "base/str.h"
#include "config/man_fields.h"
#include "config/read_impl.h"

#define MAX_FIELDS 256

static const char *const aliases[][2] = {
    /* model */
    { "model_name_or_path", "model" },
    { "base_model", "model" },
    { "checkpoint_dir", "model" },
    { "model_path", "model" },
    { "pretrained_model_name_or_path", "model" },
    { "num_hidden_layers", "model.n_layers" },
    { "num_layers", "model.n_layers" },
    { "n_layer", "model.n_layers" },
    { "layers", "model.n_layers" },
    { "num_attention_heads", "model.n_heads" },
    { "num_heads", "model.n_heads" },
    { "n_head", "model.n_heads" },
    { "num_key_value_heads", "model.n_kv_heads" },
    { "num_kv_heads", "model.n_kv_heads" },
    { "num_query_groups", "model.n_kv_heads" },
    { "n_query_groups", "model.n_kv_heads" },
    { "intermediate_size", "model.ffn_size" },
    { "ffn_hidden_size", "model.ffn_size" },
    { "n_inner", "model.ffn_size" },
    { "num_experts", "model.n_experts" },
    { "num_local_experts", "model.n_experts" },
    { "num_moe_experts", "model.n_experts" },
    { "num_experts_per_tok", "model.n_active_experts" },
    { "moe_router_topk", "model.n_active_experts" },
    { "top_k_experts", "model.n_active_experts" },
    { "moe_intermediate_size", "model.expert_ffn_size" },
    { "moe_ffn_hidden_size", "model.expert_ffn_size" },
    { "decoder_sparse_step", "model.expert_every" },
    { "moe_layer_freq", "model.expert_every" },
    { "norm_topk_prob", "model.router_normalize" },
    { "first_k_dense_replace", "model.first_dense_layers" },
    { "num_shared_experts", "model.n_shared_experts" },
    { "shared_expert_intermediate_size", "model.shared_ffn_size" },
    { "moe_shared_expert_intermediate_size", "model.shared_ffn_size" },
    { "moe_shared_expert_gate", "model.shared_gate" },
    { "scoring_func", "model.router_score" },
    { "moe_router_score_function", "model.router_score" },
    { "routed_scaling_factor", "model.router_scaling" },
    { "moe_router_topk_scaling_factor", "model.router_scaling" },
    { "n_group", "model.router_groups" },
    { "moe_router_num_groups", "model.router_groups" },
    { "topk_group", "model.router_groups_kept" },
    { "moe_router_group_topk", "model.router_groups_kept" },
    { "moe_router_enable_expert_bias", "model.router_bias" },
    { "moe_router_bias_update_rate", "model.router_bias_rate" },
    { "moe_expert_capacity_factor", "moe.capacity_factor" },
    { "moe_token_drop_policy", "moe.drop" },
    { "moe_z_loss_coeff", "model.router_z" },
    { "router_z_loss_coef", "model.router_z" },
    { "router_aux_loss_coef", "model.router_balance" },
    { "moe_aux_loss_coeff", "model.router_balance" },
    { "n_embd", "model.hidden_size" },
    { "embed_dim", "model.hidden_size" },
    { "dim", "model.hidden_size" },
    { "kv_channels", "model.head_dim" },
    { "head_size", "model.head_dim" },
    { "max_position_embeddings", "model.max_seq_len" },
    { "n_positions", "model.max_seq_len" },
    { "padded_vocab_size", "model.vocab_size" },
    { "tie_word_embeddings", "model.tied_embeddings" },
    { "untie_embeddings_and_output_weights", "model.tied_embeddings" },
    { "rms_norm_eps", "model.norm_eps" },
    { "layer_norm_eps", "model.norm_eps" },
    { "layer_norm_epsilon", "model.norm_eps" },
    { "rope_base", "model.rope_theta" },
    { "rotary_base", "model.rope_theta" },
    { "hidden_act", "model.activation" },
    { "activation_function", "model.activation" },
    { "position_embedding_type", "model.position" },
    { "hidden_dropout", "model.dropout" },
    { "resid_pdrop", "model.dropout" },
    { "embd_pdrop", "model.dropout" },
    { "attn_pdrop", "model.attention_dropout" },
    { "initializer_range", "model.init_std" },
    { "init_method_std", "model.init_std" },
    { "normalization", "model.norm" },
    /* data */
    { "train_on_prompt", "data.mask: none" },
    { "train_on_inputs", "data.mask: none" },
    { "train_on_input", "data.mask: none" },
    { "mask_history", "data.mask: history" },
    { "mask_prompt", "data.mask" },
    { "sample_packing", "data.packing" },
    { "neat_packing", "data.packing" },
    { "packed", "data.packing" },
    { "chat_template", "data.template" },
    { "default_system", "data.system" },
    { "system_prompt", "data.system" },
    { "dataset_format", "data.format" },
    { "formatting", "data.format" },
    { "column_map", "data.columns" },
    { "excess_length_strategy", "data.too_long" },
    { "dataset_dir", "data.train" },
    { "eval_dataset", "eval.data" },
    { "dataset", "data.train" },
    { "datasets", "data.train" },
    { "dataset_path", "data.train" },
    { "data_path", "data.train" },
    { "train_data", "data.train" },
    { "train_file", "data.train" },
    { "tokenizer_name", "data.tokenizer" },
    { "tokenizer_name_or_path", "data.tokenizer" },
    { "tokenizer_model", "data.tokenizer" },
    { "tokenizer_path", "data.tokenizer" },
    { "tokenizer_dir", "data.tokenizer" },
    { "cutoff_len", "data.seq_len" },
    { "sequence_len", "data.seq_len" },
    { "seq_length", "data.seq_len" },
    { "sequence_length", "data.seq_len" },
    { "max_seq_length", "data.seq_len" },
    { "max_length", "data.seq_len" },
    { "block_size", "data.seq_len" },
    /* batches and steps */
    { "per_device_train_batch_size", "train.micro_batch" },
    { "micro_batch_size", "train.micro_batch" },
    { "local_batch_size", "train.micro_batch" },
    { "batch_size", "train.micro_batch, or train.global_batch over all ranks" },
    { "train_batch_size", "train.global_batch" },
    { "global_batch_size", "train.global_batch" },
    { "gradient_accumulation_steps", "train.global_batch = micro_batch * accumulation steps * dp" },
    { "accumulate_grad_batches", "train.global_batch = micro_batch * accumulation steps * dp" },
    { "max_steps", "train.steps" },
    { "train_iters", "train.steps" },
    { "max_iters", "train.steps" },
    { "max_steps_per_epoch", "train.steps" },
    { "training_steps", "train.steps" },
    { "num_train_epochs", "train.epochs, for finetune and lora" },
    { "num_epochs", "train.epochs, for finetune and lora" },
    { "epochs", "train.epochs, for finetune and lora" },
    { "train_samples", "train.steps = samples / global_batch" },
    { "max_tokens", "train.steps = tokens / (global_batch * seq_len)" },
    { "bf16", "train.dtype: bf16" },
    { "fp16", "train.dtype: fp16" },
    { "initial_loss_scale", "train.loss_scale.initial" },
    { "init_scale", "train.loss_scale.initial" },
    { "initial_scale_power", "train.loss_scale.initial, two to that power" },
    { "growth_interval", "train.loss_scale.growth_every" },
    { "loss_scale_window", "train.loss_scale.growth_every" },
    { "min_loss_scale", "train.loss_scale.min" },
    { "ema_decay", "train.ema" },
    { "use_ema", "train.ema" },
    { "z_loss", "train.z_loss" },
    { "z_loss_weight", "train.z_loss" },
    { "lm_head_z_loss", "train.z_loss" },
    { "fp32", "train.dtype: fp32" },
    { "precision", "train.dtype" },
    { "mixed_precision", "train.dtype" },
    { "torch_dtype", "train.dtype" },
    { "accumulate_allreduce_grads_in_fp32", "train.gradient_dtype: fp32" },
    { "fp32_residual_connection", "train.residual: fp32" },
    { "logging_steps", "train.log_every" },
    { "log_interval", "train.log_every" },
    { "log_every_n_steps", "train.log_every" },
    { "log_freq", "train.log_every" },
    { "data_seed", "train.seed" },
    /* optimizer */
    { "learning_rate", "optimizer.lr" },
    { "min_learning_rate", "optimizer.min_lr" },
    { "lr_scheduler_type", "optimizer.schedule" },
    { "lr_scheduler", "optimizer.schedule" },
    { "lr_decay_style", "optimizer.schedule" },
    { "lr_decay_iters", "train.steps" },
    { "num_warmup_steps", "optimizer.warmup_steps" },
    { "lr_warmup_steps", "optimizer.warmup_steps" },
    { "lr_warmup_iters", "optimizer.warmup_steps" },
    { "warmup_iters", "optimizer.warmup_steps" },
    { "warmup_ratio", "optimizer.warmup_steps = ratio * train.steps" },
    { "lr_warmup_fraction", "optimizer.warmup_steps = fraction * train.steps" },
    { "lr_wsd_decay_iters", "optimizer.decay_steps" },
    { "num_decay_steps", "optimizer.decay_steps" },
    { "lr_wsd_decay_style", "optimizer.decay_shape" },
    { "decay_type", "optimizer.decay_shape" },
    { "num_cycles", "optimizer.cycles" },
    { "lr_restarts", "optimizer.cycles" },
    { "max_grad_norm", "optimizer.clip" },
    { "max_norm", "optimizer.clip" },
    { "clip_grad", "optimizer.clip" },
    { "clip_grad_norm", "optimizer.clip" },
    { "grad_clip", "optimizer.clip" },
    { "gradient_clipping", "optimizer.clip" },
    { "betas", "optimizer.beta1 and optimizer.beta2" },
    { "adam_beta1", "optimizer.beta1" },
    { "adam_beta2", "optimizer.beta2" },
    { "adam_epsilon", "optimizer.eps" },
    { "adam_eps", "optimizer.eps" },
    { "wd", "optimizer.weight_decay" },
    { "optim", "optimizer.name" },
    /* layout */
    { "tensor_model_parallel_size", "parallel.tp" },
    { "tensor_parallel_size", "parallel.tp" },
    { "tensor_parallel_degree", "parallel.tp" },
    { "tensor_parallel_dim", "parallel.tp" },
    { "pipeline_model_parallel_size", "parallel.pp" },
    { "pipeline_parallel_size", "parallel.pp" },
    { "pipeline_parallel_degree", "parallel.pp" },
    { "context_parallel_size", "parallel.cp" },
    { "context_parallel_degree", "parallel.cp" },
    { "expert_model_parallel_size", "parallel.ep" },
    { "expert_parallel_degree", "parallel.ep" },
    { "data_parallel_size", "parallel.dp" },
    { "data_parallel_replicate_degree", "parallel.dp" },
    { "data_parallel_shard_degree", "parallel.zero: 3" },
    { "pipeline_schedule", "parallel.schedule" },
    { "zero_stage", "parallel.zero" },
    { "deepspeed", "parallel.zero" },
    { "fsdp", "parallel.zero: 3" },
    { "hybrid_shard", "parallel.zero_group" },
    { "zero_hpz_partition_size", "parallel.zero_group" },
    { "reshard_after_forward", "parallel.hold" },
    { "use_distributed_optimizer", "parallel.zero: 1" },
    { "ddp_bucket_size", "parallel.bucket_mb" },
    { "bucket_cap_mb", "parallel.bucket_mb" },
    { "nproc_per_node", "ranks" },
    { "devices", "ranks" },
    { "num_processes", "ranks" },
    { "world_size", "ranks" },
    { "omp_num_threads", "threads" },
    { "num_threads", "threads" },
    { "gradient_checkpointing", "recompute: full" },
    { "activation_checkpointing", "recompute: full" },
    { "enable_activation_checkpointing", "recompute: full" },
    { "activation_checkpoint", "recompute" },
    { "recompute_granularity", "recompute" },
    { "recompute_modules", "recompute" },
    { "recompute_activations", "recompute: selective" },
    /* memory */
    { "offload_optimizer", "memory.offload: [optimizer]" },
    { "offload_optimizer_device", "memory.offload: [optimizer]" },
    { "optimizer_cpu_offload", "memory.offload: [optimizer]" },
    { "optimizer_offload_fraction", "memory.offload: [optimizer], as much as needed" },
    { "offload_param", "memory.offload: [weights]" },
    { "offload_param_device", "memory.offload: [weights]" },
    { "offload_params", "memory.offload: [weights]" },
    { "fsdp_offload_params", "memory.offload: [weights, gradients, optimizer]" },
    { "fsdp_cpu_offload", "memory.offload: [weights, gradients, optimizer]" },
    { "enable_cpu_offload", "memory.offload: [weights, gradients, optimizer]" },
    { "cpu_offload", "memory.offload: auto" },
    { "offload_gradients", "memory.offload: [gradients]" },
    { "offload_grads", "memory.offload: [gradients]" },
    { "offload_activations", "memory.offload: [activations]" },
    { "activation_offloading", "memory.offload: [activations]" },
    { "enable_activation_offload", "memory.offload: [activations]" },
    { "enable_activation_offloading", "memory.offload: [activations]" },
    { "fine_grained_activation_offloading", "memory.offload: [activations]" },
    { "cpu_checkpointing", "memory.offload: [activations]" },
    { "cpu_offloading", "memory.offload: [activations]" },
    { "cpu_offloading_activations", "memory.offload: [activations]" },
    { "cpu_offloading_weights", "memory.offload: [weights]" },
    { "cpu_offloading_num_layers", "memory.offload: [activations], of as many layers as needed" },
    { "super_offload", "memory.update: host" },
    { "nvme_path", "memory.file" },
    { "offload_optimizer_nvme_path", "memory.file" },
    { "offload_param_nvme_path", "memory.file" },
    { "offload_folder", "memory.file" },
    { "max_memory", "memory.device_bytes" },
    { "pin_memory", "nothing: what leaves a GPU is always in page-locked memory" },
    /* finetuning */
    { "lora_r", "lora.rank" },
    { "lora_rank", "lora.rank" },
    { "lora_alpha", "lora.alpha" },
    { "lora_dropout", "lora.dropout" },
    { "lora_target", "lora.targets" },
    { "lora_target_modules", "lora.targets" },
    { "target_modules", "lora.targets" },
    { "lora_target_linear", "lora.targets: all" },
    { "use_rslora", "lora.rslora" },
    { "use_dora", "nothing: DoRA is not supported, lora.rslora is" },
    { "rank_pattern", "lora.rank, which all targets have" },
    { "alpha_pattern", "lora.alpha, which all targets have" },
    { "trainable_token_indices", "lora.modules_to_save: [embed_tokens], which trains all rows" },
    { "init_lora_weights", "nothing: A begins with small numbers, B with 0, as peft's default" },
    { "layers_to_transform", "lora.targets, which are of every layer" },
    { "r", "lora.rank" },
    { "additional_target", "lora.modules_to_save" },
    { "lora_modules_to_save", "lora.modules_to_save" },
    { "finetuning_type", "the command: lmtrain finetune or lmtrain lora" },
    { "adapter", "the command: lmtrain lora" },
    { "freeze_trainable_modules", "train.only" },
    { "unfrozen_parameters", "train.only" },
    { "new_special_tokens", "data.added_tokens" },
    { "add_special_tokens", "data.added_tokens" },
    { "add_tokens", "data.added_tokens" },
    /* evaluation and checkpoints */
    { "eval_steps", "eval.every_steps" },
    { "eval_interval", "eval.every_steps" },
    { "evals_per_epoch", "eval.every_steps" },
    { "val_size", "eval.split" },
    { "val_set_size", "eval.split" },
    { "eval_iters", "eval.batches" },
    { "max_iters_eval", "eval.batches" },
    { "valid_data_path", "eval.data" },
    { "val_data", "eval.data" },
    { "early_stopping_patience", "eval.early_stop.patience" },
    { "save_steps", "checkpoint.every_steps" },
    { "save_interval", "checkpoint.every_steps" },
    { "checkpoint_interval", "checkpoint.every_steps" },
    { "save_total_limit", "checkpoint.keep" },
    { "keep_latest_k", "checkpoint.keep" },
    { "output_dir", "output" },
    { "out_dir", "output" },
    { "save_dir", "output" },
    { "save", "output" },
    { "dump_folder", "output" },
    { "resume_from_checkpoint", "the option --resume of lmtrain pretrain" },
    { "overwrite_output_dir", "the option --resume of lmtrain pretrain" },
    { "stage", "the command: lmtrain pretrain" },
    { "report_to", "nothing: metrics.jsonl and TensorBoard events are always written" },
};

/* What another tool's name is here ("train.micro_batch"), or NULL. leaf: the last part of a key. */
static const char *alias_find(const char *leaf)
{
    char name[64];
    size_t n = 0;

    /* Megatron's options have dashes: --train-iters. */
    for (const char *p = leaf; *p && n < sizeof name - 1; p++)
        name[n++] = *p == '-' ? '_' : *p;
    name[n] = '\0';
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (!strcmp(aliases[i][0], name))
            return aliases[i][1];
    return NULL;
}

static const char *leaf_of(const char *key)
{
    const char *dot = strrchr(key, '.');

    return dot ? dot + 1 : key;
}

/* The field of another group with the same last name, or NULL. */
static const char *same_leaf(const char *key)
{
    const char *found = NULL;

    for (int i = 0; i < n_job_fields; i++)
        if (!strcmp(leaf_of(job_fields[i].key), leaf_of(key)) && !found)
            found = job_fields[i].key;
    return found;
}

/* A typing slip most likely keeps its group; else it is the nearest last name of any group. */
static const char *nearest_key(const char *key)
{
    static const char *const groups[] = { "model",    "data",       "train", "eval",   "optimizer",
                                          "parallel", "checkpoint", "debug", "memory", "moe" };
    const char *names[MAX_FIELDS], *keys[MAX_FIELDS];
    const char *leaf = leaf_of(key);
    size_t group = (size_t)(leaf - key);
    int n = 0;

    CHECK(n_job_fields <= MAX_FIELDS);
    if (group == 0) {
        const char *near = str_nearest(key, groups, (int)(sizeof groups / sizeof *groups));
        if (near)
            return near;
    }
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (int i = 0; i < n_job_fields; i++) {
            if (pass == 0 && strncmp(job_fields[i].key, key, group) != 0)
                continue;
            keys[n] = job_fields[i].key;
            names[n++] = leaf_of(job_fields[i].key);
        }
        const char *near = str_nearest(leaf, names, n);
        for (int i = 0; near && i < n; i++)
            if (names[i] == near)
                return keys[i];
    }
    return str_nearest(key, keys, n);
}

const char *field_suggest(const char *key)
{
    const char *near = alias_find(leaf_of(key));

    if (!near)
        near = same_leaf(key);
    return near ? near : nearest_key(key);
}

/* What people call a field or a group on a command line; NULL: as alias_find and same_leaf know
 * it. */
static const char *option_key(const char *name, bool exact)
{
    static const char *const names[][2] = { { "model", "model" },
                                            { "data", "data.train" },
                                            { "train", "data.train" },
                                            { "config", "the job file is an argument" },
                                            { "job", "the job file is an argument" },
                                            { "batch", "train.global_batch" },
                                            { "eval", "eval.data" },
                                            { "epoch", "train.epochs" } };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i][0]))
            return names[i][1];
    if (strchr(name, '.') || field_is_group(name))
        return field_find(name) ? name : exact ? NULL : nearest_key(name);
    const char *key = alias_find(name);
    if (!key)
        key = same_leaf(name);
    return key || exact ? key : nearest_key(name);
}

const char *job_option_hint(const char *name, const char *value, bool exact, struct arena *arena)
{
    char *plain = arena_strdup(arena, name);

    for (char *c = plain; *c; c++)
        *c = *c == '-' ? '_' : *c;
    const char *key = option_key(plain, exact);
    if (!key || field_is_group(key) != !strcmp(key, "model"))
        return NULL;
    size_t length = strcspn(key, " :,");
    /* "train.dtype: bf16" says the value itself, others explain it. */
    if (key[length] == ':' && !strchr(key + length + 2, ' '))
        return arena_printf(arena, "--set %.*s=%s", (int)length, key, key + length + 2);
    if (key[length] && !field_find(arena_strndup(arena, key, length)))
        return key;
    const char *rest = key + length;
    if (str_starts_with(rest, " = "))
        return arena_printf(arena, "--set %.*s=VALUE, that is %s", (int)length, key, rest + 3);
    return arena_printf(arena, "--set %.*s=%s%s", (int)length, key, value ? value : "VALUE", rest);
}

void reader_add_unknown(struct job_reader *r, const struct yaml_node *node, const char *key)
{
    const char *hint = field_suggest(key);

    if (hint)
        reader_refuse(r, arena_strndup(r->arena, hint, strcspn(hint, " :,")));
    if (hint)
        diagnostics_add_at_key(&r->mistakes, node, "unknown key %.128s (hint: %s)", key, hint);
    else
        diagnostics_add_at_key(&r->mistakes, node,
                               "unknown key %.128s (hint: lmtrain config --explain lists all)",
                               key);
}
