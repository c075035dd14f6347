/*
 * tuning.c - names and patterns
 */
#include "config/tuning.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "base/str.h"

const struct choice lora_bias_choices[] = { { "none", LORA_BIAS_NONE },
                                            { "all", LORA_BIAS_ALL },
                                            { "lora_only", LORA_BIAS_LORA_ONLY },
                                            { 0 } };

#define BIT(module) (1u << (module))
#define FFN (BIT(LORA_GATE) | BIT(LORA_UP) | BIT(LORA_DOWN))
#define EXPERTS (BIT(LORA_EXPERTS_GATE) | BIT(LORA_EXPERTS_UP) | BIT(LORA_EXPERTS_DOWN))
#define ALL_BUT_EXPERTS (BIT(LORA_EXPERTS_GATE) - 1)
#define HEADS (BIT(LORA_Q) | BIT(LORA_K) | BIT(LORA_V))

static const struct {
    const char *name;
    struct lora_target target;
} modules[N_LORA_MODULES] = {
    [LORA_Q] = { "q", { MODULE_QKV, 0 } },
    [LORA_K] = { "k", { MODULE_QKV, 1 } },
    [LORA_V] = { "v", { MODULE_QKV, 2 } },
    [LORA_QKV] = { "qkv", { MODULE_QKV, -1 } },
    [LORA_ATTENTION_OUT] = { "attention_out", { MODULE_ATTENTION_OUT, -1 } },
    [LORA_GATE] = { "gate", { MODULE_GATE_UP, 0 } },
    [LORA_UP] = { "up", { MODULE_GATE_UP, 1 } },
    [LORA_DOWN] = { "down", { MODULE_DOWN, -1 } },
    [LORA_EXPERTS_GATE] = { "experts.gate", { MODULE_EXPERTS_GATE_UP, 0 } },
    [LORA_EXPERTS_UP] = { "experts.up", { MODULE_EXPERTS_GATE_UP, 1 } },
    [LORA_EXPERTS_DOWN] = { "experts.down", { MODULE_EXPERTS_DOWN, -1 } },
};

/* What others call them. HEADS: one pair for all of qkv where the model packs them. */
static const struct {
    const char *name;
    unsigned modules;
    int is_packed;
    const char *family; /* only there; before what it is elsewhere */
} names[] = {
    { "w1", BIT(LORA_UP), 0, "qwen" },
    { "w2", BIT(LORA_GATE), 0, "qwen" },
    { "fused_qkv", HEADS, 1, NULL },
    { "query_key_value", HEADS, 1, NULL },
    { "dense", BIT(LORA_ATTENTION_OUT), 0, "bloom" },
    { "dense_h_to_4h", BIT(LORA_UP), 0, NULL },
    { "dense_4h_to_h", BIT(LORA_DOWN), 0, NULL },
    { "q", BIT(LORA_Q), 0, NULL },
    { "k", BIT(LORA_K), 0, NULL },
    { "v", BIT(LORA_V), 0, NULL },
    { "qkv", HEADS, 0, NULL },
    { "attention_out", BIT(LORA_ATTENTION_OUT), 0, NULL },
    { "gate", BIT(LORA_GATE), 0, NULL },
    { "up", BIT(LORA_UP), 0, NULL },
    { "gate_up", BIT(LORA_GATE) | BIT(LORA_UP), 0, NULL },
    { "down", BIT(LORA_DOWN), 0, NULL },
    { "q_proj", BIT(LORA_Q), 0, NULL },
    { "k_proj", BIT(LORA_K), 0, NULL },
    { "v_proj", BIT(LORA_V), 0, NULL },
    { "o_proj", BIT(LORA_ATTENTION_OUT), 0, NULL },
    { "gate_proj", BIT(LORA_GATE), 0, NULL },
    { "up_proj", BIT(LORA_UP), 0, NULL },
    { "down_proj", BIT(LORA_DOWN), 0, NULL },
    { "c_attn", HEADS, 1, NULL },
    { "attn.c_proj", BIT(LORA_ATTENTION_OUT), 0, NULL },
    { "mlp.c_proj", BIT(LORA_DOWN), 0, NULL },
    { "c_proj", BIT(LORA_ATTENTION_OUT) | BIT(LORA_DOWN), 0, NULL },
    { "c_fc", BIT(LORA_UP), 0, NULL },
    { "W_pack", HEADS, 1, NULL },
    { "wqkv", HEADS, 1, NULL },
    { "wo", BIT(LORA_ATTENTION_OUT), 0, NULL },
    { "w1", BIT(LORA_GATE), 0, NULL },
    { "w3", BIT(LORA_UP), 0, NULL },
    { "w2", BIT(LORA_DOWN), 0, NULL },
    { "experts", EXPERTS, 0, NULL },
    { "experts.gate", BIT(LORA_EXPERTS_GATE), 0, NULL },
    { "experts.up", BIT(LORA_EXPERTS_UP), 0, NULL },
    { "experts.gate_up", BIT(LORA_EXPERTS_GATE) | BIT(LORA_EXPERTS_UP), 0, NULL },
    { "experts.down", BIT(LORA_EXPERTS_DOWN), 0, NULL },
    { "experts.gate_proj", BIT(LORA_EXPERTS_GATE), 0, NULL },
    { "experts.up_proj", BIT(LORA_EXPERTS_UP), 0, NULL },
    { "experts.down_proj", BIT(LORA_EXPERTS_DOWN), 0, NULL },
    { "experts.w1", BIT(LORA_EXPERTS_GATE), 0, NULL },
    { "experts.w3", BIT(LORA_EXPERTS_UP), 0, NULL },
    { "experts.w2", BIT(LORA_EXPERTS_DOWN), 0, NULL },
    { "all", ALL_BUT_EXPERTS, 0, NULL },
    { "all-linear", ALL_BUT_EXPERTS, 0, NULL },
};

