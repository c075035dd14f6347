/*
 * job.h - a job, read and checked
 *
 * One YAML file and --set overrides in, one struct out, every field with its value or its default.
 * The table of fields (fields.c) is the only place that knows a field's name, type, range, default,
 * unit and help; parsing, printing, the man page and the JSON Schema all come from it.
 * Derived values (dp, n_micro_batches) are filled by job_resolve once the number of ranks is known.
 */
#ifndef CONFIG_JOB_H
#define CONFIG_JOB_H

#include <stdint.h>

#include "base/arena.h"
#include "base/bitset.h"
#include "base/choice.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"
#include "config/model_spec.h"
#include "config/sweep_space.h"
#include "config/tuning.h"
#include "data/instruct/instruct_choices.h"
#include "layout/context.h"
#include "layout/mesh.h"
#include "layout/pipeline.h"
#include "ops/codec.h"
#include "ops/fp8_recipe.h"
#include "ops/keep_set.h"
#include "ops/newton_schulz.h"
#include "ops/optimizers.h"
#include "ops/update_groups.h"

enum job_kind { JOB_PRETRAIN, JOB_FINETUNE, JOB_LORA };
/* Of choices beyond an expert's capacity: the last tokens', or those of the least weights. */
enum moe_drop { MOE_DROP_POSITION, MOE_DROP_PROBABILITY };

enum recompute_mode {
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    RECOMPUTE_FULL,
    RECOMPUTE_AUTO,
    RECOMPUTE_LIST
};
struct cluster;

/* What may leave a device's memory: nothing, all kinds as needed, or the kinds of a list. */
enum offload_mode { OFFLOAD_NONE, OFFLOAD_AUTO, OFFLOAD_LIST };
enum offload_kind {
    OFFLOAD_ACTIVATIONS,
    OFFLOAD_OPTIMIZER,
    OFFLOAD_GRADIENTS,
    OFFLOAD_WEIGHTS,
    N_OFFLOAD_KINDS
};
/* Where the optimizer runs on states that are away. */
enum memory_update { UPDATE_AUTO, UPDATE_DEVICE, UPDATE_HOST };
/* How the ranks of a sequence's parts attend to all of it: they exchange heads, or gather keys and
 * values, or pass them on from rank to rank, or gather what queries, keys and values are computed
 * from. */
enum cp_kind { CP_AUTO, CP_ULYSSES, CP_GATHER, CP_RING, CP_FASTSEQ };
enum gradient_sum { GRADIENT_SUM_LATE, GRADIENT_SUM_EARLY };
enum { PREFETCH_MOST = 2 }; /* of parallel.prefetch auto: one may be much larger than the next */

enum parameter_hold { HOLD_OP, HOLD_PASS, HOLD_RUN, HOLD_STEP };
enum spike_action { SPIKE_LOGGED, SPIKE_SKIPPED, SPIKE_REWOUND };
enum reductions { REDUCTIONS_FIXED, REDUCTIONS_FAST };
/* Over how many tensor-parallel ranks each expert is divided. */
enum expert_tp { EXPERT_TP_ALL, EXPERT_TP_ONE };
/* What a search makes small: a step's time, or that times the devices in use. */
enum search_objective { OBJECTIVE_TIME, OBJECTIVE_DEVICE_TIME };
enum search_micro_batch { SEARCH_MICRO_BATCH_FIXED, SEARCH_MICRO_BATCH_AUTO };
/* Who chooses the layout: the job's keys alone; a search, all of it, or what is not given, or
 * without tensor and pipeline parallel (plan/search.h). */
enum parallel_mode { PARALLEL_MANUAL, PARALLEL_AUTO, PARALLEL_SEMI, PARALLEL_DATA };
enum { LR_TIMESCALE = 10000 }; /* of inverse_sqrt without warm-up, as in transformers */
enum lr_schedule_kind { LR_CONSTANT, LR_LINEAR, LR_COSINE, LR_WSD, LR_INVERSE_SQRT };
enum lr_decay_shape { LR_DECAY_LINEAR, LR_DECAY_COSINE, LR_DECAY_SQRT }; /* of wsd's last part */

