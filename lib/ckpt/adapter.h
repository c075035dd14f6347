/*
 * adapter.h - low-rank adapters on disk: read as tensors of ours, written in peft's format
 *
 * peft's folder: adapter_config.json, and adapter_model.safetensors with
 * base_model.model.MODULE.lora_A.weight [r x in], .lora_B.weight [out x r], whole modules that were
 * trained besides, and biases. MODULE is the family's name of the matrix. The checkpoint of a run
 * that trains adapters holds the same under our names, and is read as well.
 *
 * What the config says that is not computed here (DoRA, ...) is refused by name. Nothing in either
 * file is trusted: every tensor must be one that the model has a place for, of its shape.
 */
#ifndef CKPT_ADAPTER_H
#define CKPT_ADAPTER_H

#include <stdbool.h>

#include "ckpt/hf_names.h"
#include "ckpt/store.h"
#include "config/job.h"
#include "config/tuning.h"

struct adapter;

/* Whether path is a folder with adapter_config.json. */
bool adapter_is(const char *path);

/*
 * Open a peft folder, or a run or checkpoint of a job with lora, as adapters of this model, whose
 * family says what tensors are called. ERR_DATA names file and tensor.
 */
int adapter_open(struct adapter **adapter, const char *path, const char *family,
                 const struct model_spec *spec, struct err *err);
void adapter_close(struct adapter *adapter);

/* Where there are adapters; what is saved besides is in no pattern of it. The adapter's. */
const struct tuning *adapter_tuning(const struct adapter *adapter);

/* Whether it has any part of our tensor of this name. */
int adapter_has(const struct adapter *adapter, const char *name);

/* Whether it has all of it, so that the base's is not wanted. */
bool adapter_has_all(const struct adapter *adapter, const char *name);

/* Tokens of the model that it is an adapter of: more than the base's where tables grew. */
int adapter_vocab_size(const struct adapter *adapter);

/* Where its tokenizer is, a folder or a file; NULL if it says nothing of one. */
const char *adapter_tokenizer(const struct adapter *adapter);

/*
 * Write what the adapter has of the slice over it (biases and modules that were trained; or, where
 * the name is an adapter's own, all of it). As store_read.
 */
int adapter_overlay(struct adapter *adapter, const struct store_slice *slice, struct err *err);

/* Whether some adapter changes the matrix of this name. */
int adapter_changes(const struct adapter *adapter, const char *name);

/* slice (fp32) += scale B A of its rows and columns. As store_read. */
int adapter_add(struct adapter *adapter, const struct store_slice *slice, struct err *err);

struct weights;

/* A trained job's adapters, for writing. */
struct adapter_source {
    const struct weights *weights; /* has our tensors */
    const struct job *job;         /* with lora */
    const char *family;
    const char *base; /* base_model_name_or_path; NULL: none */
};

/*
 * Whether peft's format has a place for all adapters of the job in models of this family: not where
 * the job has pairs for parts of what the family packs, or the other way round. ERR_CONFIG.
 */
int adapter_check(const struct job *job, const char *family, struct err *err);

/* Make a peft folder of it at path, which must not be there, or is replaced if it is one. */
int adapter_write(const char *path, const struct adapter_source *source, struct err *err);

#endif
