/*
 * fields.c - every field of a job, once
 */
#include "config/fields_impl.h"

#include <string.h>

#include "base/dtype_choices.h"
#include "ops/newton_schulz_choices.h"
#include "ops/op_info.h"
#include "ops/optimizers.h"

#define AT(member) offsetof(struct job, member)
#define N_MAX 1000000000.0
#define N_STEPS_MAX 1e15
#define SCALE_MAX 1073741824.0 /* 2^30 */

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

/* Fold3D is breadth-first with late sums of gradients, which derive.c sees to. */
static const struct choice schedule_synonyms[] = { { SCHEDULE_FOLD3D, PIPELINE_BREADTH_FIRST },
                                                   { 0 } };

static const struct choice schedules_choices[] = { { "auto", 0 }, { 0 } };

static int list_schedules(struct choice kinds[FIELD_ITEMS_MAX + 1])
{
    int n = 0;

    for (int kind = 0; kind < PIPELINE_DYNAMIC; kind++)
        kinds[n++] = (struct choice){ pipeline_name((enum pipeline_kind)kind), kind };
    kinds[n] = (struct choice){ 0 };
    return n;
}

static int list_offload_kinds(struct choice kinds[FIELD_ITEMS_MAX + 1])
{
    memcpy(kinds, offload_kind_choices, (N_OFFLOAD_KINDS + 1) * sizeof *kinds);
    return N_OFFLOAD_KINDS;
}

/* What a field is of the numerics: the rule at a resume, the place of its line (0: it is a part of
 * another's), and further members of struct field_numerics. */
