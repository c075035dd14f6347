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

typedef void (*convert_progress_fn)(void *context, const char *doing, int64_t done, int64_t total);

struct convert_options {
    const char *from, *to;
    int tp, pp;              /* ranks that the checkpoint is cut for; any others read it as well */
    int dtype;               /* of all tensors; -1: as they are */
    int64_t max_shard_bytes; /* of a HF folder's files */
    convert_progress_fn progress; /* may be NULL */
    void *context;
};

/* What was converted. */
struct convert_result {
    int to_checkpoint;
    char family[64];
    int n_tensors; /* of theirs */
    int n_files;
    int64_t n_bytes;
};

/*
 * Which way it goes is found out from the folders. Returns 0, or -1: ERR_CONFIG for what was asked,
 * ERR_DATA naming file and tensor, ERR_FAILED where it cannot be written; `to` is then not there.
 */
int convert_model(const struct convert_options *options, struct convert_result *result,
                  struct err *err);

#endif
