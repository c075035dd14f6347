/*
 * model.h - a model's forward as ops
 *
 * Emits the forward of a decoder into a function: embedding, blocks, final norm, and one of four
 * ends: the loss with its input gradient (training), the loss alone (evaluation), logits of chosen
 * rows (generation), or the residual stream, which model_score reads (scoring). The parameters are
 * declared once, by model_declare: those of config/parameters.h and config/tuning.h's adapters.
 *
 * Over tp the heads, the FFN columns and the vocabulary are divided (Shoeybi et al. 2019). The
 * residual stream is the same on all ranks, or, with sequence parallelism, each rank has a part of
 * the rows (Korthikanti et al. 2022): a block then begins with an all_gather of the rows and ends
 * with a reduce_scatter instead of an all_reduce. If there are fewer kv heads than ranks,
 * neighbouring ranks each have a part of one head, and gather it.
 *
 * Over cp and ulysses a rank has a part of the rows of each sequence (layout/context.h), and only
 * attention needs others' (Jacobs et al. 2023: DeepSpeed Ulysses; Llama Team 2024, section 3.3.2).
 * Along ulysses each rank gets all rows of a part of the heads, and gives the outputs back; along
 * cp each gathers the keys and values of all ranks, for its own queries, or, where a window sees no
 * more than a chunk, those of its neighbours. With both, keys are those of the rank's heads. With
 * fastseq (OpenDiT 2024) ranks along ulysses gather the input of qkv instead, and each has the part
 * of the qkv matrix of its heads: over ulysses, too, these parameters, and their adapters' B, are
 * divided, and all others are the same.
 *
 * Experts that all tokens go to (shared) are one FFN, whose output is added to that of the others
 * (Dai et al. 2024).
 *
 * Each expert's FFN is divided over tp in the same way, so every rank processes all tokens. Rows of
 * tokens are copied once for each of the token's experts and sorted by expert: their number does
 * not depend on the routing, and no token is dropped, unless a job gives experts a capacity.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "config/model_spec.h"
#include "config/parameters.h"
#include "config/tuning.h"
#include "layout/context.h"
#include "program/program.h"

enum model_cache { MODEL_KEYS, MODEL_VALUES, N_MODEL_CACHES };
enum model_end { MODEL_TRAIN, MODEL_EVALUATE, MODEL_LOGITS, MODEL_STREAM };

/* Layers [first_layer, end_layer) as one piece. The embedding comes with the first stage, the final
 * norm and the head with the last. */
struct model_chunk {
    int stage, n_stages;
    int first_layer, end_layer;
};

/* Logits that exist at a time in the head, on a CPU and on a GPU; and the least number of tokens of
 * a chunk, for large vocabularies. */
#define MODEL_HEAD_TOKENS 256
#define MODEL_HEAD_LOGITS ((int64_t)1 << 23)
#define MODEL_HEAD_LOGITS_GPU ((int64_t)1 << 28)

