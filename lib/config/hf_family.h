/*
 * hf_family.h - families of Hugging Face that are described, not programmed
 *
 * A model_type that hf_families.c has no function for may be of a known shape under other names.
 * Then configs/families/MODEL_TYPE.yaml (on disk, else in the binary; in small letters) says so:
 *
 *     like: llama                          a family that is built in: its config.json, its tensors
 *     keys: {num_hidden_layers: n_layer}   keys of its config.json, and what they are called here
 *     names: {self_attn.q_proj: attn.wq}   parts of its tensors' names, and what they are here
 *     model: {attention_bias: qkv}         fields of a job's model that config.json does not say
 *     ignore: [mup_base_width]             keys of its config.json that change nothing of the model
 *
 * A part of a name stands between dots or at an end. The first pair that fits a place is taken. A
 * key that neither the family nor this file reads is refused, unless it is known to change nothing.
 */
#ifndef CONFIG_HF_FAMILY_H
#define CONFIG_HF_FAMILY_H

#include "base/arena.h"
#include "base/err.h"
#include "base/yaml.h"

struct hf_family {
    const char *model_type;                       /* as it was asked for, in small letters */
    const char *like;                             /* the same where nothing is described */
    const struct yaml_node *keys, *names, *model; /* maps of scalars, or NULL */
    const struct yaml_node *ignore;               /* a list of scalars, or NULL */
};

/*
 * The family of this name; one without a description is like itself. All of it lives in the arena.
 * Returns 0, or -1 and ERR_CONFIG where a description says what none can.
 */
int hf_family_read(struct hf_family *family, const char *model_type, struct arena *arena,
                   struct err *err);

/* The described family's name for a tensor that family->like calls `name`. */
const char *hf_family_rename(const struct hf_family *family, const char *name, struct arena *arena);

#endif