struct job_dataset {
    const char *path; /* prefix of .bin/.idx */
    double weight;    /* > 0, not normalised */
};

/* Who may read a run folder: modes 0700, 0750, 0755 for folders, 0600, 0640, 0644 for files. */
enum output_mode { OUTPUT_PRIVATE, OUTPUT_GROUP, OUTPUT_ALL };

/* A list of whole numbers in the job's arena. */
/* Ranks that exchange heads, and keys and values; 0, 0: not given, all are of one kind. */
struct cp_sizes {
    int ulysses, keys;
};

struct job_counts {
    const int *values;
    int n;
};

/* How collectives of tensor parallelism are hidden. */
enum job_overlap { JOB_OVERLAP_AUTO, JOB_OVERLAP_NONE, JOB_OVERLAP_SLICES, JOB_OVERLAP_HALVES };

/* What is checked of the hosts before a run (train/preflight.h). */
enum job_preflight { PREFLIGHT_OFF, PREFLIGHT_QUICK, PREFLIGHT_FULL };

/* How fp32 masters are kept beside bf16 weights, and rounded to them. */
enum job_masters { MASTERS_WHOLE, MASTERS_SPLIT };
enum job_fp8_dw { FP8_DW_FP8, FP8_DW_BF16 };
enum job_fp8_gradients { FP8_GRADIENTS_E4M3, FP8_GRADIENTS_E5M2 };
enum job_fp8_experts { FP8_EXPERTS_BF16, FP8_EXPERTS_FP8 };
enum job_fp8_weights { FP8_WEIGHTS_STEP, FP8_WEIGHTS_PRODUCT };
enum job_weight_rounding { WEIGHT_ROUNDING_NEAREST_EVEN, WEIGHT_ROUNDING_HALF_AWAY };

/* How a sweep takes values of its parameters, which values of its metric are better, and which
 * trials it stops early (sweep/judge.h). */
enum sweep_search { SWEEP_RANDOM, SWEEP_GRID, SWEEP_LIST };
enum sweep_goal { SWEEP_MINIMIZE, SWEEP_MAXIMIZE };
enum sweep_stop { SWEEP_STOP_NONE, SWEEP_STOP_ASHA, SWEEP_STOP_MEDIAN };

enum job_device { JOB_DEVICE_AUTO, JOB_DEVICE_CPU, JOB_DEVICE_CUDA };

/* Names of the enums above. gradient_sum_choices has auto, too, whose value is the first's. */
extern const struct choice job_kind_choices[];
extern const struct choice recompute_choices[];
extern const struct choice offload_choices[];
extern const struct choice offload_kind_choices[];
extern const struct choice memory_update_choices[];
extern const struct choice cp_kind_choices[];
extern const struct choice overlap_choices[];
extern const struct choice gradient_sum_choices[];
extern const struct choice moe_drop_choices[];
extern const struct choice hold_choices[];
extern const struct choice rank_order_choices[];
extern const struct choice expert_tp_choices[];
extern const struct choice reduction_choices[];
extern const struct choice codec_choices[];
extern const struct choice fp8_choices[];
extern const struct choice fp8_dw_choices[];
extern const struct choice fp8_experts_choices[];
extern const struct choice fp8_gradients_choices[];
extern const struct choice fp8_weights_choices[];
extern const struct choice spike_choices[];
extern const struct choice parallel_mode_choices[];
extern const struct choice search_micro_batch_choices[];
extern const struct choice search_objective_choices[];
extern const struct choice lr_schedule_choices[];
extern const struct choice lr_decay_shape_choices[];
extern const struct choice output_mode_choices[];
extern const struct choice job_masters_choices[];
extern const struct choice job_weight_rounding_choices[];
extern const struct choice job_device_choices[];
extern const struct choice preflight_choices[];
extern const struct choice sweep_search_choices[];
extern const struct choice sweep_goal_choices[];
extern const struct choice sweep_stop_choices[];