#define N_NAMES (sizeof names / sizeof *names)

/* Families that keep q, k and v in one matrix, and what they call all that can be adapted. */
static const struct {
    const char *family, *names;
} packing[] = {
    { "gpt2", "c_attn, attn.c_proj, c_fc, mlp.c_proj" },
    { "baichuan", "W_pack, o_proj, gate_proj, up_proj, down_proj" },
    { "internlm2", "wqkv, wo, w1, w3, w2" },
    { "qwen", "c_attn, attn.c_proj, w2, w1, mlp.c_proj" },
    { "bloom", "query_key_value, dense, dense_h_to_4h, dense_4h_to_h" },
};

static const char *packing_names(const char *family)
{
    for (size_t i = 0; family && i < sizeof packing / sizeof *packing; i++)
        if (!strcmp(packing[i].family, family))
            return packing[i].names;
    return NULL;
}

int lora_family_packs(const char *family)
{
    return packing_names(family) != NULL;
}

struct lora_target lora_target_of(const struct model_spec *spec, int layer, enum lora_module module)
{
    if ((FFN & BIT(module)) && model_spec_has_experts(spec, layer))
        return (struct lora_target){ module == LORA_DOWN ? MODULE_SHARED_DOWN
                                                         : MODULE_SHARED_GATE_UP,
                                     modules[module].target.piece };
    if (module == LORA_UP && spec->activation != ACTIVATION_SWIGLU)
        return (struct lora_target){ MODULE_UP, -1 };
    return modules[module].target;
}

int lora_is_of_experts(enum lora_module module)
{
    return (EXPERTS & BIT(module)) != 0;
}

int lora_n_pairs(const struct model_spec *spec, enum lora_module module)
{
    return lora_is_of_experts(module) ? spec->n_experts : 1;
}

void lora_name(char name[PARAMETER_NAME_MAX], int layer, enum lora_module module,
               enum lora_matrix matrix)
{
    snprintf(name, PARAMETER_NAME_MAX, "layers.%d.%s.lora_%c", layer, modules[module].name,
             matrix == LORA_A ? 'a' : 'b');
}