struct model_builder {
    struct program *program;
    const struct model_spec *spec;
    enum dtype dtype;         /* of activations and 2-D weights */
    enum dtype residual;      /* of the residual stream: DTYPE_F32, or bf16 where dtype is */
    int n_sequences, seq_len; /* of a micro-batch: rows = n_sequences * seq_len, on all the ranks
                                 that divide sequences */
    struct fp8_choice fp8;    /* of layers' matrices but experts' */
    int shortest;             /* seq_len of the job's shortest program: all have the same ops */
    int gathers_windows;      /* with cp: layers with windows fetch no keys but their neighbours' */
    int cache_len;            /* > 0: attention over a cache of this many positions (generation) */
    int dropout;              /* 0: off, regardless of the spec */
    int sequence_parallel;    /* with tp: norms and residual adds on parts of the rows */
    int whole_experts;        /* with sequence_parallel: ranks of tp have experts, not parts */
    int has_ring;             /* keys go from rank to rank: the pass ring follows */
    int fastseq;              /* ranks along ulysses gather the rows that qkv is computed from */
    int max_positions;        /* rows of the rope table */
    uint64_t seed;
    int64_t head_logits;         /* that exist at a time in the head; 0: MODEL_HEAD_LOGITS */
    int is_packed;               /* a sequence may hold several samples: ports.starts */
    const struct tuning *tuning; /* frozen parameters, adapters; NULL: neither */
    double z_loss;               /* coefficient of the head's squares in the loss; 0: none */
    double capacity_factor;      /* of experts (routing.c); 0: no choice is dropped */
    int drops_by_weight;         /* those of the least weights, not the last tokens' */
    int64_t global_batch; /* sequences of a step, over which the router's balance loss is a mean */
    /* By model_declare, handles: 1 + a parameter's index in the program; 0: there is none. */
    int *parameters;                                  /* by parameters_index */
    int (*adapters)[N_LORA_MODULES][N_LORA_MATRICES]; /* by layer */
    int (*caches)[N_MODEL_CACHES]; /* by model_forward: each layer's cells, or 0 */
    int choices; /* by model_forward: choices of all layers' routers; 0: one value a layer */
    /* By model_declare, if tp is more than 1: values with the rank's offset in the vocabulary, in
     * the rows of the micro-batch, and in the heads, and its rows of the positions; 0 if not
     * needed. */
    struct {
        int vocabulary, rows, heads, positions;
        int experts; /* the first of the rank's, where ranks divide them (model_expert_axis) */
        int none;    /* 0: the first of all experts, where choices may be of none */
        /* Offsets in the inputs of the blocks' last matrices, for dropout. */
        int attention_cols, ffn_cols, shared_cols;
    } parts;
};

/* Rows of a micro-batch that a rank has; and over how many ranks each sequence is divided. */
int64_t model_rows(const struct model_builder *builder);
struct context_cut model_context_cut(const struct mesh *mesh);

/* The window of a layer that fetches the keys of its window alone; 0: it gathers all. */
int model_gathered_window(const struct model_builder *builder, int layer);

/* All layers as one chunk. */
struct model_chunk model_whole(const struct model_spec *spec);

/*
 * Declare the chunks' parameters, inputs and constants; sets the program's ports for them. A head
 * that is tied to an embedding on none of these chunks gets a copy of that parameter.
 */
void model_declare(struct model_builder *builder, const struct model_chunk *chunks, int n_chunks);

/* The axes over which ranks divide the parameter: a set of 1 << axis. */
unsigned model_split_axes(const struct model_builder *builder,
                          const struct parameter_spec *parameter);

/* The axis whose ranks have other experts each: rows go over it. */
enum mesh_axis model_expert_axis(const struct model_builder *builder);

/* Index of a declared parameter in the program, or -1 if it does not belong to the chunks. */
int model_parameter(const struct model_builder *builder, struct parameter_id id);

/*
 * Set the number of sequences of a micro-batch, at most that of model_declare. The ports then name
 * views of the first sequences of the inputs.
 */
void model_resize(struct model_builder *builder, int n_sequences);

/*
 * The scalars that MODEL_TRAIN and MODEL_EVALUATE need, on every stage: ports.loss_scale and loss,
 * gradient_scale where activations are fp16; ports.eval_loss; with experts, ports.router_stats for
 * MODEL_TRAIN, where they have a capacity ports.dropped.
 */
void model_declare_loss(struct model_builder *builder);
void model_declare_evaluation(struct model_builder *builder);

/* The output of a chunk's forward. */
struct model_part {
    int value;    /* read by the next stage; on the last stage the seed of differentiate */
    int gradient; /* of value, if the last stage has computed it (MODEL_TRAIN), reduced over tp */
};

/* Of the rows that a rank's experts may get from all n ranks that divide experts, those that they
 * get if all experts get as many. */
double model_balanced_share(const struct model_spec *spec, int n);

/*
 * Append a chunk's forward to `function`; boundary is the value of the stage before, 0 for the
 * first. At the last stage, under MODEL_TRAIN, the loss is accumulated into ports.loss. The
 * accumulator of a trainable head is created here, as the first use in the order of the backward.
 */
struct model_part model_forward(struct model_builder *builder, int function,
                                const struct model_chunk *chunk, enum model_end end, int boundary);

/*
 * Append to `function`, which runs after one with MODEL_STREAM: the final norm of n_rows rows of
 * ports.stream, given by ports.query_rows, and logit_stats of their logits for the tokens
 * ports.target_tokens, into ports.stats.
 */
void model_score(struct model_builder *builder, int function, int n_rows);

#endif
