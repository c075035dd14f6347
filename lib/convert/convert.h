/*
 * convert.h - a model between a Hugging Face folder and a sharded checkpoint
 *
 * Both ways stream: a piece of a tensor is in memory at a time, at most a rank's part of the
 * largest. What is written stands in DIR.partial until it is whole and is then renamed. Tensors
 * keep their types unless another one is asked for, so that there and back gives the same bits.
 *
 * What lies beside the weights (config.json, tokenizer, chat template) goes along: in a checkpoint
 * it is the folder hf/. A checkpoint of a run gets its tokenizer from the run's job.
 */
#ifndef CONVERT_CONVERT_H
#define CONVERT_CONVERT_H

#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

struct kernels;

typedef void (*convert_progress_fn)(void *context, const char *doing, int64_t done, int64_t total);

struct convert_options {
    const char *from, *to;
    int tp, pp;              /* ranks that the checkpoint is cut for; any others read it as well */
    int dtype;               /* of all tensors; -1: as they are */
    int64_t max_shard_bytes; /* of a HF folder's files */
    int verify;              /* read it again, and compare all tensors and a prompt's logits */
    struct kernels *kernels; /* for that */
    size_t available_bytes;  /* larger models' logits are left out; 0: never */
    convert_progress_fn progress; /* may be NULL */
    void *context;
};

enum convert_logits { CONVERT_LOGITS_NONE, CONVERT_LOGITS_COMPARED, CONVERT_LOGITS_TOO_LARGE };

/* What was converted. */
struct convert_result {
    int to_checkpoint;
    char family[64];
    int n_tensors; /* of theirs */
    int n_files;
    int64_t n_bytes;
    int n_verified; /* tensors that are the same, bit for bit, in the type that was written */
    enum convert_logits logits;
    double logits_off; /* max|a-b| / max|a| */
};

/*
 * Which way it goes is found out from the folders. Returns 0, or -1: ERR_CONFIG for what was asked,
 * ERR_DATA naming file and tensor, ERR_FAILED where it cannot be written; `to` is then not there.
 * So it is where verifying fails: a NaN, or what was written is not what was read.
 */
int convert_model(const struct convert_options *options, struct convert_result *result,
                  struct err *err);

/*
 * Copy what belongs to a model beside its weights (tokenizer, chat template, ...) from a Hugging Face
 * folder; config.json only where asked. ERR_DATA, ERR_FAILED.
 */
int convert_carry(const char *from, const char *to, int with_config, struct err *err);

#endif
