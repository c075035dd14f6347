/*
 * parameters.c - one row a module
 *
 * First values are GPT-2's: weights normal with init_std, those that write to the residual stream
 * with init_std / sqrt(2 n_layers), norms 1, biases 0.
 *
 * Ranks that share a model divide it as in Shoeybi et al. 2019, section 3: of what reads the whole
 * hidden state the outputs, by heads and by FFN columns; of what gives it the inputs; of the
 * vocabulary its rows. Of an expert they have what they would have of a dense FFN. Norms, those of
 * heads too, learned positions, routers, and biases that are added to sums are not divided.
 */
#include "config/parameters.h"

#include <math.h>
#include <stdio.h>

#include "base/err.h"

/* Extents that shapes are made of. */
enum width {
    NO_WIDTH,
    VOCABULARY,
    POSITIONS,
    HIDDEN,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    FFN,
    EXPERTS,
    EXPERT_FFN,
    SHARED_FFN,
    ONE
};

static int64_t width_of(const struct model_spec *s, enum width width)
{
    const int64_t widths[] = { [NO_WIDTH] = 1,
                               [VOCABULARY] = s->vocab_size,
                               [POSITIONS] = s->max_seq_len,
                               [HIDDEN] = s->hidden_size,
                               [HEAD_DIM] = s->head_dim,
                               [HEADS] = (int64_t)s->n_heads * s->head_dim,
                               [KV_HEADS] = (int64_t)s->n_kv_heads * s->head_dim,
                               [FFN] = s->ffn_size,
                               [EXPERTS] = s->n_experts,
                               [EXPERT_FFN] = s->expert_ffn_size,
                               [SHARED_FFN] = s->shared_ffn_size,
                               [ONE] = 1 };

    return widths[width];
}

/* Whether a model has something in a layer. */
typedef int has_fn(const struct model_spec *spec, int layer);

static int has_positions(const struct model_spec *s, int layer)
{
    (void)layer;
    return s->position == POSITION_LEARNED;
}

static int has_embedding_norm(const struct model_spec *s, int layer)
{
    (void)layer;
    return s->embedding_norm;
}

static int has_head_norms(const struct model_spec *s, int layer)
{
    (void)layer;
    return s->qk_norm;
}

static int has_gated_ffn(const struct model_spec *s, int layer)
{
    return !model_spec_has_experts(s, layer) && s->activation == ACTIVATION_SWIGLU;
}

static int has_plain_ffn(const struct model_spec *s, int layer)
{
    return !model_spec_has_experts(s, layer) && s->activation != ACTIVATION_SWIGLU;
}

static int has_ffn(const struct model_spec *s, int layer)
{
    return !model_spec_has_experts(s, layer);
}

static int has_balance_bias(const struct model_spec *s, int layer)
{
    return s->router_bias && model_spec_has_experts(s, layer);
}

static int has_shared_gate(const struct model_spec *s, int layer)
{
    return s->shared_gate && model_spec_has_shared(s, layer);
}

static int has_own_head(const struct model_spec *s, int layer)
{
    (void)layer;
    return !s->tied_embeddings;
}

static int has_bias(const struct model_spec *s, int layer)
{
    (void)layer;
    return s->bias;
}

static int has_norm_bias(const struct model_spec *s, int layer)
{
    (void)layer;
    return s->norm == NORM_LAYER && s->bias;
}

static int has_qkv_bias(const struct model_spec *s, int layer)
{
    (void)layer;
    return model_spec_has_qkv_bias(s);
}

static int has_output_bias(const struct model_spec *s, int layer)
{
    (void)layer;
    return model_spec_has_output_bias(s);
}

/*
 * `outputs` are the weight's rows and the bias' elements, `inputs` the weight's columns: without
 * any it is a vector.
 */
