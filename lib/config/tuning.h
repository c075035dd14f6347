/*
 * tuning.h - which parameters a job trains, and where it adds low-rank adapters
 *
 * Parameters are named as in parameters.h. Without adapters all are trained but those that patterns
 * (fnmatch's: *, ?, [...]) leave out. With adapters (Hu et al. 2021) each adapted matrix W [n x k]
 * computes x W' + scale (dropout(x) A') B', and A [rank x k] and B [n x rank] are trained, with
 * them biases and modules that the job names; all else is frozen.
 *
 * A place for an adapter is a module of a layer. Of our packed matrices (qkv: q, k, v heads one
 * after the other; gate_up) each part has its own pair of A and B, as in models that keep them
 * apart; or, as in those that pack them too (GPT-2), qkv has one pair as a whole. Of experts each
 * has its own pair: A and B are those of all experts, one below the other.
 */
#ifndef CONFIG_TUNING_H
#define CONFIG_TUNING_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "config/parameters.h"

/* A list of texts in the job's arena. */
struct job_texts {
    const char *const *values;
    int n;
};

enum lora_module {
    LORA_Q,
    LORA_K,
    LORA_V,
    LORA_QKV, /* all three as one */
    LORA_ATTENTION_OUT,
    LORA_GATE,
    LORA_UP,
    LORA_DOWN,
    LORA_EXPERTS_GATE, /* of each expert that tokens are routed to */
    LORA_EXPERTS_UP,
    LORA_EXPERTS_DOWN,
    N_LORA_MODULES
};

enum lora_bias { LORA_BIAS_NONE, LORA_BIAS_ALL, LORA_BIAS_LORA_ONLY };
extern const struct choice lora_bias_choices[]; /* peft has the same names */

/* An adapter's; rank 0: there is none. */
struct lora_place {
    int rank;
    double scale; /* alpha / rank, or alpha / sqrt(rank) */
};

struct tuning {
    struct job_texts only, freeze; /* patterns; none: all, nothing */
    int has_lora;
    unsigned saved; /* with adapters: a set of 1 << module, of what is trained besides */
    enum lora_bias bias;
    double dropout;                  /* of what A reads */
    const struct lora_place *places; /* [n_layers][N_LORA_MODULES] */
    int n_layers;
};

/* What is adapted: a piece of a layer's matrix, or, piece -1, all of it. */
struct lora_target {
    enum module_id module;
    int piece;
};
struct lora_target lora_target_of(const struct model_spec *spec, int layer,
                                  enum lora_module module);

/* Whether each expert has a pair of its own, and how many pairs a layer then has; else it is 1. */
int lora_is_of_experts(enum lora_module module);
int lora_n_pairs(const struct model_spec *spec, enum lora_module module);

/* "layers.N.q.lora_a": write the name of an adapter's matrix; read one back, 0 if it is none. */
enum lora_matrix { LORA_A, LORA_B, N_LORA_MATRICES };
#define LAYER_MAX_ADAPTERS (N_LORA_MODULES * N_LORA_MATRICES)
void lora_name(char name[PARAMETER_NAME_MAX], int layer, enum lora_module module,
               enum lora_matrix matrix);
int lora_parse_name(const char *name, int *layer, enum lora_module *module,
                    enum lora_matrix *matrix);

/* Whether it is the name of an adapter's matrix. */
int tuning_is_adapter(const char *name);

/* The adapter there, rank 0 if there is none. tuning may be NULL. */
struct lora_place tuning_place(const struct tuning *tuning, int layer, enum lora_module module);

/*
 * Fill *out with the adapter's A or B as a parameter: A begins as torch's linear layers do, B with
 * zeros; ranks that share a model divide B's rows as those of the adapted matrix, or, where they
 * divide its columns, A's. Returns 0 where there is not an adapter. tuning may be NULL.
 */
int tuning_adapter(const struct tuning *tuning, const struct model_spec *spec, int layer,
                   enum lora_module module, enum lora_matrix matrix, struct parameter_spec *out);

/* Whether the parameter is trained. tuning may be NULL: all are. */
int tuning_trains(const struct tuning *tuning, const struct parameter_spec *parameter);

/* Whether a step changes a bias that balances experts: those that are not frozen do, but those of a
 * model that gets adapters. */
int tuning_balances(const struct tuning *tuning, const struct parameter_spec *parameter);

/* The same of one of the model's own; 0 if it has none such. */
int tuning_trains_id(const struct tuning *tuning, const struct model_spec *spec,
                     struct parameter_id id);

/* 0 if each pattern of only and freeze matches some parameter of the model, and some parameter is
 * trained; else -1 and ERR_CONFIG. */
int tuning_check(const struct tuning *tuning, const struct model_spec *spec, struct err *err);

/* Whether models of this family (may be NULL) keep q, k and v in one matrix. */
int lora_family_packs(const char *family);

/* Our names of all modules that have adapters: as targets they mean the same whatever the
 * family. */
struct job_texts lora_targets(const struct tuning *tuning, struct arena *arena);

/* What the job wants of adapters. */
struct lora_wish {
    int rank;
    double alpha; /* 0: 2 rank */
    double dropout;
    int rslora;
    enum lora_bias bias;
    struct job_texts targets, saved;
    int packed;         /* qkv is one matrix in the model's family */
    const char *family; /* of Hugging Face; NULL: not known */
};

/* alpha / rank, or alpha / sqrt(rank). */
double lora_scale(double alpha, int rank, int rslora);

/*
 * The tuning of a model by adapters. In a mixture, names of FFN matrices mean those of shared
 * experts and of its other layers; where it has neither, those of each expert, which the names that
 * begin with experts mean in any case. `all` does not include experts. Returns 0, or -1 and
 * ERR_CONFIG: a target or a module to save that the model does not have, or experts with dropout.
 */
int tuning_make_lora(struct tuning *tuning, const struct model_spec *spec,
                     const struct lora_wish *wish, struct arena *arena, struct err *err);

#endif
