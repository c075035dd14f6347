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

/*
 * The model that the text of a config.json is of, as a job would read it. ERR_CONFIG where it is of
 * a family, or has something, that lmtrain does not have.
 */
int hf_config_parse(struct model_spec *spec, const char *text, size_t n_bytes, struct arena *arena,
                    struct err *err);

/* The family that has such models, the plainest of several. NULL if there is none: ERR_CONFIG,
 * which names the nearest and the fields that it lacks. */
const char *hf_config_family_of(const struct model_spec *spec, struct err *err);

/*
 * Add a config.json, in transformers 4's spelling, which 5 reads as well. ERR_CONFIG if the family
 * has no such model, naming the fields: what was printed reads back as a model that computes the
 * same. What only training looks at may be lost (hf_config_unsaid).
 */
int hf_config_print(const struct model_spec *spec, const char *family, enum dtype dtype,
                    struct str *out, struct err *err);

/*
 * Fields that only training looks at, and that the config.json of such a model of the family cannot
 * say: "model.dropout 0.1" is added. Returns how many.
 */
int hf_config_unsaid(const struct model_spec *spec, const char *family, struct str *out);

/* What is another in a model's config.json once its weights were converted. */
struct hf_config_changes {
    int dtype;                       /* of the weights; -1: as it is */
    int vocab_size;                  /* 0: as it is */
    int is_plain;                    /* the weights are not quantized, whatever it said */
    int is_untied;                   /* the weights have a head of their own, whatever it said */
    const struct model_spec *scaled; /* RoPE's scaling and the longest text are this model's; or
                                        NULL: as it is */
};

/* Add the text of a config.json (n_bytes) with changes. */
int hf_config_print_changed(const char *text, size_t n_bytes,
                            const struct hf_config_changes *changes, struct str *out,
                            struct err *err);

#endif