int lora_parse_name(const char *name, int *layer, enum lora_module *module,
                    enum lora_matrix *matrix)
{
    char own[PARAMETER_NAME_MAX];

    if (sscanf(name, "layers.%d.", layer) != 1)
        return 0;
    for (int m = 0; m < N_LORA_MODULES * N_LORA_MATRICES; m++) {
        *module = (enum lora_module)(m / N_LORA_MATRICES);
        *matrix = (enum lora_matrix)(m % N_LORA_MATRICES);
        lora_name(own, *layer, *module, *matrix);
        if (!strcmp(own, name))
            return 1;
    }
    return 0;
}

struct lora_place tuning_place(const struct tuning *tuning, int layer, enum lora_module module)
{
    if (!tuning || !tuning->has_lora)
        return (struct lora_place){ 0 };
    CHECK(layer >= 0);
    CHECK(layer < tuning->n_layers);
    return tuning->places[layer * N_LORA_MODULES + (int)module];
}

static int matches(const struct job_texts *patterns, const char *name)
{
    for (int i = 0; i < patterns->n; i++)
        if (fnmatch(patterns->values[i], name, 0) == 0)
            return 1;
    return 0;
}

int tuning_is_adapter(const char *name)
{
    return str_ends_with(name, ".lora_a") || str_ends_with(name, ".lora_b");
}

/* Of the adapted matrix, or of each expert's, what this adapter is around: the piece, or all. */
static struct parameter_spec take_piece(struct parameter_spec of, int piece)
{
    if (piece < 0)
        return of;
    of.pieces[0] = of.pieces[piece];
    of.rows = of.pieces[0] * of.n_repeats;
    of.n_pieces = 1;
    return of;
}

static void shape_a(struct parameter_spec *q, const struct parameter_spec *of, int rank)
{
    q->pieces[0] = rank;
    q->rows = (int64_t)rank * q->n_repeats;
    q->n_pieces = 1;
    q->divided = of->divided == SPREAD_COLS ? SPREAD_COLS : SPREAD_SAME;
    q->init = INIT_UNIFORM;
    q->init_std = 1 / sqrt((double)of->cols);
}

static void shape_b(struct parameter_spec *q, const struct parameter_spec *of, int rank)
{
    q->cols = rank;
    q->divided = of->divided == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME;
    q->init = INIT_ZEROS;
    q->init_std = 0;
}

int tuning_adapter(const struct tuning *tuning, const struct model_spec *spec, int layer,
                   enum lora_module module, enum lora_matrix matrix, struct parameter_spec *out)
{
    int rank = tuning_place(tuning, layer, module).rank;
    struct lora_target target = lora_target_of(spec, layer, module);
    struct parameter_spec of;

    if (!rank ||
        !parameters_find(spec, parameters_id(spec, target.module, PART_WEIGHT, layer), &of))
        return 0;
    of = take_piece(of, target.piece);
    *out = of;
    out->role = PARAMETER_ADAPTER;
    lora_name(out->name, layer, module, matrix);
    (matrix == LORA_A ? shape_a : shape_b)(out, &of, rank);
    return 1;
}

/* Whether the layer's matrix that this is the bias of has an adapter. */
static int is_adapted(const struct tuning *t, struct parameter_id id)
{
    if (!parameters_is_of_layers(id.module))
        return 0;
    for (int m = 0; m < N_LORA_MODULES; m++) {
        int is_of_it =
            modules[m].target.module == id.module || (m == LORA_UP && id.module == MODULE_UP);

        if (is_of_it && tuning_place(t, id.layer, (enum lora_module)m).rank)
            return 1;
    }
    return 0;
}

/* By the patterns. */
static int is_chosen(const struct tuning *t, const char *name)
{
    return (!t->only.n || matches(&t->only, name)) && !matches(&t->freeze, name);
}

int tuning_balances(const struct tuning *t, const struct parameter_spec *q)
{
    return q->role == PARAMETER_BALANCE && (!t || (!t->has_lora && is_chosen(t, q->name)));
}

