/*
 * parameters.h - the inventory of a model's parameters
 *
 * A parameter is the weight or the bias of a module: of the model (embedding, final_norm, ...) or
 * of one of its layers (qkv, ffn_norm, ...). One table (parameters.c) says for each module its
 * name, the shape of its weight, how ranks that share a model divide it, how it is filled at first,
 * and which models and layers have it. No other file does: model/ declares what is listed here by
 * id, files of Hugging Face join it by id (ckpt/hf_names.c), adapters attach to it by id
 * (tuning.h), and numbers of parameters and FLOPs are sums over it. The global names:
 *
 *     embedding.weight [V x d]            position.weight [P x d]          (learned positions)
 *     embedding_norm.weight (.bias)                                        (where there is one)
 *     layers.N.attention_norm.weight      layers.N.ffn_norm.weight         (.bias)
 *     layers.N.qkv.weight [(h + 2 g) e x d], rows q heads | k heads | v heads             (.bias)
 *     layers.N.q_norm.weight [e]          layers.N.k_norm.weight           (q/k norms)
 *     layers.N.attention_out.weight [d x h e]                                              (.bias)
 *     layers.N.gate_up.weight [2 f x d], rows gate | up    or    layers.N.up.weight [f x d] (.bias)
 *     layers.N.down.weight [d x f]                                                          (.bias)
 *     in layers with experts, instead:     layers.N.router.weight [m x d]
 *     layers.N.experts.gate_up.weight [m 2 f x d], expert by expert as gate_up
 *     layers.N.experts.down.weight [m d x f]    layers.N.router.bias [m]   (balance bias)
 *     layers.N.shared.gate_up.weight, layers.N.shared.down.weight, as a dense layer's, of experts
 *     that all tokens go to; layers.N.shared.gate.weight [1 x d]           (where they have one)
 *     final_norm.weight (.bias)           head.weight [V x d]              (untied)
 *
 * Pure: it knows no program, no mesh and no file.
 */
#ifndef CONFIG_PARAMETERS_H
#define CONFIG_PARAMETERS_H

#include "base/init.h"
#include "config/model_spec.h"
#include "layout/axes.h"
#include "ops/ops.h"

/* In the order of declaration. */
enum module_id {
    MODULE_EMBEDDING,
    MODULE_POSITION,
    MODULE_EMBEDDING_NORM,
    MODULE_ATTENTION_NORM, /* from here on of each layer */
    MODULE_QKV,
    MODULE_Q_NORM,
    MODULE_K_NORM,
    MODULE_ATTENTION_OUT,
    MODULE_FFN_NORM,
    MODULE_ROUTER,
    MODULE_EXPERTS_GATE_UP,
    MODULE_EXPERTS_DOWN,
    MODULE_GATE_UP,
    MODULE_UP,
    MODULE_DOWN,
    MODULE_SHARED_GATE_UP,
    MODULE_SHARED_DOWN,
    MODULE_SHARED_GATE,
    MODULE_FINAL_NORM, /* behind the layers */
    MODULE_HEAD,
    N_MODULES
};

enum module_part { PART_WEIGHT, PART_BIAS, N_MODULE_PARTS };

/* The layer of what stands before the layers; behind them it is n_layers. */
#define LAYER_BEFORE (-1)

struct parameter_id {
    enum module_id module;
    enum module_part part;
    int layer; /* LAYER_BEFORE .. n_layers */
};

/* What a parameter is to a token: a table gives it a row, matrices and routers multiply it. */
enum parameter_role {
    PARAMETER_TABLE,
    PARAMETER_MATRIX,
    PARAMETER_ROUTER,
    PARAMETER_NORM,
    PARAMETER_BIAS,
    PARAMETER_BALANCE, /* has no gradient: a rule of its own changes it (balance_bias) */
    PARAMETER_ADAPTER  /* A or B of an adapter (tuning.h), whose id is the adapted weight's */
};

#define PARAMETER_NAME_MAX 64
#define MODULE_MAX_PIECES 3 /* q, k and v */
#define LAYER_MAX_PARAMETERS (2 * N_MODULES)

struct parameter_spec {
    struct parameter_id id;
    char name[PARAMETER_NAME_MAX]; /* global: "layers.0.qkv.weight" */
    enum parameter_role role;
    enum parameter_kind kind;
    int n_dims; /* 1: a vector of `rows` elements, cols is 1 */
    int64_t rows, cols;
    /* The rows are these pieces one after the other, and that n_repeats times: for each expert. */
    int n_pieces, n_repeats;
    int64_t pieces[MODULE_MAX_PIECES];
    /* What ranks that share a model divide among them: SPREAD_ROWS each piece by itself,
     * SPREAD_COLS the columns, SPREAD_SAME nothing: each has all of it. */
    enum spread divided;
    enum init_kind init;
    double init_std; /* of INIT_NORMAL the deviation, of INIT_UNIFORM the bound; else 0 */
};

/* A module's name in the global names of its parameters, behind that of the layer: "qkv". */
const char *parameters_module_name(enum module_id module);

/* Whether layers have it, not the model. */
int parameters_is_of_layers(enum module_id module);

/* Whether it is a balance bias: fp32 in whatever type the model is, for steps add little to it. */
int parameters_is_balance(struct parameter_id id);

/* The id of a module's weight or bias; layer counts only for modules of layers. */
struct parameter_id parameters_id(const struct model_spec *spec, enum module_id module,
                                  enum module_part part, int layer);

/* The weight that makes logits: the head's own, or the embedding's. */
struct parameter_id parameters_head(const struct model_spec *spec);

/* Write a parameter's global name, "layers.0.qkv.weight", whether a model has it or not. */
void parameters_name(char name[PARAMETER_NAME_MAX], struct parameter_id id);

/* For tables of all parameters: where one stands in it, and how many entries it has. */
int parameters_index(struct parameter_id id);
int parameters_n_indices(const struct model_spec *spec);

/* Fill *out with the parameter. Returns 0, and leaves *out as it was, if the model, or that layer
 * of it, has none such. */
int parameters_find(const struct model_spec *spec, struct parameter_id id,
                    struct parameter_spec *out);

/*
 * List the parameters of a layer, or those before the layers (LAYER_BEFORE) or behind them
 * (n_layers), in the order of their declaration. Returns how many, at most LAYER_MAX_PARAMETERS. A
 * head that is tied to the embedding is not listed.
 */
int parameters_of_layer(const struct model_spec *spec, int layer, struct parameter_spec *list);

/* The first row of a piece in one of the repeats. */
int64_t parameters_piece_begin(const struct parameter_spec *parameter, int repeat, int piece);

/* Elements of all parameters of a layer, or of those before or behind the layers. */
int64_t parameters_count(const struct model_spec *spec, int layer);

/* Those of a layer that multiply a token's activations: none of norms and biases; of experts those
 * that a token goes to. Those of the head, be it tied or not. */
int64_t parameters_count_matmul(const struct model_spec *spec, int layer);
int64_t parameters_count_head(const struct model_spec *spec);

#endif