/* What is said, once, of a model that untied_by is of. */
#define JOB_UNTIED \
    "config.json says that the embeddings are tied, but the weights have an lm_head.weight " \
    "that differs from them in value or type: the model is read as untied"

struct job {
    const char *source;        /* the job file's name, for messages */
    int kind_given;            /* the key kind is there, not inferred */
    const char *const *places; /* by field, in the table's order: "job.yaml:3:7", or NULL */
    enum job_kind kind;
    struct model_spec model;
    const char *untied_by; /* the HF folder whose weights untied it (config/hf_head.h), or NULL */

    struct {
        struct job_dataset *train;
        int n_train;
        const char *tokenizer; /* folder, or NULL */
        int check_tokenizer;   /* token files of another one are refused */
        int seq_len;
        /* Of finetuning. */
        enum instruct_format format;
        enum instruct_mask mask;
        enum instruct_too_long too_long;
        enum instruct_bad_rows bad_rows;
        const char *chat_template; /* a name or a file; NULL: the tokenizer's */
        const char *system;        /* message, or NULL */
        struct job_texts columns;  /* "FIELD=COLUMN" */
        struct job_texts added_tokens;
        int packing;
        struct job_counts lengths; /* without packing; none: by seq_len */
    } data;

    struct {
        int64_t steps;    /* 0: as many as epochs take, until job_set_steps */
        double epochs;    /* over instruction data; 0: by steps */
        const char *init; /* where the first weights come from, or NULL: random */
        /* pretrain: a folder with weights is the model, and whether to begin with them is not said:
         * a new run must not be random unnoticed. Else NULL. */
        const char *unsaid_init;
        int global_batch; /* sequences a step, over all ranks */
        int micro_batch;  /* sequences; the largest of parallel.micro_batches; 0: until those are
                             chosen */
        enum dtype dtype; /* of activations and weights: DTYPE_F32, DTYPE_BF16 or F16 */
        struct {
            int initial, min, max; /* powers of two, min <= initial <= max */
            int growth_every;      /* clean steps before it doubles; 0: it never grows */
        } loss_scale;              /* of fp16 */
        enum dtype residual;       /* of the residual stream and its gradient: F32, or BF16 */
        enum fp8_recipe fp8;       /* of operands of layers' products */
        int fp8_edge_layers;       /* first ones, and last ones, that have none */
        enum job_fp8_dw fp8_dw;    /* what weights' gradients are products of */
        enum job_fp8_gradients fp8_gradients; /* what gradients of outputs are rounded to */
        enum job_fp8_experts fp8_experts;     /* what experts' are products of */
        enum job_fp8_weights fp8_weights;     /* what rounds them */
        enum dtype gradient_dtype; /* of matrices' accumulators: DTYPE_F32 or DTYPE_BF16 */
        double ema;                /* decay of the moving average of weights; 0: none */
        double z_loss;             /* coefficient of log(Z)^2 of the head; 0: none */
        uint64_t seed;
        int log_every;              /* steps */
        int max_skipped;            /* non-finite steps in a row before giving up */
        double hang_seconds;        /* a rank without progress for so long is reported */
        double hang_abort_seconds;  /* and for so long ends the job; 0 never */
        int compare_every;          /* steps between comparisons of replicas; 0 never */
        enum spike_action on_spike; /* what is done about a spike (train/spike.h): */
        double spike_z;             /* a value so many standard deviations above the mean */
        int spike_window;           /* of so many steps */
        int spike_margin;           /* rewind: batches before and after it that are skipped, too */
        int spike_rewinds;          /* rewind: more end the job */
        int recheck_every;          /* steps between recomputations by other ranks; 0 never */
        double straggler_ratio;     /* > 1: of a step's time to that of peers; 0: not compared */
        double straggler_seconds;   /* a straggler is slow for 20 steps and for so long */
        struct job_texts only, freeze; /* patterns of parameters; none: all, nothing */
    } train;