int tuning_trains(const struct tuning *t, const struct parameter_spec *q)
{
    if (q->role == PARAMETER_BALANCE)
        return 0;
    if (!t)
        return 1;
    if (!t->has_lora)
        return is_chosen(t, q->name);
    if (q->role == PARAMETER_ADAPTER || (t->saved & BIT(q->id.module)))
        return 1;
    if (t->bias == LORA_BIAS_NONE || q->role != PARAMETER_BIAS)
        return 0;
    return t->bias == LORA_BIAS_ALL || is_adapted(t, q->id);
}

int tuning_trains_id(const struct tuning *tuning, const struct model_spec *spec,
                     struct parameter_id id)
{
    struct parameter_spec q;

    return parameters_find(spec, id, &q) && tuning_trains(tuning, &q);
}

/* Parameters of the model that a pattern matches, or, without patterns, that are trained. */
static int count(const struct tuning *t, const struct model_spec *spec,
                 const struct job_texts *patterns)
{
    struct parameter_spec list[LAYER_MAX_PARAMETERS];
    int n = 0;

    for (int layer = LAYER_BEFORE; layer <= spec->n_layers; layer++)
        for (int i = 0, k = parameters_of_layer(spec, layer, list); i < k; i++)
            n += patterns ? matches(patterns, list[i].name) : tuning_trains(t, &list[i]);
    return n;
}

static const char *idle_pattern(const struct tuning *t, const struct model_spec *spec)
{
    const struct job_texts *lists[] = { &t->only, &t->freeze };

    for (int k = 0; k < 2; k++)
        for (int i = 0; i < lists[k]->n; i++) {
            struct job_texts one = { &lists[k]->values[i], 1 };

            if (!count(t, spec, &one))
                return lists[k]->values[i];
        }
    return NULL;
}

int tuning_check(const struct tuning *tuning, const struct model_spec *spec, struct err *err)
{
    const char *idle = idle_pattern(tuning, spec);

    if (idle)
        return err_set(err, ERR_CONFIG,
                       "train.only or train.freeze has %.100s, which matches no parameter (hint: "
                       "such as %s.weight, layers.*.%s.weight)",
                       idle, parameters_module_name(MODULE_EMBEDDING),
                       parameters_module_name(MODULE_QKV));
    if (!tuning->has_lora && !count(tuning, spec, NULL))
        return err_set(err, ERR_CONFIG, "train.freeze leaves no parameter that is trained");
    return 0;
}

struct job_texts lora_targets(const struct tuning *t, struct arena *arena)
{
    const char **values = arena_array(arena, const char *, N_LORA_MODULES);
    int n = 0;

    for (int m = 0; m < N_LORA_MODULES; m++) {
        int is = 0;

        for (int layer = 0; layer < t->n_layers; layer++)
            is |= tuning_place(t, layer, (enum lora_module)m).rank > 0;
        if (is)
            values[n++] = m == LORA_QKV ? "fused_qkv" : modules[m].name;
    }
    return (struct job_texts){ values, n };
}

/* Whether a target's name says that the model keeps q, k and v in one matrix. */
static int lora_name_is_packed(const char *name)
{
    for (size_t i = 0; i < N_NAMES; i++)
        if (!strcmp(names[i].name, name))
            return names[i].is_packed;
    return 0;
}

/*
 * What a target's name stands for in this model: a set of 1 << module, 0 if it means nothing here.
 * Names are peft's users' (q_proj, c_attn, ...), ours (q, qkv, gate_up, ...), and `all`. packed:
 * qkv has one pair where a name stands for all of it. family (of Hugging Face; NULL: not known)
 * says which is meant where two call different matrices alike.
 */
