/*
 * fields.c - every field of a job, once
 */
#include "config/fields_impl.h"

#include <string.h>

#include "ops/op_info.h"

#define AT(member) offsetof(struct job, member)
#define N_MAX 1000000000.0
#define N_STEPS_MAX 1e15
#define SCALE_MAX 1073741824.0 /* 2^30 */

static const struct choice norms[] = { { "rmsnorm", NORM_RMS },
                                       { "layernorm", NORM_LAYER },
                                       { 0 } };
static const struct choice positions[] = {
    { "rope", POSITION_ROPE }, { "learned", POSITION_LEARNED }, { "alibi", POSITION_ALIBI }, { 0 }
};
static const struct choice activations[] = { { "swiglu", ACTIVATION_SWIGLU },
                                             { "gelu", ACTIVATION_GELU },
                                             { 0 } };
static const struct choice rope_scalings[] = {
    { "none", ROPE_PLAIN },    { "linear", ROPE_LINEAR }, { "dynamic", ROPE_DYNAMIC },
    { "llama3", ROPE_LLAMA3 }, { "yarn", ROPE_YARN },     { 0 }
};
static const struct choice attention_biases[] = { { "none", ATTENTION_BIAS_NONE },
                                                  { "qkv", ATTENTION_BIAS_QKV },
                                                  { "all", ATTENTION_BIAS_ALL },
                                                  { 0 } };
static const struct choice devices[] = {
    { "auto", JOB_DEVICE_AUTO }, { "cpu", JOB_DEVICE_CPU }, { "cuda", JOB_DEVICE_CUDA }, { 0 }
};
static const struct choice dtypes[] = { { "fp32", DTYPE_F32 }, { "bf16", DTYPE_BF16 }, { 0 } };
static const struct choice act_dtypes[] = {
    { "fp32", DTYPE_F32 }, { "bf16", DTYPE_BF16 }, { "fp16", DTYPE_F16 }, { 0 }
};
static const struct choice torch_dtypes[] = {
    { "float32", DTYPE_F32 }, { "bfloat16", DTYPE_BF16 }, { "float16", DTYPE_F16 }, { 0 }
};
static const struct choice optimizers[] = { { "adamw", 0 }, { 0 } };
static const struct choice lr_schedules[] = { { "constant", LR_CONSTANT },
                                              { "linear", LR_LINEAR },
                                              { "cosine", LR_COSINE },
                                              { "wsd", LR_WSD },
                                              { 0 } };
static const struct choice sums[] = { { "auto", GRADIENT_SUM_LATE },
                                      { "late", GRADIENT_SUM_LATE },
                                      { "early", GRADIENT_SUM_EARLY },
                                      { 0 } };
static const struct choice holds[] = {
    { "op", HOLD_OP }, { "pass", HOLD_PASS }, { "run", HOLD_RUN }, { "step", HOLD_STEP }, { 0 }
};
static const struct choice reductions[] = { { "fixed", REDUCTIONS_FIXED },
                                            { "fast", REDUCTIONS_FAST },
                                            { 0 } };
static const struct choice schedules[] = { { "gpipe", PIPELINE_GPIPE },
                                           { "1f1b", PIPELINE_1F1B },
                                           { "interleaved", PIPELINE_INTERLEAVED },
                                           { "breadth-first", PIPELINE_BREADTH_FIRST },
                                           { "zb-h1", PIPELINE_ZB_H1 },
                                           { "zb-h2", PIPELINE_ZB_H2 },
                                           { "zb-v", PIPELINE_ZB_V },
                                           { "dynamic", PIPELINE_DYNAMIC },
                                           { 0 } };
static const struct choice recomputes[] = { { "none", RECOMPUTE_NONE },
                                            { "selective", RECOMPUTE_SELECTIVE },
                                            { "full", RECOMPUTE_FULL },
                                            { "auto", RECOMPUTE_AUTO },
                                            { 0 } };

/* Ops that a forward may have, by their names in the catalogue. */
static int list_forward_ops(struct choice ops[FIELD_ITEMS_MAX + 1])
{
    int n = 0;

    _Static_assert(N_OP_KINDS <= FIELD_ITEMS_MAX, "a list may have all kinds");
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (op_info((enum op_kind)kind)->feature != FEATURE_NO_FORWARD)
            ops[n++] = (struct choice){ op_name((enum op_kind)kind), kind };
    ops[n] = (struct choice){ 0 };
    return n;
}

