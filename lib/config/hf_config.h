/*
 * hf_config.h - a model's shape as the config.json of a Hugging Face folder
 *
 * Reading one is job.h's: a folder is a value of the key model. Families are called by their
 * model_type, "llama" and so on.
 */
#ifndef CONFIG_HF_CONFIG_H
#define CONFIG_HF_CONFIG_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"
#include "config/model_spec.h"

#define HF_CONFIG_MAX_BYTES ((size_t)4 << 20)

/*
 * The model_type that a folder's config.json names, in the arena; NULL with ERR_DATA if the file
 * cannot be read or names none.
 */
const char *hf_config_family(const char *folder, struct arena *arena, struct err *err);

/* The family that has such models, the plainest of several; NULL if there is none. */
const char *hf_config_family_of(const struct model_spec *spec);

/* Add a config.json, in transformers 4's spelling, which 5 reads as well. ERR_CONFIG if the family
 * has no such model. */
int hf_config_print(const struct model_spec *spec, const char *family, enum dtype dtype,
                    struct str *out, struct err *err);

/* What is another in a model's config.json once its weights were converted. */
struct hf_config_changes {
    int dtype;      /* of the weights; -1: as it is */
    int vocab_size; /* 0: as it is */
    int is_plain;   /* the weights are no longer quantized */
    int is_untied;  /* the weights have a head of their own, whatever it said */
};

/* Add the text of a config.json (n_bytes) with changes. */
int hf_config_print_changed(const char *text, size_t n_bytes,
                            const struct hf_config_changes *changes, struct str *out,
                            struct err *err);

#endif