    struct {
        int rank;     /* 0: no adapters */
        double alpha; /* 0: twice the rank */
        double dropout;
        int rslora;
        enum lora_bias bias;
        struct job_texts targets, modules_to_save;
    } lora;

    struct {
        int64_t every_steps;   /* 0: only at the end if there is data for it */
        const char *data;      /* prefix, or NULL */
        double split;          /* share of train's samples held out; 0 none */
        int batches;           /* global batches at most; 0 all */
        int patience;          /* early_stop.patience: evaluations without a better loss; 0 off */
        struct job_texts sets; /* "NAME=PREFIX": further held-out data */
    } eval;

    struct {
        enum optimizer_rule name;
        double lr, min_lr;
        enum lr_schedule_kind schedule;
        int64_t warmup_steps, decay_steps; /* decay_steps: wsd's last part; 0: a fifth of steps */
        double beta1, beta2, momentum, eps, weight_decay; /* < 0: the optimizer has none */
        int nesterov;
        enum newton_schulz muon_coefficients;
        int muon_steps; /* 0: as many as the coefficients want */
        enum muon_scale muon_scale;
        int muon_nesterov;
        enum lr_decay_shape decay_shape;
        int cycles;        /* of linear and cosine */
        int64_t timescale; /* of inverse_sqrt; 0: warmup_steps, or LR_TIMESCALE without */
        struct update_groups groups;
        double clip;       /* of the global gradient norm; 0 off */
        enum dtype states; /* moments', and with DTYPE_BF16 no fp32 masters; int8: DTYPE_U8 */
        enum job_masters masters;
        enum job_weight_rounding weight_rounding;
    } optimizer;

    int ranks;    /* 0 auto */
    int restarts; /* after a death */
    enum job_device device;
    int threads; /* of each rank; 0 auto: its share of the cores */

    struct {
        enum job_preflight mode;
        double min_ratio; /* of the median, below which a device or link is slow */
        double seconds;   /* of the product; 0 auto: by mode */
    } preflight;

    struct {
        int spares;                 /* hosts kept idle, to replace others at a restart */
        struct job_texts srun_args; /* further arguments of the srun that starts ranks */
    } launch;

    const char *cluster; /* a name of configs/clusters or a file; NULL: none */

    struct {
        enum parallel_mode mode;
        int tp, pp, dp, cp, ep; /* dp 0: auto, until job_resolve */
        enum cp_kind cp_kind;   /* CP_AUTO until job_resolve */
        struct cp_sizes cp_sizes;
        int cp_slices; /* of what attention waits for; 0: auto */
        enum job_overlap overlap;
        int overlap_slices; /* 0: auto */
        int dp_given;       /* else by the number of ranks */
        int zero;
        int zero_group;           /* dp ranks that shard together; 0: all */
        enum parameter_hold hold; /* of parameters that zero 3 has gathered */
        int prefetch;             /* buckets that are gathered ahead of their function, or step;
                                     -1: auto */
        enum gradient_sum gradient_sum;
        int gradient_sum_given; /* else job_gradient_sum */
        enum reductions reductions;
        enum codec compress;   /* of gradients over data-parallel ranks */
        double compress_ratio; /* of top-k */
        int compress_ratio_given;
        int compress_rank;           /* of powersgd; 0: 8 */
        int compress_start;          /* updates before it; -1: by the codec (job_codec) */
        double compress_activations; /* of tokens, in full over tp; 0: all are */
        int compress_bits;           /* of the other tokens' elements */
        enum pipeline_kind schedule;
        int chunks, chunks_given;        /* of a pipeline rank; else by the schedule: 2 or 1 */
        struct job_counts stages;        /* layers of each stage; none: cut by cost */
        enum rank_order order;           /* of world ranks on the mesh */
        struct job_counts micro_batches; /* dynamic: sequences of each, in order; else none */
        int micro_batches_auto;          /* they are to be chosen (plan/micro_batch_choice.h) */
        struct job_counts replica_micro_batches; /* of each dp rank; none: all alike */
        int sequence_parallel;
        int node_ranks; /* that sum among each other first; 0 auto: job_node_ranks */
        int bucket_mb;  /* MiB of gradients that are reduced together */
    } parallel;

