/*
 * compile.h - from a model and options to a placed, verified program
 *
 * compile.c is the list of the passes in their order. Pure; `lmtrain plan` and a run compile the
 * same program.
 */
#ifndef MODEL_COMPILE_H
#define MODEL_COMPILE_H

#include "config/model_spec.h"
#include "program/passes.h"

/* `after` is called after each pass of compile_train; passes over chunks' functions run once for
 * each chunk. */
struct compile_watch {
    void (*after)(void *context, const char *pass, const struct program *program);
    void *context;
};

struct compile_train {
    const struct model_spec *model;
    struct mesh mesh;
    enum dtype dtype, residual; /* of activations; of the residual stream and its gradient */
    struct fp8_choice fp8;      /* of products with layers' matrices (model.h); zeros: none */
    int micro_batch, seq_len, n_micro_batches;
    /* seq_len of the job's longest program, if it has several (place_within): decides how layers
     * are divided into stages, and the length of the rope table; 0: seq_len. */
    int longest;
    /* seq_len of its shortest: decides what windows fetch; 0: seq_len. */
    int shortest;
    int gathers_windows;  /* with cp: layers with windows fetch no keys but their neighbours' */
    int64_t global_batch; /* sequences of a step on all data-parallel ranks; 0: all as this one */
    /* [n_micro_batches]: sequences of each, at most micro_batch; NULL: micro_batch each. */
    const int *micro_batches;
    int sequence_parallel; /* with several tp ranks, which must divide a micro-batch's tokens */
    int whole_experts;     /* with sequence_parallel: tp ranks divide experts, not their matrices */
    int has_ring;          /* over cp keys go from rank to rank instead of being gathered */
    int key_slices;        /* in which gathered keys travel; 0: 1 */
    /* Slices over tp (program/passes.h), of which rows and seq_len are set by the compiler. */
    struct slice_options overlap;
    struct row_codec_choice row_codec; /* of tensor-parallel gathers and sums */
    int fastseq;                       /* ranks along ulysses divide the qkv matrices (model.h) */
    double z_loss;                     /* of the head (model.h); 0: none */
    double capacity_factor;            /* of experts (model.h); 0: they have no capacity */
    int drops_by_weight;
    int64_t head_logits; /* elements that exist at a time; 0: MODEL_HEAD_LOGITS */
    int has_recheck;     /* ENTRY_RECHECK is made */
    int decides_late;    /* split_optimizer */
    int is_packed;       /* a sequence may hold several samples, none of which attends to another */
    const struct tuning *tuning; /* trainable parameters, adapters; NULL: everything is trained */
    uint64_t seed;
    enum recompute_kind recompute;
    struct bitset recompute_ops; /* of RECOMPUTE_KIND_LIST: a set of enum op_kind */
    /* [pp * n_chunks]: how many of each stage's layers, the first ones, are recomputed in full, and
     * how many after them selectively, whatever recompute says; NULL: none. */
    const int *full_layers, *selective_layers;
    /* So many of a stage's layers, its last ones, are recomputed before the gradient of its output
     * arrives from another rank; under 1F1B the last stage keeps these (unless set_of_layer says
     * what layers keep). */
    int early_layers;
    /* What each layer of the model keeps, whatever the four above say: sets[set_of_layer[i]] is of
     * layer i. set_of_layer: [model->n_layers], of which a pipeline rank reads those of its own
     * layers alone; NULL: as the four say. */
    const struct keep_set *sets;
    const unsigned char *set_of_layer;
    /* What of this rank's values is away when it is not needed; NULL: nothing. */
    const struct rank_offload *offload;
    struct copy_times copy_times; /* where copies are posted; zeros: one op ahead */
    /* The pipeline, and the rank in it that this program is for; zeros for one stage. */
    struct {
        enum pipeline_kind kind;
        int n_chunks;            /* of a rank; 0 is 1 */
        const int *stage_layers; /* [pp * n_chunks]; NULL: divided by cost */
        int rank;
        /* by compile_pipeline, if several ranks are compiled; NULL: built for this one */
        const struct pipeline *built;
    } pipeline;
    /* Pages for so many times the rows that experts get if they are balanced; 0: no pages, memory
     * for all that there may be. */
    double stash_factor;
    struct shard_options gradients;
    struct ahead_options ahead; /* of weights that are gathered once a step; zeros: none */
    struct update_options update;
    enum dtype gradient_dtype;  /* of accumulators of 2-D parameters: DTYPE_F32 or DTYPE_BF16 */
    int no_fuse;                /* for tests: no pass fuses ops */
    int unverified;             /* of a program that is priced and not run: no verify */
    program_scratch_fn scratch; /* scratch of each op; NULL: none is planned */
    void *scratch_context;
    const struct compile_watch *watch; /* NULL: none */
};