static const struct parameter_row {
    const char *name;
    enum parameter_role role;
    enum width outputs[MODULE_MAX_PIECES], inputs;
    enum spread divided;
    has_fn *has;      /* NULL: all have it */
    has_fn *has_bias; /* NULL: none has one */
    enum parameter_kind kind;
} rows[N_MODULES] = {
    /* clang-format off */
    [MODULE_EMBEDDING]       = { "embedding", PARAMETER_TABLE, { VOCABULARY }, HIDDEN,
                                 .divided = SPREAD_ROWS },
    [MODULE_POSITION]        = { "position", PARAMETER_TABLE, { POSITIONS }, HIDDEN, SPREAD_SAME,
                                 .has = has_positions },
    [MODULE_EMBEDDING_NORM]  = { "embedding_norm", PARAMETER_NORM, { HIDDEN }, NO_WIDTH,
                                 SPREAD_SAME, .has = has_embedding_norm,
                                 .has_bias = has_norm_bias },
    [MODULE_ATTENTION_NORM]  = { "attention_norm", PARAMETER_NORM, { HIDDEN }, NO_WIDTH,
                                 SPREAD_SAME, .has_bias = has_norm_bias },
    [MODULE_QKV]             = { "qkv", PARAMETER_MATRIX, { HEADS, KV_HEADS, KV_HEADS }, HIDDEN,
                                 SPREAD_ROWS, .has_bias = has_qkv_bias },
    [MODULE_Q_NORM]          = { "q_norm", PARAMETER_NORM, { HEAD_DIM }, NO_WIDTH, SPREAD_SAME,
                                 .has = has_head_norms },
    [MODULE_K_NORM]          = { "k_norm", PARAMETER_NORM, { HEAD_DIM }, NO_WIDTH, SPREAD_SAME,
                                 .has = has_head_norms },
    [MODULE_ATTENTION_OUT]   = { "attention_out", PARAMETER_MATRIX, { HIDDEN }, HEADS, SPREAD_COLS,
                                 .has_bias = has_output_bias },
    [MODULE_FFN_NORM]        = { "ffn_norm", PARAMETER_NORM, { HIDDEN }, NO_WIDTH, SPREAD_SAME,
                                 .has_bias = has_norm_bias },
    [MODULE_ROUTER]          = { "router", PARAMETER_ROUTER, { EXPERTS }, HIDDEN, SPREAD_SAME,
                                 .has = model_spec_has_experts,
                                 .has_bias = has_balance_bias },
    [MODULE_EXPERTS_GATE_UP] = { "experts.gate_up", PARAMETER_MATRIX, { EXPERT_FFN, EXPERT_FFN },
                                 HIDDEN, SPREAD_ROWS, .has = model_spec_has_experts,
                                 .kind = PARAMETER_EXPERT },
    [MODULE_EXPERTS_DOWN]    = { "experts.down", PARAMETER_MATRIX, { HIDDEN }, EXPERT_FFN,
                                 SPREAD_COLS, .has = model_spec_has_experts,
                                 .kind = PARAMETER_EXPERT },
    [MODULE_GATE_UP]         = { "gate_up", PARAMETER_MATRIX, { FFN, FFN }, HIDDEN, SPREAD_ROWS,
                                 .has = has_gated_ffn, .has_bias = has_bias },
    [MODULE_UP]              = { "up", PARAMETER_MATRIX, { FFN }, HIDDEN, SPREAD_ROWS,
                                 .has = has_plain_ffn, .has_bias = has_bias },
    [MODULE_DOWN]            = { "down", PARAMETER_MATRIX, { HIDDEN }, FFN, SPREAD_COLS,
                                 .has = has_ffn, .has_bias = has_bias },
    [MODULE_SHARED_GATE_UP]  = { "shared.gate_up", PARAMETER_MATRIX, { SHARED_FFN, SHARED_FFN },
                                 HIDDEN, SPREAD_ROWS, .has = model_spec_has_shared },
    [MODULE_SHARED_DOWN]     = { "shared.down", PARAMETER_MATRIX, { HIDDEN }, SHARED_FFN,
                                 SPREAD_COLS, .has = model_spec_has_shared },
    [MODULE_SHARED_GATE]     = { "shared.gate", PARAMETER_ROUTER, { ONE }, HIDDEN, SPREAD_SAME,
                                 .has = has_shared_gate },
    [MODULE_FINAL_NORM]      = { "final_norm", PARAMETER_NORM, { HIDDEN }, NO_WIDTH, SPREAD_SAME,
                                 .has_bias = has_norm_bias },
    [MODULE_HEAD]            = { "head", PARAMETER_MATRIX, { VOCABULARY }, HIDDEN, SPREAD_ROWS,
                                 .has = has_own_head },
    /* clang-format on */
};

const char *parameters_module_name(enum module_id module)
{
    return rows[module].name;
}

int parameters_is_of_layers(enum module_id module)
{
    return module >= MODULE_ATTENTION_NORM && module < MODULE_FINAL_NORM;
}

int parameters_is_balance(struct parameter_id id)
{
    return id.module == MODULE_ROUTER && id.part == PART_BIAS;
}

/* Where a module stands that is no layer's: before all of them or behind. */
static int place_of(const struct model_spec *s, enum module_id module)
{
    return module < MODULE_ATTENTION_NORM ? LAYER_BEFORE : s->n_layers;
}

struct parameter_id parameters_id(const struct model_spec *spec, enum module_id module,
                                  enum module_part part, int layer)
{
    return (struct parameter_id){ module, part,
                                  parameters_is_of_layers(module) ? layer
                                                                  : place_of(spec, module) };
}

struct parameter_id parameters_head(const struct model_spec *spec)
{
    enum module_id module = spec->tied_embeddings ? MODULE_EMBEDDING : MODULE_HEAD;

    return parameters_id(spec, module, PART_WEIGHT, spec->n_layers);
}

int parameters_index(struct parameter_id id)
{
    return ((id.layer - LAYER_BEFORE) * N_MODULES + (int)id.module) * N_MODULE_PARTS + (int)id.part;
}

int parameters_n_indices(const struct model_spec *spec)
{
    return (spec->n_layers + 2) * N_MODULES * N_MODULE_PARTS;
}