static const struct choice data_formats[] = { { "auto", 0 },     { "alpaca", 1 }, { "sharegpt", 2 },
                                              { "messages", 3 }, { "belle", 4 },  { "moss", 5 },
                                              { "leetcode", 6 }, { "text", 7 },   { 0 } };
static const struct choice data_masks[] = {
    { "prompt", 0 }, { "history", 1 }, { "none", 2 }, { 0 }
};
static const struct choice data_too_longs[] = {
    { "cut", 0 }, { "drop", 1 }, { "split", 2 }, { "refuse", 3 }, { 0 }
};
static const struct choice data_bad_rows[] = { { "refuse", 0 }, { "skip", 1 }, { 0 } };
static const struct choice kinds[] = {
    { "pretrain", JOB_PRETRAIN }, { "finetune", JOB_FINETUNE }, { "lora", JOB_LORA }, { 0 }
};
static const struct choice router_balance_kinds[] = { { "per_layer", ROUTER_BALANCE_PER_LAYER },
                                                      { "pooled", ROUTER_BALANCE_POOLED },
                                                      { 0 } };
static const struct choice lora_biases[] = { { "none", LORA_BIAS_NONE },
                                             { "all", LORA_BIAS_ALL },
                                             { "lora_only", LORA_BIAS_LORA_ONLY },
                                             { 0 } };

static const struct choice output_modes[] = {
    { "private", OUTPUT_PRIVATE }, { "group", OUTPUT_GROUP }, { "all", OUTPUT_ALL }, { 0 }
};

