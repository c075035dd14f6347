/*
 * hf_head.h - whether a Hugging Face folder's weights have a head of their own
 *
 * A config.json with tie_word_embeddings says that the head is the embedding's table. The weights
 * may hold an lm_head.weight all the same: a copy of that table, as old versions saved it, or other
 * numbers. transformers keeps those, and so does lmtrain: the model is then untied.
 */
#ifndef CONFIG_HF_HEAD_H
#define CONFIG_HF_HEAD_H

#include "base/arena.h"

/*
 * 1 if model.safetensors, or the files of its index, hold an lm_head.weight that is equal bit for
 * bit to no other tensor of its type and shape; else 0, also where there are no weights or they
 * can't be read, which ckpt/hf_folder.h reports.
 */
int hf_head_is_own(const char *folder, struct arena *arena);

#endif