static int is_there(const struct model_spec *s, struct parameter_id id)
{
    const struct parameter_row *row = &rows[id.module];
    int is_place = parameters_is_of_layers(id.module) ? id.layer >= 0 && id.layer < s->n_layers
                                                      : id.layer == place_of(s, id.module);

    if (!is_place)
        return 0;
    if (row->has && !row->has(s, id.layer))
        return 0;
    return id.part == PART_WEIGHT || (row->has_bias && row->has_bias(s, id.layer));
}

void parameters_name(char name[PARAMETER_NAME_MAX], struct parameter_id id)
{
    static const char *const parts[N_MODULE_PARTS] = {
        [PART_WEIGHT] = "weight", [PART_BIAS] = "bias"
    };
    const char *module = parameters_module_name(id.module), *part = parts[id.part];

    if (parameters_is_of_layers(id.module))
        snprintf(name, PARAMETER_NAME_MAX, "layers.%d.%s.%s", id.layer, module, part);
    else
        snprintf(name, PARAMETER_NAME_MAX, "%s.%s", module, part);
}

static void set_shape(const struct model_spec *s, const struct parameter_row *row,
                      struct parameter_spec *out)
{
    int is_vector = out->id.part == PART_BIAS || row->inputs == NO_WIDTH;

    out->n_dims = is_vector ? 1 : 2;
    out->n_repeats = row->kind == PARAMETER_EXPERT ? s->n_experts : 1;
    for (int i = 0; i < MODULE_MAX_PIECES && row->outputs[i] != NO_WIDTH; i++) {
        out->pieces[out->n_pieces++] = width_of(s, row->outputs[i]);
        out->rows += out->n_repeats * out->pieces[i];
    }
    out->cols = is_vector ? 1 : width_of(s, row->inputs);
    /* What is divided by its inputs gives summands, to whose sum all of the bias is added. */
    out->divided = is_vector && row->divided == SPREAD_COLS ? SPREAD_SAME : row->divided;
}

/* What gives the hidden state writes to the residual stream. */
static void set_init(const struct model_spec *s, const struct parameter_row *row,
                     struct parameter_spec *out)
{
    int to_residual = row->outputs[0] == HIDDEN;

    if (out->role == PARAMETER_BIAS || out->role == PARAMETER_BALANCE ||
        out->role == PARAMETER_NORM) {
        out->init = out->role == PARAMETER_NORM ? INIT_ONES : INIT_ZEROS;
        return;
    }
    out->init = INIT_NORMAL;
    out->init_std = to_residual ? s->init_std / sqrt(2.0 * s->n_layers) : s->init_std;
}

int parameters_find(const struct model_spec *spec, struct parameter_id id,
                    struct parameter_spec *out)
{
    const struct parameter_row *row = &rows[id.module];

    if (!is_there(spec, id))
        return 0;
    *out = (struct parameter_spec){ .id = id, .kind = row->kind };
    out->role = id.part == PART_WEIGHT       ? row->role
                : id.module == MODULE_ROUTER ? PARAMETER_BALANCE
                                             : PARAMETER_BIAS;
    parameters_name(out->name, id);
    set_shape(spec, row, out);
    set_init(spec, row, out);
    return 1;
}

int parameters_of_layer(const struct model_spec *spec, int layer, struct parameter_spec *list)
{
    int n = 0;

    for (int module = 0; module < N_MODULES; module++)
        for (int part = 0; part < N_MODULE_PARTS; part++) {
            struct parameter_id id = { (enum module_id)module, (enum module_part)part, layer };

            n += parameters_find(spec, id, &list[n]);
        }
    return n;
}

int64_t parameters_piece_begin(const struct parameter_spec *parameter, int repeat, int piece)
{
    int64_t begin = parameter->rows / parameter->n_repeats * repeat;

    for (int i = 0; i < piece; i++)
        begin += parameter->pieces[i];
    return begin;
}

int64_t parameters_count(const struct model_spec *spec, int layer)
{
    struct parameter_spec list[LAYER_MAX_PARAMETERS];
    int n = parameters_of_layer(spec, layer, list);
    int64_t total = 0;

    for (int i = 0; i < n; i++)
        total += list[i].rows * list[i].cols;
    return total;
}

static int64_t count_matmul(const struct model_spec *s, const struct parameter_spec *q)
{
    if (q->role != PARAMETER_MATRIX && q->role != PARAMETER_ROUTER)
        return 0;
    return q->rows * q->cols / q->n_repeats *
           (q->kind == PARAMETER_EXPERT ? s->n_active_experts : 1);
}

int64_t parameters_count_matmul(const struct model_spec *spec, int layer)
{
    struct parameter_spec list[LAYER_MAX_PARAMETERS];
    int n = parameters_of_layer(spec, layer, list);
    int64_t total = 0;

    for (int i = 0; i < n; i++)
        total += count_matmul(spec, &list[i]);
    return total;
}

int64_t parameters_count_head(const struct model_spec *spec)
{
    struct parameter_spec head;

    CHECK(parameters_find(spec, parameters_head(spec), &head));
    return head.rows * head.cols;
}