    struct {
        double memory_share; /* of a device's memory */
        int max_tp;          /* 0: the devices that the fast link joins */
        enum search_micro_batch micro_batch;
        enum search_objective objective;
        int keep_numerics;       /* a search for a run that exists finds layouts of the same bits */
        int listed;              /* schedules are; else auto */
        struct bitset schedules; /* enum pipeline_kind of each */
        double within;           /* layouts are equal whose times differ by this share */
        int allow_idle;          /* layouts of fewer ranks are searched, too */
    } search;

    /* What a search, or a prediction, said of this layout; kept in the run's job.yaml. */
    struct {
        const char *cluster; /* it was made for; NULL: none was made */
        double predicted_ms; /* a step; 0: not known */
    } searched;

    enum recompute_mode recompute;
    struct bitset recompute_ops; /* RECOMPUTE_LIST: enum op_kind of each */
    struct {
        struct job_counts full, selective; /* layers of each stage; none: recompute alone counts */
    } recompute_layers;
    /* Of the model's layers, where they were chosen (plan): they count, and not the above. */
    struct layer_keep_sets keep_sets;
    /* And what of each pipeline rank is away: [pp]; NULL: nothing. */
    const struct rank_offload *offload;
    /* By whose rates copies and recomputation are timed, where it is known (plan); NULL:
     * memory_cluster's (plan/memory_fit.h). */
    const struct cluster *rates;

    struct {
        int64_t device_bytes, host_bytes; /* of a rank; 0: auto */
        const char *file;                 /* folder of a file of each rank, absolute; NULL: none */
        enum offload_mode offload;
        struct bitset offload_kinds; /* OFFLOAD_LIST: enum offload_kind of each */
        enum memory_update update;
        double link_rate, file_rate; /* bytes/s each way, of a rank; 0: auto */
        int recompute_early;         /* layers of a stage; -1: auto */
        bool recompute_early_chosen; /* it was auto (plan/early_layers.h) */
    } memory;

    struct {
        double capacity_factor; /* 0: no choice of a token is dropped */
        enum moe_drop drop;
        double stash_factor; /* memory for rows of experts, relative to balanced ones; 0: for all */
        enum expert_tp expert_tp;
    } moe;

    struct {
        int64_t every_steps;   /* 0: only at the end */
        int keep;              /* newest checkpoints kept; 0 all */
        int keep_best;         /* besides those, by metric; 0: none */
        const char *metric;    /* eval.loss, eval.NAME.loss */
        const char *upload;    /* command for each checkpoint; NULL: none */
        double upload_seconds; /* of a try */
        double upload_wait;    /* seconds for what is left at the end of the run */
        int copy_mb;           /* of host memory a rank may copy of a slow save; -1 auto */
        const char *local;     /* folder on a disk of each node; NULL: no local checkpoints */
        int64_t local_every_steps;
        int local_keep; /* newest local ones kept */
    } checkpoint;

    struct {
        const char *prometheus; /* file for node_exporter's textfile collector, or NULL */
        int log_mb;             /* MiB at which a file of log/ is rotated */
    } metrics;

    struct {
        const char *mlflow;                /* URL of a tracking server; NULL: none */
        const char *experiment, *run_name; /* there; run_name NULL: the output folder's name */
    } tracking;

    struct {
        const char *on_step, *on_eval, *on_save, *on_end; /* commands; NULL: none */
        double seconds;                                   /* of one */
    } hooks;

