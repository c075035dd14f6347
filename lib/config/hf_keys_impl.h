/*
 * hf_keys_impl.h - which keys of a config.json decide nothing that lmtrain does not know of
 *
 * The reader of a family (hf_families.c) records each key that it reads. A key that it does not
 * read must be known to leave what the model computes as it is, or the folder is refused: a
 * model_type that a file of configs/families/ describes may scale its embeddings or leave rope out
 * of some layers by a key that the family it is like does not have. Differences that no key says
 * are listed by model_type. Both lists are held against transformers by test/oracle/families.py.
 */
#ifndef CONFIG_HF_KEYS_IMPL_H
#define CONFIG_HF_KEYS_IMPL_H

#include <cjson/cJSON.h>

#define HF_KEYS_MAX 96

/* The keys that a family's reader has read, each once; strings are borrowed. */
struct hf_keys {
    const char *names[HF_KEYS_MAX];
    int n;
};

/* Record keys, several of which are separated by "|". */
void hf_keys_add(struct hf_keys *keys, const char *names);

int hf_keys_has(const struct hf_keys *keys, const char *name);

/*
 * Whether a key of config.json with this value leaves what a model of the family computes as it is:
 * its name begins with "_", its value is null or empty, or a list of hf_keys.c has it.
 */
int hf_key_is_harmless(const cJSON *item, const char *family);

/* Whether the reader of rope_parameters and rope_scaling knows this key of them. */
int hf_rope_key_is_read(const char *name);

/*
 * What a model of this model_type (small letters) computes otherwise than the family it is like,
 * although neither config.json nor the names of its tensors show it; NULL for others.
 */
const char *hf_type_difference(const char *model_type);

#endif