static unsigned lora_find_modules(const struct model_spec *spec, const char *family,
                                  const char *name, int packed)
{
    unsigned set = 0;

    for (size_t i = 0; i < N_NAMES && !set; i++)
        if (!strcmp(names[i].name, name) &&
            (!names[i].family || (family && !strcmp(names[i].family, family))))
            set = names[i].modules;
    if (spec->activation != ACTIVATION_SWIGLU)
        set &= ~BIT(LORA_GATE);
    if (!spec->n_experts)
        set &= ~EXPERTS;
    if (!(set & ~BIT(LORA_QKV)))
        return 0;
    if (packed)
        return (set & HEADS) == HEADS ? (set & ~HEADS) | BIT(LORA_QKV) : set & HEADS ? 0 : set;
    return set & ~BIT(LORA_QKV);
}

double lora_scale(double alpha, int rank, int rslora)
{
    return rslora ? alpha / sqrt((double)rank) : alpha / (double)rank;
}

/* Ours of what peft's users save whole. */
static const struct {
    const char *name;
    enum module_id module;
} saveable[] = {
    { "embed_tokens", MODULE_EMBEDDING },
    { "wte", MODULE_EMBEDDING },
    { "tok_embeddings", MODULE_EMBEDDING },
    { "word_embeddings", MODULE_EMBEDDING },
    { "embedding", MODULE_EMBEDDING },
    { "lm_head", MODULE_HEAD },
    { "head", MODULE_HEAD },
    { "output", MODULE_HEAD },
    { "wpe", MODULE_POSITION },
    { "position", MODULE_POSITION },
    { "norm", MODULE_FINAL_NORM },
    { "ln_f", MODULE_FINAL_NORM },
    { "final_norm", MODULE_FINAL_NORM },
    { "input_layernorm", MODULE_ATTENTION_NORM },
    { "attention_norm", MODULE_ATTENTION_NORM },
    { "ln_1", MODULE_ATTENTION_NORM },
    { "post_attention_layernorm", MODULE_FFN_NORM },
    { "ffn_norm", MODULE_FFN_NORM },
    { "ln_2", MODULE_FFN_NORM },
};

#define N_SAVEABLE (sizeof saveable / sizeof *saveable)

/* N_MODULES if the model has nothing of this name. */
static enum module_id find_saveable(const struct model_spec *spec, const char *name)
{
    struct parameter_spec found;

    for (size_t k = 0; k < N_SAVEABLE; k++)
        if (!strcmp(saveable[k].name, name)) {
            enum module_id module = saveable[k].module;

            if (module == MODULE_HEAD)
                return parameters_head(spec).module;
            return parameters_find(spec, parameters_id(spec, module, PART_WEIGHT, 0), &found)
                       ? module
                       : N_MODULES;
        }
    return N_MODULES;
}

static int find_saved(struct tuning *t, const struct model_spec *spec,
                      const struct job_texts *wanted, struct err *err)
{
    for (int i = 0; i < wanted->n; i++) {
        enum module_id module = find_saveable(spec, wanted->values[i]);

        if (module == N_MODULES)
            return err_set(err, ERR_CONFIG,
                           "lora.modules_to_save has %.64s, which this model does not have (hint: "
                           "embed_tokens, lm_head, norm, input_layernorm, "
                           "post_attention_layernorm)",
                           wanted->values[i]);
        t->saved |= BIT(module);
    }
    return 0;
}

/* A packed matrix has one bias: all its parts must be adapted, or none. */
static int check_biases(const struct model_spec *spec, unsigned set, enum lora_bias bias,
                        struct err *err)
{
    unsigned heads = set & HEADS, gates = set & (BIT(LORA_GATE) | BIT(LORA_UP));
    int gated = spec->activation == ACTIVATION_SWIGLU && spec->bias;

    if (bias != LORA_BIAS_LORA_ONLY)
        return 0;
    if ((heads && heads != HEADS && model_spec_has_qkv_bias(spec)) ||
        (gated && gates && gates != (BIT(LORA_GATE) | BIT(LORA_UP))))
        return err_set(err, ERR_CONFIG,
                       "lora.bias is lora_only, but of a packed bias only some parts are adapted "
                       "(hint: targets q, k and v together, gate and up together; or bias: all)");
    return 0;
}