    struct {
        struct job_counts steps, ranks; /* traced; none: no step, all ranks */
    } trace;

    /* Of lmtrain sweep; other commands do not heed it. */
    struct {
        enum sweep_search search;
        struct sweep_space space; /* none: the job has no sweep */
        int trials;               /* 0: all of a grid or list */
        uint64_t seed;            /* of random values */
        const char *metric;       /* a key of metrics.jsonl, with '.' for '_' */
        enum sweep_goal goal;
        enum sweep_stop stop;
        int eta;           /* of asha: one of so many trials goes on from a rung */
        int64_t min_steps; /* of the first rung; 0: auto */
        int min_trials;    /* of median: others that it takes to stop one */
        int asynchronous;
        int parallel; /* trials that run at a time */
        int retries;  /* of a trial that died */
        int ensemble; /* trials that are named as an ensemble at the end */
    } sweep;

    const char *output; /* run folder */
    enum output_mode output_mode;
    int poison; /* debug.poison: values become NaN at their death */

    /* Prefixes of files of samples (data/instruct/samples.h) that the data was made into; NULL:
     * token files. */
    struct {
        const char *train, *eval;
        const char **eval_sets; /* of each of eval.sets, or NULL; NULL: all are token files */
        bool are_blended; /* those of data.train's i-th input are in TRAIN-i, drawn by its weight */
    } samples;
    const struct tuning *tuning; /* of the above: what is trained; NULL: everything */

    /* Derived by job_resolve. */
    int world_size;
    int node_ranks; /* neighbouring ranks of each node, by who starts or plans them; 0: not known */
    int n_micro_batches;
    const char **notes; /* "parallel.dp = 2 (auto: 2 ranks / (tp 1 * pp 1))", ... */
    int n_notes;
    int n_read_notes;      /* the first of them: written by job_read */
    const char **warnings; /* "job.yaml:3:1: train.x is deprecated since 0.4, ...", by job_read */
    int n_warnings;
};

/*
 * Read the job file at path ("-" never), apply the overrides in order ("train.steps=10"; values are
 * YAML), expand ${VAR} in values, and check every field alone and against its neighbours. model is
 * resolved (configs/models/NAME.yaml on disk, else embedded; a folder with config.json; or inline).
 * Everything lives in the arena. Returns 0, or -1 and ERR_CONFIG with "FILE:LINE:COLUMN: ..." for
 * every mistake in the text, first one first.
 */
int job_read(struct job *job, const char *path, const char *const *overrides, int n_overrides,
             struct arena *arena, struct err *err);

/* job_read of a text in memory, which messages call source. */
int job_read_text(struct job *job, const char *text, size_t n_bytes, const char *source,
                  const char *const *overrides, int n_overrides, struct arena *arena,
                  struct err *err);

/*
 * The same of a text that need not be more than a model: without data.train and train.steps it is a
 * job that cannot be run, but says what the model is.
 */
int job_read_model(struct job *job, const char *text, size_t n_bytes, const char *source,
                   const char *const *overrides, int n_overrides, struct arena *arena,
                   struct err *err);

/* job_read_model of a HF folder. */
int job_read_folder(struct job *job, const char *folder, const char *const *overrides,
                    int n_overrides, struct arena *arena, struct err *err);

/* Log the warnings of a job that was read: once per command, by one rank. */
void job_log_warnings(const struct job *job);

/* gradient_sum of the job under this zero: as it is given, else late for 0 and 1, and with a codec,
 * early for 2 and 3. */
enum gradient_sum job_gradient_sum(const struct job *job, int zero);

/* The codec of gradients with what it takes, of a resolved job whose steps are known. */
struct codec_choice job_codec(const struct job *job);

/*
 * Fill what depends on the number of ranks: dp, n_micro_batches, gradient_sum, notes, and refuse
 * what job_check_built refuses. Returns 0, or -1 and ERR_CONFIG: the product of the degrees
 * differs, global_batch does not divide, .... May be called again with another world_size.
 */