#define NUMERICS(rule, place_of_line, ...) \
    .numerics = { .change = NUMERICS_##rule, .place = place_of_line, ##__VA_ARGS__ }

const struct field job_fields[] = {
#include "config/fields_model.inc"

    { "data.train", FIELD_DATASETS, AT(data.train), NUMERICS(RUN, 520),
      .help = "training data: prefix of a .bin/.idx pair (Megatron format), or a list of "
              "prefixes or of {path, weight} to blend; for finetune and lora also files and "
              "folders of rows, shuffled together if all weights are 1, else drawn by weight" },
    { "data.tokenizer", FIELD_TEXT, AT(data.tokenizer), .initial = "",
      .help = "folder with tokenizer.json; required to generate samples and to export; "
              "finetune grows embedding and output head if the tokenizer has more tokens than "
              "the model" },
    { "data.check_tokenizer", FIELD_BOOL, AT(data.check_tokenizer), .initial = "true",
      .help = "refuse token files that were made with another tokenizer than data.tokenizer, "
              "or with different tokenizers, by the .json file next to each; false: warn only" },
    { "data.added_tokens", FIELD_TEXTS, AT(data.added_tokens), .initial = "none", .word = "none",
      .help = "special tokens that finetune and lora add to the tokenizer if it lacks them; "
              "they are trained (lora: with the whole embedding and output head) and saved "
              "with the tokenizer" },
    { "data.seq_len", FIELD_INT, AT(data.seq_len), .initial = "auto", .word = "auto", .min = 1,
      .max = N_MAX, .unit = "tokens", NUMERICS(RUN, 540),
      .help = "training sequence length; auto: model.max_seq_len, at most 2048" },
    { "data.format", FIELD_CHOICE, AT(data.format), .initial = "auto",
      .choices = instruct_format_choices,
      .help = "format of finetuning rows; auto: detected from the column names" },
    { "data.columns", FIELD_PAIRS, AT(data.columns), .initial = "none", .word = "none",
      .help = "column names of the files for the fields of data.format, such as {instruction: "
              "question, output: answer}; user_tag, assistant_tag, system_tag, tool_tag, "
              "call_tag: names of the roles" },
    { "data.template", FIELD_TEXT, AT(data.chat_template), .initial = "",
      .help = "chat template: a name (chatml, llama3, ...) or a Jinja file; if left out, the "
              "template of data.tokenizer" },
    { "data.system", FIELD_TEXT, AT(data.system), .initial = "",
      .help = "system message of conversations that have none" },
    { "data.mask", FIELD_CHOICE, AT(data.mask), .initial = "prompt",
      .choices = instruct_mask_choices,
      .help = "tokens without loss; prompt: all but the assistant's answers; history: all but "
              "the last answer; none: no token is masked" },
    { "data.too_long", FIELD_CHOICE, AT(data.too_long), .initial = "cut",
      .choices = instruct_too_long_choices,
      .help = "what happens to samples of more than seq_len tokens; cut: truncate; drop: leave "
              "out and count; split: into several samples (plain text only); refuse: end the "
              "job with an error" },
    { "data.bad_rows", FIELD_CHOICE, AT(data.bad_rows), .initial = "refuse",
      .choices = instruct_bad_rows_choices,
      .help = "what happens to rows that do not fit the format; refuse: end the job with an "
              "error; skip: leave out and count" },
    { "data.packing", FIELD_BOOL, AT(data.packing), .initial = "true", NUMERICS(RUN, 0),
      .help = "pack several samples into one sequence of seq_len tokens, without attention "
              "between them; false: one padded sample per sequence" },
    { "data.lengths", FIELD_COUNTS, AT(data.lengths), .initial = "auto", .word = "auto", .min = 1,
      .max = N_MAX, .unit = "tokens", NUMERICS(RUN, 0),
      .help = "without packing: sequence lengths below seq_len to which micro-batches of short "
              "samples are padded, in ascending order, for training and evaluation; a program "
              "is compiled for each; auto: 1/8, 1/4 and 1/2 of seq_len" },

    { "train.steps", FIELD_I64, AT(train.steps), .initial = "auto", .word = "auto", .min = 1,
      .max = N_STEPS_MAX, NUMERICS(RECIPE, 780, .when = WHEN_DECAY, .or_zero = 1),
      .help = "optimizer steps; auto (finetune and lora only): as many as train.epochs need" },
    { "train.epochs", FIELD_FLOAT, AT(train.epochs), .initial = "auto", .word = "auto", .max = 1e6,
      .above_min = 1,
      .help = "passes over the finetuning data if train.steps is not given; auto: 3. --set of one "
              "of the two replaces the other" },
    { "train.init", FIELD_TEXT, AT(train.init), .initial = "",
      NUMERICS(RECIPE, 420, .when = WHEN_SET),
      .help = "folder from which a new run takes its initial weights: a Hugging Face folder, a "
              "checkpoint or a run folder; or random. If left out, finetune and lora take the "
              "model's folder; pretrain requires the key if that folder has weights" },
    { "train.global_batch", FIELD_INT, AT(train.global_batch), .initial = "auto", .word = "auto",
      .min = 1, .max = N_MAX, .unit = "sequences", NUMERICS(RUN, 550),
      .help = "sequences per optimizer step over all ranks; a multiple of micro_batch * dp; "
              "auto: 64 for pretrain, 16 for finetune and lora" },
    { "train.micro_batch", FIELD_INT, AT(train.micro_batch), .initial = "auto", .word = "auto",
      .min = 1, .max = N_MAX, .unit = "sequences", NUMERICS(LAYOUT, 560),
      .help =
          "sequences per micro-batch of a data-parallel rank; auto: the largest of 4, 2, 1 that "
          "divides global_batch; with parallel.micro_batches: their largest, and no other value "
          "is allowed" },
    { "train.dtype", FIELD_CHOICE, AT(train.dtype), .initial = "bf16",
      .choices = dtype_float_choices, .synonyms = dtype_torch_choices, NUMERICS(ARITHMETIC, 580),
      .help = "dtype of weights and activations; master weights are fp32 (but see "
              "optimizer.states); fp16 uses a dynamic loss scale; float32, bfloat16 and "
              "float16 are synonyms" },
    { "train.loss_scale.initial", FIELD_INT, AT(train.loss_scale.initial), .initial = "65536",
      .min = 1, .max = SCALE_MAX, NUMERICS(RECIPE, 610, .when = WHEN_FP16),
      .help = "with dtype fp16: initial loss scale, a power of two; after an overflow of "
              "gradients the step is skipped and the scale halved" },
    { "train.loss_scale.growth_every", FIELD_INT, AT(train.loss_scale.growth_every),
      .initial = "2000", .max = N_MAX, .unit = "steps", NUMERICS(RECIPE, 620, .when = WHEN_FP16),
      .help = "with dtype fp16: the loss scale doubles after this number of consecutive steps "
              "without overflow; 0: never" },
    { "train.loss_scale.min", FIELD_INT, AT(train.loss_scale.min), .initial = "1", .min = 1,
      .max = SCALE_MAX, NUMERICS(RECIPE, 630, .when = WHEN_FP16),
      .help = "with dtype fp16: smallest loss scale, a power of two; steps that overflow at it "
              "count for train.max_skipped" },
    { "train.loss_scale.max", FIELD_INT, AT(train.loss_scale.max), .initial = "16777216", .min = 1,
      .max = SCALE_MAX, NUMERICS(RECIPE, 640, .when = WHEN_FP16),
      .help = "with dtype fp16: largest loss scale, a power of two" },
    { "train.gradient_dtype", FIELD_CHOICE, AT(train.gradient_dtype), .initial = "fp32",
      .choices = dtype_wide_choices, .synonyms = dtype_torch_choices, NUMERICS(ARITHMETIC, 590),
      .help = "dtype of gradient accumulators of matrices and of their reduction over ranks; "
              "bf16: each micro-batch is added in fp32 and the sum rounded. Gradients of "
              "vectors (norms, biases) are always fp32" },
#include "config/fields_train_dtypes.inc"
    { "train.ema", FIELD_FLOAT, AT(train.ema), .initial = "0.0", .max = 0.9999999,
      NUMERICS(RECIPE, 607, .when = WHEN_SET),
      .help = "decay of an exponential moving average of the weights, such as 0.999: after each "
              "update average = decay * average + (1 - decay) * weights, in fp32 and 4 bytes a "
              "parameter, saved in checkpoints; lmtrain eval, generate and convert read it with "
              "--weights ema; training does not; 0: none" },
    { "train.z_loss", FIELD_FLOAT, AT(train.z_loss), .initial = "0.0", .max = 1,
      NUMERICS(RECIPE, 608, .when = WHEN_SET),
      .help = "coefficient of the z-loss of the head: this times the square of log(Z), the log of "
              "the sum of exponentials of a token's logits, is added to the loss that gradients "
              "are of, such as 1e-4; loss in metrics is without it; 0: none" },
    { "train.seed", FIELD_U64, AT(train.seed), .initial = "1", .max = 9223372036854775807.0,
      NUMERICS(RUN, 530), .help = "random seed of initial weights, data order and dropout" },
    { "train.log_every", FIELD_INT, AT(train.log_every), .initial = "10", .min = 1, .max = N_MAX,
      .unit = "steps", .help = "interval between logged steps (terminal and metrics.jsonl)" },
    { "train.max_skipped", FIELD_INT, AT(train.max_skipped), .initial = "10", .max = N_MAX,
      .unit = "steps",
      .help = "consecutive steps with non-finite gradients that are skipped before the job "
              "fails; fp16 overflows that lower the loss scale do not count" },
    { "train.hang_seconds", FIELD_FLOAT, AT(train.hang_seconds), .initial = "30.0", .max = 1e9,
      .above_min = 1, .unit = "seconds",
      .help = "a rank without progress for this time is reported as hanging" },
    { "train.hang_abort_seconds", FIELD_FLOAT, AT(train.hang_abort_seconds), .initial = "300.0",
      .max = 1e9, .unit = "seconds",
      .help = "a rank without progress for this time ends the job; 0: never" },
    { "train.compare_every", FIELD_INT, AT(train.compare_every), .initial = "100", .max = N_MAX,
      .unit = "steps",
      .help = "interval at which data-parallel replicas compare hashes of their parameters, to "
              "detect silent data corruption; 0: never" },
    { "train.on_spike", FIELD_CHOICE, AT(train.on_spike), .initial = "log",
      .choices = spike_choices,
      NUMERICS(RECIPE, 645, .when = WHEN_SET, .print = numerics_print_spikes),
      .help = "what is done about a step whose loss or gradient norm is a spike (spike_z): log "
              "reports it; skip does not update the parameters; rewind continues from a "
              "checkpoint before it, or where the run began, without the batches around it "
              "(spike_margin), and keeps an old checkpoint for this" },
    { "train.spike_z", FIELD_FLOAT, AT(train.spike_z), .initial = "8.0", .above_min = 1, .max = 1e9,
      NUMERICS(RECIPE, 0),
      .help = "z-score that makes a loss or gradient norm a spike: standard deviations above the "
              "mean of the steps before it (spike_window)" },
    { "train.spike_window", FIELD_INT, AT(train.spike_window), .initial = "100", .min = 2,
      .max = 10000, .unit = "steps", NUMERICS(RECIPE, 0),
      .help = "number of steps whose losses and gradient norms a spike is compared with; there is "
              "none before as many have been done" },
    { "train.spike_margin", FIELD_INT, AT(train.spike_margin), .initial = "10", .max = N_MAX,
      .unit = "steps", NUMERICS(RECIPE, 0),
      .help = "with on_spike rewind: number of steps before and after the spike whose batches are "
              "skipped as well" },
    { "train.spike_rewinds", FIELD_INT, AT(train.spike_rewinds), .initial = "3", .max = 64,
      .help = "with on_spike rewind: number of times a run goes back; one more fails it" },
    { "train.recheck_every", FIELD_INT, AT(train.recheck_every), .initial = "0", .max = N_MAX,
      .unit = "steps",
      .help = "interval at which each rank's first micro-batch is computed again by another "
              "data-parallel rank, and every op's result compared; 0: never" },
    { "train.straggler_ratio", FIELD_FLOAT, AT(train.straggler_ratio), .initial = "1.1",
      .max = 1000,
      .help = "a rank is reported as a straggler if its own time of a step, without waiting for "
              "other ranks, is more than this number of times that of its peers (ranks with equal "
              "work); above 1; 0: ranks are not compared" },
    { "train.straggler_seconds", FIELD_FLOAT, AT(train.straggler_seconds), .initial = "60.0",
      .max = 1e6, .unit = "seconds",
      .help = "a straggler is slow for 20 steps and for this time; on shared machines other "
              "processes make ranks slow for shorter times" },

    { "train.only", FIELD_TEXTS, AT(train.only), .initial = "all", .word = "all",
      NUMERICS(RECIPE, 430, .when = WHEN_SET),
      .help = "patterns of the parameters to train, such as layers.11.*; all others are frozen "
              "and have no gradients and optimizer states" },
    { "train.freeze", FIELD_TEXTS, AT(train.freeze), .initial = "none", .word = "none",
      NUMERICS(RECIPE, 440, .when = WHEN_SET),
      .help = "patterns of frozen parameters, such as embedding.*" },

    { "lora.rank", FIELD_INT, AT(lora.rank), .initial = "0", .max = 65536,
      NUMERICS(RECIPE, 450, .when = WHEN_ADAPTERS),
      .help = "rank r of the LoRA adapters, which are trained instead of the model; 0: no "
              "adapters (the command lora then uses 8)" },
    { "lora.alpha", FIELD_FLOAT, AT(lora.alpha), .initial = "auto", .word = "auto", .max = 1e9,
      .above_min = 1,
      NUMERICS(ARITHMETIC, 460, .when = WHEN_ADAPTERS, .print = numerics_print_alpha),
      .help = "LoRA scaling: the adapters' output is multiplied by alpha / rank; auto: 2 * rank" },
    { "lora.dropout", FIELD_FLOAT, AT(lora.dropout), .initial = "0.0", .max = 0.9,
      NUMERICS(RECIPE, 470, .when = WHEN_ADAPTERS),
      .help = "dropout probability on the adapters' input" },
    { "lora.rslora", FIELD_BOOL, AT(lora.rslora), .initial = "false",
      NUMERICS(ARITHMETIC, 480, .when = WHEN_ADAPTERS),
      .help = "rank-stabilised LoRA: scale by alpha / sqrt(rank) instead of alpha / rank" },
    { "lora.bias", FIELD_CHOICE, AT(lora.bias), .initial = "none", .choices = lora_bias_choices,
      NUMERICS(RECIPE, 490, .when = WHEN_ADAPTERS),
      .help = "biases to train besides the adapters; lora_only: those of the adapted modules; "
              "all: all biases of the model" },
    { "lora.targets", FIELD_TEXTS, AT(lora.targets), .initial = "all", .word = "",
      NUMERICS(RECIPE, 500, .when = WHEN_ADAPTERS),
      .help = "modules with adapters, such as [q_proj, v_proj]; all: every matrix of every "
              "layer but those of experts; experts, or experts.gate, experts.up, experts.down: "
              "those of each expert that tokens are routed to, without dropout" },
    { "lora.modules_to_save", FIELD_TEXTS, AT(lora.modules_to_save), .initial = "none",
      .word = "none", NUMERICS(RECIPE, 510, .when = WHEN_ADAPTERS),
      .help = "modules to train in full besides the adapters, such as [embed_tokens, lm_head, "
              "norm]" },

    { "eval.every_steps", FIELD_I64, AT(eval.every_steps), .initial = "0", .max = N_STEPS_MAX,
      .unit = "steps",
      .help = "interval between evaluations on held-out data; 0: only after the last step" },
    { "eval.data", FIELD_TEXT, AT(eval.data), .initial = "",
      .help = "prefix of a held-out .bin/.idx pair; not together with eval.split" },
    { "eval.sets", FIELD_PAIRS, AT(eval.sets), .initial = "none", .word = "none",
      .help = "named held-out sets, such as {kjv: data/kjv, code: data/code}, each like "
              "eval.data and beside it: their losses are apart, as eval_set in metrics.jsonl and "
              "eval/NAME/loss in TensorBoard" },
    { "eval.split", FIELD_FLOAT, AT(eval.split), .initial = "0.0", .max = 0.5, NUMERICS(RUN, 0),
      .help = "fraction of the training samples that is held out for evaluation; 0: none" },
    { "eval.batches", FIELD_INT, AT(eval.batches), .initial = "0", .max = N_MAX,
      .unit = "global batches", .help = "maximum size of one evaluation; 0: all held-out data" },
    { "eval.early_stop.patience", FIELD_INT, AT(eval.patience), .initial = "0", .max = N_MAX,
      .unit = "evaluations",
      .help = "training stops after this number of consecutive evaluations without a lower "
              "loss; 0: never" },

#include "config/fields_optimizer.inc"

    { "ranks", FIELD_INT, AT(ranks), .initial = "auto", .word = "auto", .min = 1, .max = 1000000,
      .help = "number of ranks (processes); auto: one per GPU, or 1 without GPUs; lmtrain plan: "
              "all devices of its "
              "cluster" },
    { "device", FIELD_CHOICE, AT(device), .initial = "auto", .choices = job_device_choices,
      .help = "device on which the ranks compute; auto: GPUs if this machine has any, else CPU" },
    { "threads", FIELD_INT, AT(threads), .initial = "auto", .word = "auto", .min = 1, .max = 4096,
      .help = "CPU threads per rank; auto: the cores of the node divided among its ranks" },

    { "restarts", FIELD_INT, AT(restarts), .initial = "0", .max = 1000000,
      .help = "number of automatic restarts from the newest checkpoint after a rank or node "
              "has failed" },

    { "preflight.mode", FIELD_CHOICE, AT(preflight.mode), .initial = "off",
      .choices = preflight_choices,
      .help = "check of hosts, devices and links before training, on all ranks: products with "
              "known bits, memory, disk and links (preflight: quick is short for it); quick: some "
              "seconds; full: up to a minute for each check, and most of the memory. With restarts "
              "an unfit host is excluded (OUTPUT/excluded_hosts); without, wrong bits end the job, "
              "and so does, with full, a slow host" },
    { "preflight.min_ratio", FIELD_FLOAT, AT(preflight.min_ratio), .initial = "0.85", .max = 1,
      .help = "a rank is slow whose product runs at less than this share of the median of its "
              "kind of device; or whose memory is copied at less than 0.7 of this share, or whose "
              "links reach less than half of it" },
    { "preflight.seconds", FIELD_FLOAT, AT(preflight.seconds), .initial = "auto", .word = "auto",
      .max = 3600, .above_min = 1, .unit = "seconds",
      .help = "duration of the product with known bits on each device; the other checks take at "
              "most as long, and with quick at most a second; auto: 2 for quick, 60 for full" },

    { "launch.spares", FIELD_INT, AT(launch.spares), .initial = "0", .max = 100000, .unit = "hosts",
      .help = "number of hosts of --hosts, or nodes of the Slurm allocation, that are kept idle; "
              "they replace excluded and lost hosts, in the order of the list" },
    { "launch.srun_args", FIELD_TEXTS, AT(launch.srun_args), .initial = "none", .word = "none",
      .help = "further options of the srun that lmtrain runs in a Slurm allocation, behind its own "
              "ones, as in --container-image=FILE; one that contradicts lmtrain's is refused" },

    { "cluster", FIELD_TEXT, AT(cluster), .initial = "",
      .help = "devices, nodes and links for which a layout is searched and times are predicted: a "
              "name of configs/clusters (man lmtrain-plan lists them), or a file" },

    { "parallel.mode", FIELD_CHOICE, AT(parallel.mode), .initial = "manual",
      .choices = parallel_mode_choices,
      .help = "who chooses the layout; manual: the keys below; auto: all of them are searched for "
              "the fastest layout that fits the cluster's memory (parallel: auto is short for "
              "it); semi: those that are not given; data: all but tp, pp and ep, which are 1; cp, "
              "cp_kind and ep are kept where they are given" },
    { "parallel.tp", FIELD_INT, AT(parallel.tp), .initial = "1", .min = 1, .max = 65536,
      NUMERICS(LAYOUT, 660), .help = "tensor parallel size" },
    { "parallel.pp", FIELD_INT, AT(parallel.pp), .initial = "1", .min = 1, .max = 65536,
      .help = "pipeline parallel size" },
    { "parallel.dp", FIELD_INT, AT(parallel.dp), .initial = "auto", .word = "auto", .min = 1,
      .max = 1000000, .given_offset = AT(parallel.dp_given), NUMERICS(LAYOUT, 650),
      .help = "data parallel size; auto: ranks / (tp * pp * cp)" },
    { "parallel.cp", FIELD_INT, AT(parallel.cp), .initial = "1", .min = 1, .max = 65536,
      NUMERICS(LAYOUT, 680),
      .help =
          "context parallel size: ranks among which each sequence is divided; sequence lengths "
          "must be a multiple of it, or of twice as many where keys are gathered or passed on" },
    { "parallel.cp_kind", FIELD_SIZES, AT(parallel.cp_kind), .initial = "auto",
      .choices = cp_kind_choices, .items_offset = AT(parallel.cp_sizes), .word = "ulysses",
      .word_value = CP_ULYSSES,
      NUMERICS(LAYOUT, 685, .when = WHEN_CP, .print = numerics_print_cp_kind),
      .help =
          "with cp above 1: how ranks attend to a whole sequence; ulysses: they exchange heads; "
          "gather: keys and values are gathered; ring: these go from rank to rank; fastseq: "
          "what queries, keys and values are computed from is gathered, for a part of the heads "
          "on each rank with its part of their matrix, and heads are exchanged back (tp * cp must "
          "divide the number of kv heads; not in a map); {ulysses: u, gather: q}, also with ring: "
          "heads among u neighbours, keys among "
          "q such groups, u * q is cp; auto: ulysses where tp * cp divides the number of kv "
          "heads, else gather; changes the numerics" },
    { "parallel.cp_slices", FIELD_INT, AT(parallel.cp_slices), .initial = "auto", .word = "auto",
      .min = 1, .max = 64,
      .help = "with cp_kind gather: slices of kv heads in which keys and values travel while "
              "attention computes what has arrived; must divide the kv heads of a rank; auto: 1; "
              "changes no bit" },
    { "parallel.overlap", FIELD_CHOICE, AT(parallel.overlap), .initial = "auto",
      .choices = overlap_choices,
      .help =
          "how collectives of layers are hidden, those over tp, the gathers of keys and values "
          "of cp_kind gather, and what goes to experts of other ranks and back (ep): none: under "
          "gradients of weights alone; slices: a layer's products are cut into slices of "
          "tokens, each of which travels while the next is computed, and those of experts into "
          "groups of a rank's experts (which have their rows at one time: more memory); "
          "halves: two slices of whole sequences, through attention as well (needs 2 sequences of "
          "each tensor-parallel rank in a "
          "micro-batch); auto: what takes least time by the prices of the key cluster, none "
          "without it; none as well with micro-batches of several sizes or lengths, and "
          "reductions: fast; where moe.stash_factor keeps rows in pages, experts' alone are "
          "cut; lmtrain plan prints each place; changes no bit on CPUs; on GPUs libraries' "
          "products of other shapes may have other bits, and the numerics differ" },
    { "parallel.overlap_slices", FIELD_INT, AT(parallel.overlap_slices), .initial = "auto",
      .word = "auto", .min = 1, .max = 16,
      .help =
          "with overlap slices: how many, at most as many as a rank has experts of these; auto: "
          "at each place as many as take least time" },
    { "parallel.ep", FIELD_INT, AT(parallel.ep), .initial = "1", .min = 1, .max = 65536,
      NUMERICS(LAYOUT, 690),
      .help = "expert parallel size: neighbouring data-parallel ranks that divide the experts of "
              "each MoE layer among themselves, and send each other the rows of tokens; a power of "
              "two that divides dp (and zero_group) and n_experts; above 1, samples that are not "
              "packed all have seq_len rows; changes the numerics, but not the loss of the first "
              "step" },
    { "parallel.zero", FIELD_INT, AT(parallel.zero), .initial = "0", .max = 3,
      .help = "ZeRO stage: what is sharded over data-parallel ranks; 0: nothing; 1: optimizer "
              "states; 2: and gradients; 3: and parameters" },
    { "parallel.zero_group", FIELD_INT, AT(parallel.zero_group), .initial = "0", .max = 1000000,
      .unit = "ranks",
      .help = "size of the groups of consecutive data-parallel ranks that shard among "
              "themselves; the groups are replicas of each other (hybrid sharding, HSDP); must "
              "divide dp; 0: one group of all" },
    { "parallel.hold", FIELD_CHOICE, AT(parallel.hold), .initial = "pass", .choices = hold_choices,
      .help = "for zero 3: how long gathered weights are kept before they are freed; op: for "
              "one op; pass: for one forward or backward of a micro-batch; run: for "
              "consecutive micro-batches of one chunk; step: for the whole step" },
    { "parallel.prefetch", FIELD_INT, AT(parallel.prefetch), .initial = "auto", .word = "auto",
      .word_value = -1, .max = 1024, .unit = "buckets",
      .help = "for zero 3 with hold pass: how many buckets ahead weights are gathered, at least "
              "one; so many that products of a forward or backward read first are gathered while "
              "the one before it runs, into memory of their own for the whole step; 0: none of "
              "these; auto: 2, 1 or 0, the most that fits, and 0 with memory.device_bytes or "
              "memory.offload. For zero 1, 2 and hold step: how many that products read first are "
              "gathered in the update before; auto: 1, or by cluster's prices. Changes no bit" },
    { "parallel.schedule", FIELD_CHOICE, AT(parallel.schedule), .initial = "1f1b",
      .choices = pipeline_choices, .synonyms = schedule_synonyms,
      .help = "pipeline schedule; dynamic: interleaved with micro-batches of the sizes in "
              "micro_batches; fold3d is another word for breadth-first with gradient_sum late" },
    { "parallel.chunks", FIELD_INT, AT(parallel.chunks), .initial = "auto", .word = "auto",
      .min = 1, .max = PIPELINE_CHUNKS_MAX, .given_offset = AT(parallel.chunks_given),
      .help = "model chunks per pipeline rank (virtual pipeline stages); auto: 2 for "
              "interleaved, dynamic, breadth-first and zb-v, else 1" },
    { "parallel.micro_batches", FIELD_COUNTS, AT(parallel.micro_batches), .initial = "none",
      .word = "none", .auto_offset = AT(parallel.micro_batches_auto), .min = 1, .max = 1000000,
      .unit = "sequences", NUMERICS(LAYOUT, 570, .when = WHEN_SIZES_DIFFER),
      .help = "for schedule dynamic: sizes of a rank's micro-batches in execution order, such "
              "as [1, 2, 4, 4, 2, 1]; small ones at both ends shorten the pipeline bubble; "
              "their sum must be global_batch / dp; auto: those with the least predicted time "
              "on the cluster, none above train.micro_batch if that is given; changes the "
              "numerics" },
    { "parallel.replica_micro_batches", FIELD_COUNTS, AT(parallel.replica_micro_batches),
      .initial = "none", .word = "none", .min = 1, .max = 1000000,
      NUMERICS(LAYOUT, 575, .when = WHEN_COUNTS_DIFFER),
      .help = "number of micro-batches of each data-parallel rank, such as [5, 3], where some are "
              "slower than others; they add up to global_batch / micro_batch; for zero 0 and 1 "
              "with gradient_sum late; changes the numerics" },
    { "parallel.stages", FIELD_COUNTS, AT(parallel.stages), .initial = "auto", .word = "auto",
      .min = 1, .max = 100000,
      .help = "number of layers in each pipeline stage, such as [5, 6, 6, 5]; auto: balanced "
              "by cost, embedding and output head included" },
    { "parallel.order", FIELD_CHOICE, AT(parallel.order), .initial = "tp-dp-pp",
      .choices = rank_order_choices,
      .help =
          "places of ranks on devices, the fastest axis first; reversed: the first devices have "
          "the last stage; tp-pp-dp: neighbours are a pipeline; changes no bit" },
    { "parallel.sequence_parallel", FIELD_BOOL, AT(parallel.sequence_parallel), .initial = "true",
      NUMERICS(LAYOUT, 670, .when = WHEN_TP, .or_zero = 1),
      .help = "with tp above 1: split norms and the residual stream along the sequence" },
    { "parallel.gradient_sum", FIELD_CHOICE, AT(parallel.gradient_sum), .initial = "auto",
      .choices = gradient_sum_choices, .given_offset = AT(parallel.gradient_sum_given),
      NUMERICS(LAYOUT, 700, .print = numerics_print_gradient_sum),
      .help = "order in which gradients are summed; late: accumulate over micro-batches, then "
              "reduce over ranks once per step; early: reduce each micro-batch over ranks, then "
              "accumulate; auto: early for zero 2 and 3 without compress, else late" },
    { "parallel.reductions", FIELD_CHOICE, AT(parallel.reductions), .initial = "fixed",
      .choices = reduction_choices, NUMERICS(LAYOUT, 710, .print = numerics_print_reductions),
      .help = "how gradients and activations are reduced over ranks; fixed: in one order, with "
              "the same bits each time; fast: by NCCL if each rank has a GPU of its own (else "
              "as fixed): less traffic and memory, but bits depend on the NCCL version and "
              "algorithm, the layout and the network; changes the numerics" },
    { "parallel.node_ranks", FIELD_INT, AT(parallel.node_ranks), .initial = "auto", .word = "auto",
      .min = 1, .max = 65536, .unit = "ranks",
      .help = "neighbouring ranks that sum gradients and activations, and gather weights, among "
              "each other before their sums go to other ranks, where they are a power of two and "
              "divide what is summed over: fewer bytes between nodes; auto: the ranks of a node; "
              "1: sums are of all ranks at once; changes no bit" },
    { "parallel.bucket_mb", FIELD_INT, AT(parallel.bucket_mb), .initial = "auto", .word = "auto",
      .min = 1, .max = 65536, .unit = "MiB",
      .help = "size of a gradient bucket: gradients that are reduced together; auto: a 64th of "
              "the model's, in fp32, from 1 to 32, so that most travel while the backward "
              "computes; changes no bit" },

#include "config/fields_compress.inc"
#include "config/fields_search.inc"

    { "searched.cluster", FIELD_TEXT, AT(searched.cluster), .initial = "",
      .help = "written by lmtrain: the cluster for which the layout was searched or predicted" },
    { "searched.predicted_ms", FIELD_FLOAT, AT(searched.predicted_ms), .initial = "0", .max = 1e12,
      .unit = "ms",
      .help = "written by lmtrain: the predicted time of a step, which pretrain compares with the "
              "measured one after 10 steps; 0: not known" },

    { "recompute", FIELD_KINDS, AT(recompute), .initial = "auto", .choices = recompute_choices,
      .list_items = list_forward_ops, .items_offset = AT(recompute_ops),
      .item = "an op of the forward", .word_value = RECOMPUTE_LIST,
      .help = "activation recomputation (checkpointing); auto: none where all fits the device's "
              "memory, else what makes room in the least time, chosen for each layer; selective: "
              "norms, activation functions, dropout and casts are recomputed in the backward; "
              "full: all but the inputs of the layers; a list: these ops" },
    { "recompute_layers.full", FIELD_COUNTS, AT(recompute_layers.full), .initial = "none",
      .word = "none", .min = 0, .max = 100000,
      .help = "number of layers of each pipeline stage that are recomputed in full, such as "
              "[4, 2, 0, 0]: its first ones; for the others recompute counts" },
    { "recompute_layers.selective", FIELD_COUNTS, AT(recompute_layers.selective), .initial = "none",
      .word = "none", .min = 0, .max = 100000,
      .help = "number of layers of each pipeline stage, after those recomputed in full, that are "
              "recomputed as by recompute selective" },

#include "config/fields_memory.inc"
#include "config/fields_moe.inc"

    { "checkpoint.every_steps", FIELD_I64, AT(checkpoint.every_steps), .initial = "0",
      .max = N_STEPS_MAX, .unit = "steps",
      .help = "interval between checkpoints; 0: only after the last step" },
    { "checkpoint.keep", FIELD_INT, AT(checkpoint.keep), .initial = "3", .max = N_MAX,
      .help = "number of newest checkpoints to keep; 0: all" },
    { "checkpoint.keep_best", FIELD_INT, AT(checkpoint.keep_best), .initial = "0", .max = 32,
      .help = "number of checkpoints to keep besides checkpoint.keep: those of the steps with the "
              "lowest checkpoint.metric; a checkpoint counts if its step was evaluated" },
    { "checkpoint.metric", FIELD_TEXT, AT(checkpoint.metric), .initial = "eval.loss",
      .help = "what checkpoint.keep_best goes by: eval.loss (of eval.data or eval.split; without "
              "either the mean over eval.sets), or eval.NAME.loss of one of eval.sets" },
    { "checkpoint.upload", FIELD_TEXT, AT(checkpoint.upload), .initial = "",
      .help =
          "shell command that rank 0 runs for each checkpoint, beside training, with its folder "
          "in LMTRAIN_CHECKPOINT and its step in LMTRAIN_STEP; tried up to 5 times, one at a "
          "time, newest first; its output is in the run folder's log/upload.log. All of its "
          "process group ends with rank 0. A run that goes back (train.on_spike: rewind) ends "
          "uploads of later steps, and uploads these steps again" },
    { "checkpoint.upload_seconds", FIELD_FLOAT, AT(checkpoint.upload_seconds), .initial = "3600.0",
      .max = 1e9, .above_min = 1, .unit = "seconds",
      .help = "time limit of a try of checkpoint.upload" },
    { "checkpoint.upload_wait_seconds", FIELD_FLOAT, AT(checkpoint.upload_wait), .initial = "600.0",
      .max = 1e9, .unit = "seconds",
      .help = "time that a run waits at its end for uploads that are left; one that is ended by a "
              "signal waits at most 5 seconds" },
    { "checkpoint.copy_mb", FIELD_INT, AT(checkpoint.copy_mb), .initial = "auto", .word = "auto",
      .word_value = -1, .max = 2147483647, .unit = "MiB",
      .help = "host memory that a rank may use to copy what a slow file system has not taken of a "
              "checkpoint when the next update is due, so that training goes on; auto: half of "
              "what is available, divided among the ranks of the node; 0: the update waits" },
    { "checkpoint.local", FIELD_TEXT, AT(checkpoint.local), .initial = "",
      .help = "folder on a disk of each node, an absolute path such as ${TMPDIR}, for local "
              "checkpoints, between those of the run folder: each rank writes all that it reads at "
              "a restart; they are removed at the end of the run" },
    { "checkpoint.local_every_steps", FIELD_I64, AT(checkpoint.local_every_steps), .initial = "0",
      .max = N_STEPS_MAX, .unit = "steps",
      .help = "interval between local checkpoints; where one of the run folder is due, that alone "
              "is written" },
    { "checkpoint.local_keep", FIELD_INT, AT(checkpoint.local_keep), .initial = "1", .min = 1,
      .max = N_MAX,
      .help =
          "number of newest local checkpoints to keep; one that is being written comes on top" },

    { "metrics.prometheus", FIELD_TEXT, AT(metrics.prometheus), .initial = "",
      .help = "file with the state of the run for Prometheus, in the format of node_exporter's "
              "textfile collector, which reads files that end in .prom; replaced every 5 "
              "seconds and at the end" },
    { "metrics.log_mb", FIELD_INT, AT(metrics.log_mb), .initial = "64", .min = 1, .max = 1048576,
      .unit = "MiB",
      .help =
          "size at which a file of the run folder's log/ is rotated; three older ones are kept" },

    { "tracking.mlflow", FIELD_TEXT, AT(tracking.mlflow), .initial = "",
      .help = "URL of an MLflow tracking server, such as http://localhost:5000, or a folder for "
              "`mlflow ui --backend-store-uri`: the job's fields become parameters, logged steps "
              "and evaluations metrics. Sent beside training, tried again while the server does "
              "not answer; login by MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD" },
    { "tracking.experiment", FIELD_TEXT, AT(tracking.experiment), .initial = "lmtrain",
      .help = "name of the experiment there; it is created if need be" },
    { "tracking.run_name", FIELD_TEXT, AT(tracking.run_name), .initial = "",
      .help = "name of the run there; if left out, that of the output folder" },
    { "hooks.on_step", FIELD_TEXT, AT(hooks.on_step), .initial = "",
      .help =
          "shell command that rank 0 runs beside training for each logged step, with the step's "
          "line of metrics.jsonl on standard input, and in it hook, run (the run folder) and "
          "left_out: while one runs, only the newest step waits, and left_out says how many came "
          "before it. Output is in the run folder's log/hooks.log; failures are a warning" },
    { "hooks.on_eval", FIELD_TEXT, AT(hooks.on_eval), .initial = "",
      .help = "the same for each evaluation of a held-out set" },
    { "hooks.on_save", FIELD_TEXT, AT(hooks.on_save), .initial = "",
      .help = "the same for each checkpoint that is whole, with step and checkpoint (its folder)" },
    { "hooks.on_end", FIELD_TEXT, AT(hooks.on_end), .initial = "",
      .help = "the same at the end of rank 0's process, with step, status (done, saved, failed), "
              "exit_status and text; a process that is killed runs none" },
    { "hooks.seconds", FIELD_FLOAT, AT(hooks.seconds), .initial = "60.0", .max = 1e6,
      .above_min = 1, .unit = "seconds",
      .help = "time limit of a hook's command, which is then ended with its process group; and how "
              "long a run that is done waits for those that are left (5 seconds after a signal or "
              "a failure)" },

    { "trace.steps", FIELD_COUNTS, AT(trace.steps), .initial = "none", .word = "none", .min = 1,
      .max = 1000000000,
      .help =
          "steps, such as [10, 11], of which each rank records when its ops began and ended, in "
          "the run folder's trace/ (lmtrain report --trace); on a GPU ops of these steps are "
          "issued one by one; not of steps before parallel.compress_start" },
    { "trace.ranks", FIELD_COUNTS, AT(trace.ranks), .initial = "all", .word = "all", .min = 0,
      .max = 1000000, .help = "the ranks that do, such as [0, 8]" },

#include "config/fields_sweep.inc"

    { "output", FIELD_TEXT, AT(output), .initial = "",
      .help = "run folder; if left out, runs/NAME with the name of the job file" },
    { "output_mode", FIELD_CHOICE, AT(output_mode), .initial = "private",
      .choices = output_mode_choices,
      .help = "who may read the run folder; private: the owner; group: the owner and the "
              "group; all: all users" },

    { "kind", FIELD_CHOICE, AT(kind), .initial = "pretrain", .choices = job_kind_choices,
      .help =
          "kind of the job, for the commands plan and config (pretrain, finetune and lora set it "
          "themselves); if left out, lora if a key lora.* is given, finetune if a key that only "
          "finetuning has is given, such as train.epochs" },

    { "debug.poison", FIELD_BOOL, AT(poison), .initial = "false",
      .help = "fill memory of values that are no longer needed with NaN, to detect reads after "
              "free" },
};

const int n_job_fields = (int)(sizeof job_fields / sizeof *job_fields);