/* The name of pass i, in their order; NULL after the last. */
const char *compile_pass_name(int i);

/*
 * Entries: STEP, EVALUATE (one micro-batch), EVALUATE_END (the sum over ranks); under zero 1 and 2
 * with several ranks also GATHER, which runs before the first EVALUATE after a step, and with
 * ahead.n_ahead before the first STEP. *program is
 * initialised here and belongs to the caller, also on failure. Returns 0, or -1 with verify's
 * error.
 */
int compile_train(struct program *program, const struct compile_train *options, struct err *err);

/*
 * The pipeline's lists of all ranks with their common order of time, which is the same for the
 * programs of all ranks. In the arena. Fails as compile_train does if the pipeline is impossible.
 */
int compile_pipeline(struct pipeline *pipeline, const struct compile_train *options,
                     struct arena *arena, struct err *err);

/*
 * How the layers are divided among the stages of a pipeline where the job does not say: counts
 * [n_stages], as equal as possible in multiplications a token (stage_split). Fails as stage_split.
 */
int model_cut_stages(const struct model_spec *model, int seq_len, int n_stages, int *counts,
                     struct arena *scratch, struct err *err);

/*
 * What programs without a backward (evaluation, generation, scoring) have in common: a trained
 * model on the ranks that hold it together, a mesh of tp and pp alone, divided into stages as for
 * training. A program is for one of these ranks. Entries have the same names on all of them and
 * hold what the rank's stage computes. The residual stream is fp32.
 */
struct compile_serving {
    const struct model_spec *model;
    const struct tuning *tuning; /* adapters; NULL: none */
    struct mesh mesh;            /* zeros: one rank */
    int pp_rank;
    enum dtype dtype;
    program_scratch_fn scratch; /* scratch of each op; NULL: none is planned */
    void *scratch_context;
};

struct compile_evaluate {
    struct compile_serving serving;
    int micro_batch, seq_len;
};

/* Weights and the entry EVALUATE; with several stages EVALUATE_END, too. */
int compile_evaluate(struct program *program, const struct compile_evaluate *options,
                     struct err *err);

struct compile_generate {
    struct compile_serving serving;
    int n_sequences; /* decoded in parallel */
    int prefill_len; /* prompt tokens of each sequence that one PREFILL takes, padded */
    int cache_len;   /* positions that a sequence can have, prompt and generated tokens together */
};

/*
 * Entries: PREFILL (n_sequences * prefill_len rows) and DECODE (one row a sequence), sharing
 * weights and KV cache. Inputs of each entry are its first rows of ports.tokens and
 * ports.positions; a position < 0 is padding. ports.last_rows are the rows whose logits are
 * computed; it and ports.logits exist on the last stage.
 */
int compile_generate(struct program *program, const struct compile_generate *options,
                     struct err *err);

struct compile_score {
    struct compile_serving serving;
    int n_rows;        /* tokens that one FEED takes, of any texts */
    int n_asked;       /* rows that one SCORE compares with their target tokens */
    int cache_rows;    /* tokens that the cache holds */
    int n_segments;    /* of the cache */
    int max_positions; /* of a text */
};

/*
 * Entries: FEED puts n_rows tokens (ports.tokens) at positions (ports.positions; < 0 is padding) of
 * segments (ports.segment, ports.segments: ops.h, attention_cached) and writes the last layer's
 * output to ports.stream; SCORE computes, on the last stage, the statistics of the logits at rows
 * ports.query_rows for the tokens ports.target_tokens; on other stages it is empty.
 */
int compile_score(struct program *program, const struct compile_score *options, struct err *err);

#endif