const struct field job_fields[] = {
    { "model.name", FIELD_NAME, AT(model.name), .initial = "custom",
      .help = "what the model is called in messages and reports" },
    { "model.vocab_size", FIELD_INT, AT(model.vocab_size), .min = 1, .max = 16777216,
      .unit = "tokens", .help = "rows of the embedding; at least the tokenizer's" },
    { "model.hidden_size", FIELD_INT, AT(model.hidden_size), .min = 1, .max = 1048576,
      .help = "width of the residual stream" },
    { "model.n_layers", FIELD_INT, AT(model.n_layers), .min = 1, .max = 10000,
      .help = "transformer blocks" },
    { "model.n_heads", FIELD_INT, AT(model.n_heads), .min = 1, .max = 65536,
      .help = "query heads of each block" },
    { "model.n_kv_heads", FIELD_INT, AT(model.n_kv_heads), .initial = "auto", .word = "auto",
      .min = 1, .max = 65536, .help = "key and value heads; divides n_heads; auto: n_heads" },
    { "model.head_dim", FIELD_INT, AT(model.head_dim), .initial = "auto", .word = "auto", .min = 1,
      .max = 65536, .help = "width of one head; auto: hidden_size / n_heads" },
    { "model.ffn_size", FIELD_INT, AT(model.ffn_size), .min = 1, .max = 16777216,
      .help = "width between the two halves of the feed-forward part" },
    { "model.n_experts", FIELD_INT, AT(model.n_experts), .initial = "0", .max = 65536,
      .help =
          "feed-forward parts a layer of which a token goes to some; 0: no mixture of experts" },
    { "model.n_active_experts", FIELD_INT, AT(model.n_active_experts), .initial = "2", .min = 1,
      .max = 65536, .help = "experts that a token goes to" },
    { "model.expert_ffn_size", FIELD_INT, AT(model.expert_ffn_size), .initial = "auto",
      .word = "auto", .min = 1, .max = 16777216, .help = "ffn_size of one expert; auto: ffn_size" },
    { "model.expert_every", FIELD_INT, AT(model.expert_every), .initial = "1", .min = 1,
      .max = 10000,
      .help = "every so many-th layer has experts, the others one feed-forward part of ffn_size" },
    { "model.router_normalize", FIELD_BOOL, AT(model.router_normalize), .initial = "true",
      .help = "a token's experts share a weight of 1, by their softmax; else each has its part of "
              "the softmax over all" },
    { "model.router_balance", FIELD_FLOAT, AT(model.router_balance), .initial = "0.0", .max = 100,
      .help =
          "coefficient of the balance loss (Fedus et al. 2021, eq. 4), added over layers; it is "
          "trained on and reported apart from loss" },
    { "model.router_balance_kind", FIELD_CHOICE, AT(model.router_balance_kind),
      .initial = "per_layer", .choices = router_balance_kinds,
      .help =
          "what the balance loss is of: per_layer, the sum over layers of m sum_e f_e P_e (Fedus "
          "et al.); or pooled, as transformers trains Mixtral and Qwen3-MoE, the number of "
          "layers times m sum_e f_e P_e with f_e and P_e means over all layers, which needs "
          "parallel.pp 1. A Hugging Face folder with output_router_logits gets pooled. What is "
          "reported is the mean over layers in either" },
    { "model.max_seq_len", FIELD_INT, AT(model.max_seq_len), .initial = "2048", .min = 1,
      .max = N_MAX, .unit = "tokens",
      .help = "rows of the table of learned positions; else how long texts are meant to be" },
    { "model.norm", FIELD_CHOICE, AT(model.norm), .initial = "rmsnorm", .choices = norms,
      .help = "normalisation before attention, before the feed-forward part and at the end" },
    { "model.norm_eps", FIELD_FLOAT, AT(model.norm_eps), .initial = "1.0e-5", .max = 1,
      .above_min = 1, .help = "added to the variance before its root" },
    { "model.position", FIELD_CHOICE, AT(model.position), .initial = "rope", .choices = positions,
      .help =
          "how positions enter: rotary, a learned table, or linear biases of attention (ALiBi)" },
    { "model.rope_theta", FIELD_FLOAT, AT(model.rope_theta), .initial = "10000.0", .max = 1e12,
      .above_min = 1, .help = "base of the rotary frequencies" },
    { "model.rope_scaling.type", FIELD_CHOICE, AT(model.rope_scaling.type), .initial = "none",
      .choices = rope_scalings,
      .help = "how rotary frequencies are changed for texts longer than the first training's" },
    { "model.rope_scaling.factor", FIELD_FLOAT, AT(model.rope_scaling.factor), .initial = "1.0",
      .min = 1, .max = 1e6, .help = "how many times as long texts may be" },
    { "model.rope_scaling.original_max_seq_len", FIELD_INT,
      AT(model.rope_scaling.original_max_seq_len), .initial = "auto", .word = "auto", .min = 1,
      .max = N_MAX, .unit = "tokens",
      .help = "length of the first training's texts; auto: max_seq_len" },
    { "model.rope_scaling.low_freq_factor", FIELD_FLOAT, AT(model.rope_scaling.low_freq_factor),
      .initial = "1.0", .max = 1e6, .above_min = 1,
      .help = "llama3: rotations over the original length below which all of factor applies" },
    { "model.rope_scaling.high_freq_factor", FIELD_FLOAT, AT(model.rope_scaling.high_freq_factor),
      .initial = "4.0", .max = 1e6, .above_min = 1, .help = "llama3: and above which none does" },
    { "model.rope_scaling.beta_fast", FIELD_FLOAT, AT(model.rope_scaling.beta_fast),
      .initial = "32.0", .max = 1e6, .above_min = 1,
      .help = "yarn: rotations over the original length above which frequencies stay" },
    { "model.rope_scaling.beta_slow", FIELD_FLOAT, AT(model.rope_scaling.beta_slow),
      .initial = "1.0", .max = 1e6, .above_min = 1,
      .help = "yarn: and below which they are divided by factor" },
    { "model.rope_scaling.attention_factor", FIELD_FLOAT, AT(model.rope_scaling.attention_factor),
      .initial = "auto", .word = "auto", .max = 1e6, .above_min = 1,
      .help = "yarn: factor of cosines and sines; auto: 0.1 ln(factor) + 1" },
    { "model.rope_scaling.truncate", FIELD_BOOL, AT(model.rope_scaling.truncate), .initial = "true",
      .help = "yarn: bounds are whole dimensions" },
    { "model.embedding_norm", FIELD_BOOL, AT(model.embedding_norm), .initial = "false",
      .help = "normalisation behind the embedding, too" },
    { "model.qk_norm", FIELD_BOOL, AT(model.qk_norm), .initial = "false",
      .help = "rmsnorm over each head of q and of k, before rope" },
    { "model.window", FIELD_INT, AT(model.window), .initial = "none", .word = "none", .min = 1,
      .max = N_MAX, .unit = "tokens",
      .help =
          "sliding window: a token sees so many, itself the last of them; none: all before it" },
    { "model.window_first_layer", FIELD_INT, AT(model.window_first_layer), .initial = "0",
      .max = 10000, .help = "layers before this one have no window" },
    { "model.window_period", FIELD_INT, AT(model.window_period), .initial = "none", .word = "none",
      .min = 2, .max = 10000,
      .help = "from there on every so many-th layer has no window; none: all have one" },
    { "model.normalized_head", FIELD_BOOL, AT(model.normalized_head), .initial = "false",
      .help = "logits are of the head's rows at length 1" },
    { "model.activation", FIELD_CHOICE, AT(model.activation), .initial = "swiglu",
      .choices = activations, .help = "of the feed-forward part; gelu is the tanh form" },
    { "model.bias", FIELD_BOOL, AT(model.bias), .initial = "false",
      .help = "biases on every linear but the head, and on layernorms" },
    { "model.attention_bias", FIELD_CHOICE, AT(model.attention_bias), .initial = "none",
      .choices = attention_biases,
      .help = "biases in attention where bias is false: on q, k and v, or on its output too" },
    { "model.tied_embeddings", FIELD_BOOL, AT(model.tied_embeddings), .initial = "false",
      .help = "the head uses the embedding's table" },
    { "model.dropout", FIELD_FLOAT, AT(model.dropout), .initial = "0.0", .max = 0.9,
      .help = "after the embedding and on both residual branches" },
    { "model.embedding_dropout", FIELD_BOOL, AT(model.embedding_dropout), .initial = "true",
      .help = "dropout behind the embedding, too" },
    { "model.attention_dropout", FIELD_FLOAT, AT(model.attention_dropout), .initial = "0.0",
      .max = 0.9, .help = "on attention probabilities" },
    { "model.init_std", FIELD_FLOAT, AT(model.init_std), .initial = "0.02", .max = 1,
      .above_min = 1,
      .help = "standard deviation of initial weights; residual projections divide it by "
              "sqrt(2 n_layers)" },

    { "data.train", FIELD_DATASETS, AT(data.train),
      .help =
          "prefix of a .bin/.idx pair, or a list of prefixes or of {path, weight}; for finetune "
          "and lora also files and folders of rows" },
    { "data.tokenizer", FIELD_TEXT, AT(data.tokenizer), .initial = "",
      .help = "folder with tokenizer.json; needed to generate samples and to export; where it has "
              "more tokens than the model, finetune grows embedding and head" },
    { "data.check_tokenizer", FIELD_BOOL, AT(data.check_tokenizer), .initial = "true",
      .help =
          "token files whose .json names another tokenizer than data.tokenizer, or than that of "
          "the others, are refused; false: a warning" },
    { "data.added_tokens", FIELD_TEXTS, AT(data.added_tokens), .initial = "none", .word = "none",
      .help =
          "tokens that finetune and lora add to the tokenizer, where it lacks them: each is one "
          "token wherever it stands; they are trained (lora: with all of embedding and head) "
          "and saved with the tokenizer" },
    { "data.seq_len", FIELD_INT, AT(data.seq_len), .initial = "auto", .word = "auto", .min = 1,
      .max = N_MAX, .unit = "tokens",
      .help = "length of a training sequence; auto: model.max_seq_len, at most 2048" },
    { "data.format", FIELD_WORD, AT(data.format), .initial = "auto", .choices = data_formats,
      .help = "what rows of finetuning data are: their columns say it if it is auto" },
    { "data.columns", FIELD_PAIRS, AT(data.columns), .initial = "none", .word = "none",
      .help = "what the files call a format's columns, as {instruction: question, output: answer}; "
              "user_tag, assistant_tag, system_tag, tool_tag, call_tag are roles" },
    { "data.template", FIELD_TEXT, AT(data.chat_template), .initial = "",
      .help = "chat template: a name (chatml, llama3, ...) or a file of Jinja; by default the one "
              "in data.tokenizer" },
    { "data.system", FIELD_TEXT, AT(data.system), .initial = "",
      .help = "system message of conversations that have none" },
    { "data.mask", FIELD_WORD, AT(data.mask), .initial = "prompt", .choices = data_masks,
      .help = "what is not learned: prompts, so that every answer is; all but the last answer "
              "(history); or nothing (none)" },
    { "data.too_long", FIELD_WORD, AT(data.too_long), .initial = "cut", .choices = data_too_longs,
      .help = "samples of more than seq_len tokens are cut, dropped, refused, or, if they are "
              "plain text, split" },
    { "data.bad_rows", FIELD_WORD, AT(data.bad_rows), .initial = "refuse", .choices = data_bad_rows,
      .help = "rows that are not what the format wants end the job, or are skipped and counted" },
    { "data.packing", FIELD_BOOL, AT(data.packing), .initial = "true",
      .help = "several samples share a sequence of seq_len, without attention across them; else "
              "each has one, padded" },
    { "data.lengths", FIELD_COUNTS, AT(data.lengths), .initial = "auto", .word = "auto", .min = 1,
      .max = N_MAX, .unit = "tokens",
      .help =
          "without packing: lengths below seq_len to which micro-batches of short samples are "
          "padded, ascending, in training and in evaluation; each is a program of its own; auto: "
          "an eighth, a fourth and half of seq_len" },

    { "train.steps", FIELD_I64, AT(train.steps), .initial = "auto", .word = "auto", .min = 1,
      .max = N_STEPS_MAX,
      .help =
          "updates of the parameters; auto: as many as train.epochs take, for finetune and lora "
          "alone" },
    { "train.epochs", FIELD_FLOAT, AT(train.epochs), .initial = "auto", .word = "auto", .max = 1e6,
      .above_min = 1,
      .help =
          "how often finetune and lora go over the data where train.steps is not given; auto: 3" },
    { "train.init", FIELD_TEXT, AT(train.init), .initial = "",
      .help = "folder whose weights a new run begins with: of Hugging Face, a checkpoint or a run; "
              "or random. finetune and lora take the model's folder if it is left out, pretrain "
              "requires it where that folder has weights" },
    { "train.global_batch", FIELD_INT, AT(train.global_batch), .initial = "auto", .word = "auto",
      .min = 1, .max = N_MAX, .unit = "sequences",
      .help = "sequences a step over all ranks; a multiple of micro_batch * dp; auto: 64, of "
              "finetune and lora 16" },
    { "train.micro_batch", FIELD_INT, AT(train.micro_batch), .initial = "auto", .word = "auto",
      .min = 1, .max = N_MAX, .unit = "sequences",
      .help = "sequences a rank computes at a time; auto: the largest of 4, 2, 1 that divides "
              "global_batch, or the largest of parallel.micro_batches, from which it may not "
              "differ" },
    { "train.dtype", FIELD_CHOICE, AT(train.dtype), .initial = "bf16", .choices = act_dtypes,
      .synonyms = torch_dtypes,
      .help = "of weights and activations; masters are fp32, and optimizer.states says of what the "
              "others are; fp16 has a dynamic loss scale; float32, bfloat16 and float16 mean the "
              "same" },
    { "train.loss_scale.initial", FIELD_INT, AT(train.loss_scale.initial), .initial = "65536",
      .min = 1, .max = SCALE_MAX,
      .help = "of fp16: the factor of the loss that a run begins with, a power of two, so that "
              "small gradients do not vanish; halved, and the step skipped, where gradients "
              "overflow" },
    { "train.loss_scale.growth_every", FIELD_INT, AT(train.loss_scale.growth_every),
      .initial = "2000", .max = N_MAX, .unit = "steps",
      .help = "of fp16: steps in a row without overflow after which the loss scale doubles; 0: "
              "never" },
    { "train.loss_scale.min", FIELD_INT, AT(train.loss_scale.min), .initial = "1", .min = 1,
      .max = SCALE_MAX,
      .help = "of fp16: the loss scale is not halved below it; overflows there count for "
              "train.max_skipped" },
    { "train.loss_scale.max", FIELD_INT, AT(train.loss_scale.max), .initial = "16777216", .min = 1,
      .max = SCALE_MAX, .help = "of fp16: the loss scale does not grow beyond it" },
    { "train.gradient_dtype", FIELD_CHOICE, AT(train.gradient_dtype), .initial = "fp32",
      .choices = dtypes, .synonyms = torch_dtypes,
      .help = "of accumulators of matrices' gradients, and of their sums over ranks; bf16: each "
              "micro-batch is added in fp32 and rounded. Vectors' are fp32" },
    { "train.residual", FIELD_CHOICE, AT(train.residual), .initial = "fp32", .choices = dtypes,
      .synonyms = torch_dtypes,
      .help = "of the residual stream, which the layers add to, and of its gradient; bf16, with "
              "train.dtype bf16: each sum is computed in fp32 and rounded to nearest. Halves "
              "what pipeline stages send each other and what recompute keeps of a layer. A "
              "property of the run, not of the model: generate and eval keep it in fp32" },
    { "train.seed", FIELD_U64, AT(train.seed), .initial = "1", .max = 9223372036854775807.0,
      .help = "of initial weights, data order and dropout" },
    { "train.log_every", FIELD_INT, AT(train.log_every), .initial = "10", .min = 1, .max = N_MAX,
      .unit = "steps", .help = "how often a line of metrics is written" },
    { "train.max_skipped", FIELD_INT, AT(train.max_skipped), .initial = "10", .max = N_MAX,
      .unit = "steps",
      .help = "non-finite steps in a row that are skipped before the job fails; those of fp16 "
              "that a lower loss scale may mend do not count" },
    { "train.hang_seconds", FIELD_FLOAT, AT(train.hang_seconds), .initial = "30.0", .max = 1e9,
      .above_min = 1, .unit = "seconds",
      .help = "a rank without progress for so long is reported" },
    { "train.hang_abort_seconds", FIELD_FLOAT, AT(train.hang_abort_seconds), .initial = "300.0",
      .max = 1e9, .unit = "seconds", .help = "and for so long ends the job; 0: never" },
    { "train.compare_every", FIELD_INT, AT(train.compare_every), .initial = "100", .max = N_MAX,
      .unit = "steps",
      .help = "how often data-parallel replicas compare hashes of their parameters, to find silent "
              "corruption; 0: never" },

    { "train.only", FIELD_TEXTS, AT(train.only), .initial = "all", .word = "all",
      .help = "patterns of the parameters that are trained, such as layers.11.*; others stay as "
              "they are, without gradients and optimizer states" },
    { "train.freeze", FIELD_TEXTS, AT(train.freeze), .initial = "none", .word = "none",
      .help = "patterns of parameters that stay as they are, such as embedding.*" },

    { "lora.rank", FIELD_INT, AT(lora.rank), .initial = "0", .max = 65536,
      .help = "rank of the low-rank adapters that are trained in place of the model; 0: none, of "
              "lora 8" },
    { "lora.alpha", FIELD_FLOAT, AT(lora.alpha), .initial = "auto", .word = "auto", .max = 1e9,
      .above_min = 1, .help = "adapters' products count alpha / rank times; auto: twice the rank" },
    { "lora.dropout", FIELD_FLOAT, AT(lora.dropout), .initial = "0.0", .max = 0.9,
      .help = "on what adapters read" },
    { "lora.rslora", FIELD_BOOL, AT(lora.rslora), .initial = "false",
      .help = "alpha / sqrt(rank) in place of alpha / rank" },
    { "lora.bias", FIELD_CHOICE, AT(lora.bias), .initial = "none", .choices = lora_biases,
      .help = "biases that are trained too: of the adapted modules, or all" },
    { "lora.targets", FIELD_TEXTS, AT(lora.targets), .initial = "all", .word = "",
      .help = "modules with adapters, such as [q_proj, v_proj], or all: every matrix of every "
              "layer" },
    { "lora.modules_to_save", FIELD_TEXTS, AT(lora.modules_to_save), .initial = "none",
      .word = "none",
      .help = "modules that are trained whole besides, such as [embed_tokens, lm_head, norm]" },

    { "eval.every_steps", FIELD_I64, AT(eval.every_steps), .initial = "0", .max = N_STEPS_MAX,
      .unit = "steps", .help = "how often held-out loss is measured; 0: only at the end" },
    { "eval.data", FIELD_TEXT, AT(eval.data), .initial = "",
      .help = "prefix of a held-out .bin/.idx pair; not together with split" },
    { "eval.split", FIELD_FLOAT, AT(eval.split), .initial = "0.0", .max = 0.5,
      .help = "share of the training samples that is held out; 0: none" },
    { "eval.batches", FIELD_INT, AT(eval.batches), .initial = "0", .max = N_MAX,
      .unit = "global batches", .help = "at most so many an evaluation; 0: all" },
    { "eval.early_stop.patience", FIELD_INT, AT(eval.patience), .initial = "0", .max = N_MAX,
      .unit = "evaluations",
      .help = "evaluations without a better loss after which training stops; 0: never" },

    { "optimizer.name", FIELD_WORD, AT(optimizer.name), .initial = "adamw", .choices = optimizers,
      .help = "AdamW with decoupled decay; vectors are not decayed" },
    { "optimizer.lr", FIELD_FLOAT, AT(optimizer.lr), .initial = "auto", .word = "auto", .max = 100,
      .above_min = 1,
      .help = "learning rate after warm-up; auto: 3e-4, of finetune 1e-5, of lora 2e-4" },
    { "optimizer.min_lr", FIELD_FLOAT, AT(optimizer.min_lr), .initial = "auto", .word = "auto",
      .word_value = -1, .max = 100, .help = "learning rate at the last step; auto: a tenth of lr" },
    { "optimizer.schedule", FIELD_CHOICE, AT(optimizer.schedule), .initial = "cosine",
      .choices = lr_schedules,
      .help = "from lr to min_lr; wsd holds lr and falls linearly in the last decay_steps" },
    { "optimizer.warmup_steps", FIELD_I64, AT(optimizer.warmup_steps), .initial = "auto",
      .word = "auto", .word_value = -1, .max = N_STEPS_MAX, .unit = "steps",
      .help = "linear rise to lr; auto: a fiftieth of train.steps, at most 2000" },
    { "optimizer.decay_steps", FIELD_I64, AT(optimizer.decay_steps), .initial = "auto",
      .word = "auto", .min = 1, .max = N_STEPS_MAX, .unit = "steps",
      .help = "length of wsd's last part; auto: a fifth of train.steps" },
    { "optimizer.beta1", FIELD_FLOAT, AT(optimizer.beta1), .initial = "0.9", .max = 0.9999999,
      .help = "decay of the first moment" },
    { "optimizer.beta2", FIELD_FLOAT, AT(optimizer.beta2), .initial = "0.95", .max = 0.9999999,
      .help = "decay of the second moment" },
    { "optimizer.eps", FIELD_FLOAT, AT(optimizer.eps), .initial = "1.0e-8", .max = 1,
      .above_min = 1, .help = "added to the root of the second moment" },
    { "optimizer.weight_decay", FIELD_FLOAT, AT(optimizer.weight_decay), .initial = "0.1",
      .max = 100, .help = "decoupled, times the learning rate" },
    { "optimizer.clip", FIELD_FLOAT, AT(optimizer.clip), .initial = "1.0", .max = 1e9,
      .help = "largest global gradient norm; 0: no clipping" },
    { "optimizer.states", FIELD_CHOICE, AT(optimizer.states), .initial = "fp32", .choices = dtypes,
      .synonyms = torch_dtypes,
      .help = "of the optimizer's moments; with bf16 they are rounded stochastically, and so are "
              "weights of bf16, of which no fp32 masters are kept then: 6 bytes a parameter, not "
              "14" },

    { "ranks", FIELD_INT, AT(ranks), .initial = "auto", .word = "auto", .min = 1, .max = 1000000,
      .help = "processes; auto: one per GPU, or one on a machine without" },
    { "device", FIELD_CHOICE, AT(device), .initial = "auto", .choices = devices,
      .help = "where ranks compute; auto: on this machine's GPUs, or without them on its "
              "processor" },
    { "threads", FIELD_INT, AT(threads), .initial = "auto", .word = "auto", .min = 1, .max = 4096,
      .help = "threads of each rank; auto: its share of the cores" },

    { "restarts", FIELD_INT, AT(restarts), .initial = "0", .max = 1000000,
      .help = "how often the job is started again, from its newest checkpoint, after a rank or a "
              "node has died" },

    { "parallel.tp", FIELD_INT, AT(parallel.tp), .initial = "1", .min = 1, .max = 65536,
      .help = "tensor parallel degree" },
    { "parallel.pp", FIELD_INT, AT(parallel.pp), .initial = "1", .min = 1, .max = 65536,
      .help = "pipeline parallel degree" },
    { "parallel.dp", FIELD_INT, AT(parallel.dp), .initial = "auto", .word = "auto", .min = 1,
      .max = 1000000, .given_offset = AT(parallel.dp_given),
      .help = "data parallel degree; auto: ranks / (tp * pp * cp)" },
    { "parallel.cp", FIELD_INT, AT(parallel.cp), .initial = "1", .min = 1, .max = 65536,
      .built_max = 1, .help = "context parallel degree" },
    { "parallel.ep", FIELD_INT, AT(parallel.ep), .initial = "1", .min = 1, .max = 65536,
      .built_max = 1, .help = "expert parallel degree; divides dp * cp" },
    { "parallel.zero", FIELD_INT, AT(parallel.zero), .initial = "0", .max = 3,
      .help = "what is sharded over dp: 1 optimizer states, 2 and gradients, 3 and parameters" },
    { "parallel.zero_group", FIELD_INT, AT(parallel.zero_group), .initial = "0", .max = 1000000,
      .unit = "ranks",
      .help = "neighbours of dp that shard among themselves, while the groups are copies of each "
              "other (hybrid sharding); divides dp; 0: all of dp" },
    { "parallel.hold", FIELD_CHOICE, AT(parallel.hold), .initial = "pass", .choices = holds,
      .help = "how long gathered weights are kept under zero 3: for one op, one pass of a "
              "micro-batch, a run of micro-batches of one chunk, or the step" },
    { "parallel.schedule", FIELD_CHOICE, AT(parallel.schedule), .initial = "1f1b",
      .choices = schedules,
      .help = "order of micro-batches in a pipeline; dynamic: interleaved, with their sizes from "
              "micro_batches" },
    { "parallel.chunks", FIELD_INT, AT(parallel.chunks), .initial = "auto", .word = "auto",
      .min = 1, .max = PIPELINE_CHUNKS_MAX, .given_offset = AT(parallel.chunks_given),
      .help = "pieces of the model that each pipeline rank holds; auto: 2 for interleaved, "
              "dynamic, breadth-first and zb-v, else 1" },
    { "parallel.micro_batches", FIELD_COUNTS, AT(parallel.micro_batches), .initial = "none",
      .word = "none", .min = 1, .max = 1000000, .unit = "sequences",
      .help =
          "for schedule dynamic: sizes of a rank's micro-batches in the order in which they are "
          "run, as [1, 2, 4, 4, 2, 1]: small ones at both ends shorten the ramps of the "
          "pipeline; their sum is global_batch / dp; changes the numerics" },
    { "parallel.stages", FIELD_COUNTS, AT(parallel.stages), .initial = "auto", .word = "auto",
      .min = 1, .max = 100000,
      .help = "layers of each pipeline stage, as [5, 6, 6, 5]; auto: by cost, embedding and head "
              "counted" },
    { "parallel.sequence_parallel", FIELD_BOOL, AT(parallel.sequence_parallel), .initial = "true",
      .help = "with tp, norms and residuals are split along tokens" },
    { "parallel.gradient_sum", FIELD_CHOICE, AT(parallel.gradient_sum), .initial = "auto",
      .choices = sums, .given_offset = AT(parallel.gradient_sum_given),
      .help = "late: micro-batches first, then ranks; early: ranks first; auto: late for zero 0 "
              "and 1, early for 2 and 3" },
    { "parallel.reductions", FIELD_CHOICE, AT(parallel.reductions), .initial = "fixed",
      .choices = reductions,
      .help = "fixed: gradients and activations are summed over ranks in one order, the same bits "
              "each time; fast: by NCCL, where all ranks have a GPU to themselves (elsewhere "
              "fixed): less traffic and memory, and bits that depend on NCCL, its choices, the "
              "layout and the network; changes the numerics" },
    { "parallel.bucket_mb", FIELD_INT, AT(parallel.bucket_mb), .initial = "32", .min = 1,
      .max = 65536, .unit = "MiB", .help = "gradients that are reduced together" },

    { "recompute", FIELD_KINDS, AT(recompute), .initial = "none", .choices = recomputes,
      .not_built = "auto", .list_items = list_forward_ops, .items_offset = AT(recompute_ops),
      .word_value = RECOMPUTE_LIST,
      .help = "activations that are computed again in the backward instead of kept; selective: of "
              "norms, activations, dropout and casts; full: all but the layers' inputs; a list: "
              "of these ops" },

    { "checkpoint.every_steps", FIELD_I64, AT(checkpoint.every_steps), .initial = "0",
      .max = N_STEPS_MAX, .unit = "steps", .help = "how often; 0: only at the end" },
    { "checkpoint.keep", FIELD_INT, AT(checkpoint.keep), .initial = "3", .max = N_MAX,
      .help = "newest checkpoints that are kept; 0: all" },

    { "output", FIELD_TEXT, AT(output), .initial = "",
      .help = "run folder; by default runs/ and the job file's name" },
    { "output_mode", FIELD_CHOICE, AT(output_mode), .initial = "private", .choices = output_modes,
      .help = "who may read the run folder: its owner alone, the group too, or everybody" },

    { "kind", FIELD_CHOICE, AT(kind), .initial = "pretrain", .choices = kinds,
      .help =
          "what the job is; pretrain, finetune and lora say it themselves, plan and config read it "
          "here, or else see it by lora or by what only finetuning has, such as train.epochs" },

    { "debug.poison", FIELD_BOOL, AT(poison), .initial = "false",
      .help = "values become NaN when they are no longer needed, to find reads of dead memory" },
};

const int n_job_fields = (int)(sizeof job_fields / sizeof *job_fields);

const struct field *field_find(const char *key)
{
    for (int i = 0; i < n_job_fields; i++)
        if (!strcmp(job_fields[i].key, key))
            return &job_fields[i];
    return NULL;
}

int field_is_group(const char *group)
{
    size_t length = strlen(group);

    for (int i = 0; i < n_job_fields; i++)
        if (!strncmp(job_fields[i].key, group, length) && job_fields[i].key[length] == '.')
            return 1;
    return 0;
}
