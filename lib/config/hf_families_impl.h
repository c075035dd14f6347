/*
 * hf_families_impl.h - which families of Hugging Face have a reader, and what those readers share
 *
 * A family is added by a function in hf_families.c, or hf_experts.c where it has experts, and its
 * line in hf_family_readers. A model_type that is one of these under other names needs only a file
 * of configs/families/ (hf_family.h).
 */
#ifndef CONFIG_HF_FAMILIES_IMPL_H
#define CONFIG_HF_FAMILIES_IMPL_H

#include "config/hf_reader_impl.h"

struct hf_family_reader {
    const char *model_type; /* in small letters */
    void (*take)(struct hf_reader *h);
};

extern const struct hf_family_reader hf_family_readers[];
extern const size_t n_hf_family_readers;

/* A key of config.json that is a field of a job's model. */
struct hf_field {
    const char *theirs; /* "new|old" where it had another name */
    const char *ours;
    const char *initial; /* what transformers takes if it is absent; NULL: must be there */
};

void hf_take_fields(struct hf_reader *h, const struct hf_field *fields, size_t n);

/* What is llama's in all families of its shape. biases: "none", "qkv" or "all", in attention. */
void hf_take_llama_shape(struct hf_reader *h, const char *biases);

/* Families of mixtures of experts (hf_experts.c). */
void hf_take_mixtral(struct hf_reader *h);
void hf_take_qwen2_moe(struct hf_reader *h);
void hf_take_qwen3_moe(struct hf_reader *h);
void hf_take_deepseek(struct hf_reader *h);
void hf_take_dots1(struct hf_reader *h);

/* sliding_window; absent: 4096, null or 0: none. Returns whether there is a window. */
int hf_take_window(struct hf_reader *h);

/*
 * The window of Qwen's layers: from max_window_layers on, or as layer_types says. What the family
 * takes where use_sliding_window and max_window_layers are absent: has_windows, first.
 */
void hf_take_layer_windows(struct hf_reader *h, int has_windows, int first);

/*
 * Count as read the keys of windows that families of another name have, where they say what the job
 * already has: a switch that turns windows off, and layer_types that are all of one kind.
 */
void hf_take_uniform_windows(struct hf_reader *h);

#endif
