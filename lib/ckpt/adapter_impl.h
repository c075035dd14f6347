/*
 * adapter_impl.h - an open adapter, shared by adapter.c (what is there), adapter_config.c and
 * adapter_read.c
 */
#ifndef CKPT_ADAPTER_IMPL_H
#define CKPT_ADAPTER_IMPL_H

#include "ckpt/adapter.h"
#include "ckpt/safetensors.h"

#define ADAPTER_PREFIX "base_model.model."
#define ADAPTER_CONFIG "adapter_config.json"
#define ADAPTER_TENSORS "adapter_model.safetensors"
#define ADAPTER_PICKLE "adapter_model.bin"

/* What to do with an adapter that is not read here but that peft can fold into the model. */
#define ADAPTER_MERGE_HINT \
    "in peft merge_and_unload() and save_pretrained() of that model, which needs no adapter here"

/* What adapter_config.json says. */
struct adapter_config {
    int rslora;
    double alpha;
    int n_patterns; /* of alpha_pattern */
    const char **patterns;
    double *alphas;
    int rank;            /* r; 0: it says none */
    int n_rank_patterns; /* of rank_pattern; -1: one of them is not understood */
    const char **rank_patterns;
    int *ranks;
    const char *base;
};

struct adapter {
    struct arena arena;
    const char *path;
    struct model_spec spec;
    struct tuning tuning;
    struct hf_names names;
    const char *tokenizer;
    /* Of a peft folder: */
    struct safetensors *file;
    const struct safetensors_tensor *(*pairs)[2];   /* A and B, by adapter_pair */
    const struct safetensors_tensor **replacements; /* by the names' tensors; NULL: none */
    /* or of a checkpoint: */
    struct store *store;
};

/* Read path/adapter_config.json; all of *config lives in the arena. ERR_DATA. */
int adapter_config_read(struct adapter_config *config, const char *path, struct arena *arena,
                        struct err *err);

/* alpha of the module of this name. */
double adapter_config_alpha(const struct adapter_config *config, const char *module);

/* The rank that it says the module of this name has, and which of its keys says so; 0: none
 * does. */
int adapter_config_rank(const struct adapter_config *config, const char *module, const char **key);

/* Where in `pairs` a module of a layer has its own, or that of one of its experts. */
static inline int64_t adapter_pair(const struct adapter *a, int layer, enum lora_module module,
                                   int expert)
{
    int64_t most = a->spec.n_experts > 1 ? a->spec.n_experts : 1;

    return ((int64_t)layer * N_LORA_MODULES + (int)module) * most + expert;
}

/*
 * The HF tensor that has a module of a layer, or of one of its experts (else expert is 0); NULL
 * where the family has none. With pairs for parts of a matrix that the family keeps whole there is
 * none, nor the other way round, nor for experts that it keeps in one tensor.
 */
const struct hf_tensor *adapter_module(const struct hf_names *names, const struct model_spec *spec,
                                       int layer, enum lora_module module, int expert);

#endif