int job_resolve(struct job *job, int world_size, struct arena *arena, struct err *err);

/*
 * Once it is known how many steps the epochs take: that number, and what follows from it (warm-up,
 * decay).
 */
void job_set_steps(struct job *job, int64_t steps, struct arena *arena);

/* Once it is known that the tokenizer has more tokens than the model: as many rows from now on. */
void job_grow_vocabulary(struct job *job, int vocab_size, struct arena *arena);

/* The first half of job_resolve: also for jobs that can be described but not yet run. */
int job_derive(struct job *job, int world_size, struct arena *arena, struct err *err);

/*
 * Whether this number of tensor-parallel ranks can have parts of the model. Returns 0, or -1 and
 * ERR_CONFIG with `what` requires them, the reason, and the numbers that are possible.
 */
int job_check_tp(const struct model_spec *spec, int tp, const char *what, struct err *err);

/*
 * The most ranks, at most n_possible, with which the job can go on at the same global batch:
 * degrees but dp kept, dp smaller (elastic restart) and a multiple of zero_group. 0 if there is
 * none.
 */
int job_fit_ranks(const struct job *job, int n_possible);

/* 0, or -1 and ERR_CONFIG naming every value of the job that this lmtrain reads but cannot run yet.
 */
int job_check_built(const struct job *job, struct err *err);

/* The whole job as YAML that reads back to the same job, model inline. */
void job_print(const struct job *job, struct str *out);

/*
 * Make the job's relative paths (data, tokenizer, a template that is a file, train.init, output)
 * absolute, in the arena: they are of `folder`.
 */
void job_make_absolute(struct job *job, const char *folder, struct arena *arena);

/* A field and its value, as job_print writes it, but a text without quotes. */
struct job_value {
    const char *key, *text;
};

/* All fields of a job; returns how many. */
int job_list_values(const struct job *job, struct job_value **values, struct arena *arena);

/* job_print with the paths absolute, of this process' folder: what a run stores of its job. */
void job_print_absolute(const struct job *job, struct str *out);

/* The model's fields alone, for job_read_model. */
void job_print_model(const struct job *job, struct str *out);

/* The same as job_print, as a JSON object; being YAML as well, it is a job file too. */
void job_print_json(const struct job *job, struct str *out);

/* The value of one field as YAML; the key must be a field's. */
void job_print_value(const struct job *job, const char *key, struct str *out);

/* A JSON Schema (draft 2020-12) of job files. */
void job_schema(struct str *out);

/*
 * Name, type, range, default, unit and help of one field, or of all below a group, or of all for
 * "". Returns 0, or -1 and ERR_CONFIG naming the nearest field.
 */
int job_explain(const char *key, struct str *out, struct err *err);

/* Whether the job file or an override gives the field. */
bool job_is_given(const struct job *job, const char *key);

/*
 * Once it is known which world rank this is: the micro-batches of its replica, where these differ
 * (parallel.replica_micro_batches). n_micro_batches is the most of any rank before that.
 */
void job_take_replica(struct job *job, int world_rank);

/* Micro-batches of a step on all data-parallel ranks of a resolved job. */
int64_t job_all_micro_batches(const struct job *job);

/* The ranks of a resolved job; over how many of them each sequence is divided; and what lengths of
 * sequences are multiples of, so that all ranks have as many rows. */
struct mesh job_mesh(const struct job *job);
struct context_cut job_context_cut(const struct job *job);
int64_t job_length_unit(const struct job *job);

/* Neighbouring ranks within which collectives go by node (run/collective.h): those of
 * parallel.node_ranks, else of the nodes; 0: none do, or that is not known. */
int job_node_ranks(const struct job *job);

/* Whether there are collectives that parallel.overlap can cut (program/slice.c): over tp, and keys
 * and values that are gathered, and rows of experts. */
bool job_has_overlap(const struct job *job);

#endif
