/*
 * model.h - a model's forward as ops
 *
 * Emits the forward of a decoder into a function: embedding, blocks, final norm, and one of three
 * ends: loss with its input gradient (training), loss alone (evaluation), logits of chosen rows
 * (generation), or the residual stream, of which model_score asks (scoring). The parameters are
 * declared once, by model_declare: those of config/parameters.h and config/tuning.h's adapters.
 *
 * Over tp ranks the heads, the feed-forward's columns and the vocabulary are divided (Shoeybi et
 * al. 2019). The residual stream is the same on all of them, or, sequence parallel, each has its
 * part of the rows (Korthikanti et al. 2022): then the sums that end a block leave each its rows,
 * and the rows are gathered where a block begins; else the sums are everybody's and nothing is
 * gathered. Where kv heads are fewer than ranks, neighbours have a part of one each, and gather it.
 *
 * Of each expert the ranks have a part like that, so all see all tokens. Rows of tokens times the
 * experts of each are gathered expert by expert: as many whatever the router says, none is dropped.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "config/model_spec.h"
#include "config/parameters.h"
#include "config/tuning.h"
#include "program/program.h"

enum model_cache { MODEL_KEYS, MODEL_VALUES, N_MODEL_CACHES };
enum model_end { MODEL_TRAIN, MODEL_EVALUATE, MODEL_LOGITS, MODEL_STREAM };

/* Layers [first_layer, end_layer) as one piece. The embedding comes with the first stage, the final
 * norm and the head with the last. */
struct model_chunk {
    int stage, n_stages;
    int first_layer, end_layer;
};

/* Logits of a chunk of the head on a CPU, and on a GPU; tokens at least, however large the vocabulary. */
#define MODEL_HEAD_TOKENS 256
#define MODEL_HEAD_LOGITS ((int64_t)1 << 23)
#define MODEL_HEAD_LOGITS_GPU ((int64_t)1 << 28)

struct model_builder {
    struct program *program;
    const struct model_spec *spec;
    enum dtype dtype;         /* of activations and 2-D weights */
    enum dtype residual;      /* of the residual stream: DTYPE_F32, or bf16 where dtype is */
    int n_sequences, seq_len; /* of a micro-batch: rows = n_sequences * seq_len */
    int cache_len;            /* > 0: attention over a cache of so many positions (generation) */
    int dropout;              /* 0: off whatever the spec says */
    int sequence_parallel;    /* with tp: norms and residuals on parts of the rows */
    int max_positions;        /* rows of the rope table */
    uint64_t seed;
    int64_t head_logits;         /* of a chunk of the head; 0: MODEL_HEAD_LOGITS */
    int is_packed;               /* a sequence may hold several samples: ports.starts */
    const struct tuning *tuning; /* what is frozen, and adapters; NULL: nothing, none */
    int64_t global_batch;        /* sequences of a step: what the router's balance is a mean over */
    /* By model_declare, handles: 1 + a parameter's index in the program; 0: there is none. */
    int *parameters;                                  /* by parameters_index */
    int (*adapters)[N_LORA_MODULES][N_LORA_MATRICES]; /* by layer */
    int (*caches)[N_MODEL_CACHES]; /* by model_forward: each layer's cells, or 0 */
    int choices;                   /* by model_forward: of all its layers' routers; 0: apart */
    /* By model_declare, where tp is more than 1: the rank's first token of the vocabulary, row of
     * the micro-batch, head, and its rows of the positions; 0 where nobody asks. */
    struct {
        int vocabulary, rows, heads, positions;
        int attention_cols, ffn_cols; /* of what the blocks' last matrices read, for dropout */
    } parts;
};

/* All layers as one chunk. */
struct model_chunk model_whole(const struct model_spec *spec);

/*
 * Declare the chunks' parameters, inputs and constants; sets the program's ports for them. A head
 * that is tied to an embedding on none of these chunks gets a copy of that parameter.
 */
void model_declare(struct model_builder *builder, const struct model_chunk *chunks, int n_chunks);

/* The axes over which ranks divide the parameter: a set of 1 << axis. */
unsigned model_split_axes(const struct mesh *mesh, const struct parameter_spec *parameter);

/* Index of a declared parameter in the program, or -1: it is none of the chunks'. */
int model_parameter(const struct model_builder *builder, struct parameter_id id);

/*
 * From now on micro-batches are of so many sequences, at most as many as were declared: the first
 * of them in the inputs, of which the ports then name views.
 */
void model_resize(struct model_builder *builder, int n_sequences);

/*
 * The scalars that MODEL_TRAIN and MODEL_EVALUATE need, on every stage: ports.loss_scale and loss,
 * gradient_scale where activations are fp16; ports.eval_loss; with experts, ports.router_stats for
 * MODEL_TRAIN.
 */
void model_declare_loss(struct model_builder *builder);
void model_declare_evaluation(struct model_builder *builder);

/* The forward of a chunk, and where it meets others. */
struct model_part {
    int value;    /* what the next stage reads; of the last stage, what differentiate begins with */
    int gradient; /* of value, where the last stage has made it (MODEL_TRAIN), summed over tp */
};

/*
 * Append a chunk's forward to `function`; boundary is the value of the stage before, 0 for the
 * first. At the last stage, under MODEL_TRAIN, the loss is accumulated into ports.loss. With
 * trainable parameters the head's accumulator is made here, as the use that comes first in backward
 * order.
 */
struct model_part model_forward(struct model_builder *builder, int function,
                                const struct model_chunk *chunk, enum model_end end, int boundary);

/*
 * Append to `function`, which runs behind one with MODEL_STREAM, the final norm of n_rows rows of
 * ports.stream, those that ports.query_rows names, and what logit_stats says of their logits and the
 * tokens ports.target_tokens: ports.stats.
 */
void model_score(struct model_builder *builder, int function, int n_rows);

#endif
