/*
 * tuning.h - which parameters a job trains, and where it adds low-rank adapters
 *
 * Parameters are named as in model/model.h. Without adapters all are trained but those that patterns
 * (fnmatch's: *, ?, [...]) leave out. With adapters (Hu et al. 2021) each adapted matrix W [n x k]
 * computes x W' + scale (dropout(x) A') B', and A [rank x k] and B [n x rank] are trained, with
 * them biases and modules that the job names; all else is frozen.
 *
 * A place for an adapter is a module of a layer. Of our packed matrices (qkv: q, k, v heads one
 * after the other; gate_up) each part has its own pair of A and B, as in models that keep them
 * apart; or, as in those that pack them too (GPT-2), qkv has one pair as a whole.
 */
#ifndef CONFIG_TUNING_H
#define CONFIG_TUNING_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "config/model_spec.h"

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
    N_LORA_MODULES
};

enum lora_bias { LORA_BIAS_NONE, LORA_BIAS_ALL, LORA_BIAS_LORA_ONLY };

/* An adapter's; rank 0: there is none. */
struct lora_place {
    int rank;
    double scale; /* alpha / rank, or alpha / sqrt(rank) */
};

struct tuning {
    struct job_texts only, freeze; /* patterns; none: all, nothing */
    int has_lora;
    struct job_texts saved; /* with adapters: patterns of what is trained besides */
    enum lora_bias bias;
    double dropout;                  /* of what A reads */
    const struct lora_place *places; /* [n_layers][N_LORA_MODULES] */
    int n_layers;
};

/* "q", "attention_out", ...: adapters' tensors are layers.N.NAME.lora_a and .lora_b. */
const char *lora_module_name(enum lora_module module);

/* The matrix of a layer that it is a part of: "qkv". */
const char *lora_module_matrix(enum lora_module module);

/* Which part of that, counted from 0; -1: all of it. */
int lora_module_part(enum lora_module module);

/* The adapter there, rank 0 if there is none. tuning may be NULL. */
struct lora_place tuning_place(const struct tuning *tuning, int layer, enum lora_module module);

/* Whether the parameter of this name is trained. tuning may be NULL: all are. */
int tuning_trains(const struct tuning *tuning, const char *name);

/* The pattern of only or freeze that none of these n names matches; NULL: all match some. */
const char *tuning_idle_pattern(const struct tuning *tuning, const char *const *names, int n);

/* Whether it is one of an adapter's pair. */
int tuning_is_adapter(const char *name);

/* Whether models of this family (may be NULL) keep q, k and v in one matrix. */
int lora_family_packs(const char *family);

/* Our names of all modules that have adapters: as targets they mean the same whatever the family. */
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
 * The tuning of a model by adapters. Experts have none: of a mixture, names of feed-forward matrices
 * mean those of its other layers. Returns 0, or -1 and ERR_CONFIG: a target or a module to save that
 * the model does not have, or only in experts.
 */
int tuning_make_lora(struct tuning *tuning, const struct model_spec *spec,
                     const struct lora_wish *wish, struct arena *arena, struct err *err);

#endif