static int no_target(const struct model_spec *spec, const struct lora_wish *wish, const char *name,
                     int packed, struct err *err)
{
    const char *theirs = packing_names(wish->family);

    for (size_t k = 0; k < N_SAVEABLE; k++)
        if (!strcmp(saveable[k].name, name))
            return err_set(
                err, ERR_CONFIG,
                "lora.targets has %.64s, but only the layers' matrices can have adapters "
                "(hint: lora.modules_to_save: [%.64s], which trains it whole)",
                name, name);
    if (!theirs)
        theirs = packed ? packing[0].names
                 : spec->activation == ACTIVATION_SWIGLU
                     ? "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
                     : "q, k, v, attention_out, up, down";
    return err_set(err, ERR_CONFIG,
                   "lora.targets has %.64s, which this model does not have (hint: %s, or all)",
                   name, theirs);
}

/* FFN's as experts'. */
static unsigned of_experts(unsigned set)
{
    return (set & BIT(LORA_GATE) ? BIT(LORA_EXPERTS_GATE) : 0) |
           (set & BIT(LORA_UP) ? BIT(LORA_EXPERTS_UP) : 0) |
           (set & BIT(LORA_DOWN) ? BIT(LORA_EXPERTS_DOWN) : 0);
}

/* Whether a layer's FFN is nothing but experts that tokens are routed to. */
static int has_only_experts(const struct model_spec *spec, int layer)
{
    return model_spec_has_experts(spec, layer) && !model_spec_has_shared(spec, layer);
}

/* Whether some layer's is not. */
static int has_wide_matrices(const struct model_spec *spec)
{
    int n = 0;

    for (int layer = 0; layer < spec->n_layers; layer++)
        n += !has_only_experts(spec, layer);
    return n > 0;
}

/* Whether the layer has a matrix that the module, as a set of one, names. */
static int is_of_layer(const struct model_spec *spec, int layer, unsigned module)
{
    if (module & EXPERTS)
        return model_spec_has_experts(spec, layer);
    return !(module & FFN) || !has_only_experts(spec, layer);
}

int tuning_make_lora(struct tuning *out, const struct model_spec *spec,
                     const struct lora_wish *wish, struct arena *arena, struct err *err)
{
    struct tuning t = {
        .has_lora = 1, .bias = wish->bias, .dropout = wish->dropout, .n_layers = spec->n_layers
    };
    double alpha = wish->alpha > 0 ? wish->alpha : 2.0 * wish->rank;
    struct lora_place *places =
        arena_array(arena, struct lora_place, spec->n_layers * N_LORA_MODULES);
    int packed = wish->packed;
    unsigned set = 0;

    for (int i = 0; i < wish->targets.n; i++)
        packed |= lora_name_is_packed(wish->targets.values[i]);
    for (int i = 0; i < wish->targets.n; i++) {
        unsigned found = lora_find_modules(spec, wish->family, wish->targets.values[i], packed);

        if (!found)
            return no_target(spec, wish, wish->targets.values[i], packed, err);
        set |= !(found & ~FFN) && !has_wide_matrices(spec) ? of_experts(found) : found;
    }
    if ((set & EXPERTS) && wish->dropout > 0)
        return err_set(err, ERR_CONFIG,
                       "lora.targets has matrices of experts, whose adapters have no dropout, and "
                       "lora.dropout is %g (hint: lora.dropout: 0)",
                       wish->dropout);
    if (check_biases(spec, set, wish->bias, err) < 0 || find_saved(&t, spec, &wish->saved, err) < 0)
        return -1;
    for (int i = 0; i < spec->n_layers * N_LORA_MODULES; i++)
        if ((set & BIT(i % N_LORA_MODULES)) &&
            is_of_layer(spec, i / N_LORA_MODULES, BIT(i % N_LORA_MODULES)))
            places[i] =
                (struct lora_place){ wish->rank, lora_scale(alpha, wish->rank, wish->rslora) };
    t.places = places;
    *out = t;
    return 0;
}
