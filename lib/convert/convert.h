/*
 * convert.h - a model between a Hugging Face folder and a sharded checkpoint
 *
 * All ways stream: one piece of a tensor is read while another is written, some MiB each; of one
 * that their file has transposed all of a rank's part. Tensors keep their types unless another one
 * is asked for, so that there and back gives the same bits.
 *
 * The output is written to DIR.partial and renamed when it is complete. If the conversion is
 * interrupted, the folder remains, with a journal of its source and arguments: the same conversion
 * continues after the last complete file, after it has verified all of them. A different one starts
 * from the beginning. A failure removes the folder.
 *
 * What lies beside the weights (config.json, tokenizer, chat template) goes along: in a checkpoint
 * it is the folder hf/. One that has none, of an older run, gets its tokenizer from the run's job.
 * From checkpoint to checkpoint all goes along, optimizer state and the run's too; a HF folder has
 * no place for it.
 */
#ifndef CONVERT_CONVERT_H
#define CONVERT_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

struct kernels;

typedef void (*convert_progress_fn)(void *context, const char *doing, int64_t done, int64_t total);

enum convert_kind { CONVERT_OTHER, CONVERT_CHECKPOINT, CONVERT_FOLDER };

struct convert_options {
    const char *from, *to;
    /*
     * A folder of peft's, or a run or checkpoint that trained adapters: they are added to the
     * matrices, in fp32, and rounded once to the type that is written. NULL: none. Those that a run
     * has itself are added always.
     */
    const char *adapter;
    /*
     * A folder or file that becomes the model's tokenizer; NULL: its own. no_tokenizer: it gets
     * none. A HF folder of a checkpoint whose job names a tokenizer that is not to be found is
     * refused without either.
     */
    const char *tokenizer;
    bool no_tokenizer;
    const char *weights;     /* of served_weights_words; NULL: trained. Others make a HF folder */
    enum convert_kind as;    /* what is made; a HF folder becomes one only with an adapter */
    int tp, pp;              /* ranks that the checkpoint is cut for; any others read it as well */
    int dtype;               /* of all tensors; -1: as they are */
    int64_t max_shard_bytes; /* of a HF folder's files */
    /*
     * Rows of embedding and head, at least those of the model; 0: as many as the model or its
     * tokenizer has, whichever are more. Then rounded up to a multiple of pad_vocab, if that is not
     * 0. New rows are the mean of those that are there.
     */
    int vocab_size, pad_vocab;
    int64_t piece_bytes;          /* read at a time; 0: 16 MiB */
    bool verify;                  /* read it again, and compare all tensors and a prompt's logits */
    struct kernels *kernels;      /* for that */
    size_t available_bytes;       /* larger models' logits are left out; 0: never */
    convert_progress_fn progress; /* may be NULL */
    void *context;
};

enum convert_logits { CONVERT_LOGITS_NONE, CONVERT_LOGITS_COMPARED, CONVERT_LOGITS_TOO_LARGE };

/* What was converted. */
struct convert_result {
    bool to_checkpoint;
    char family[64];
    int n_tensors; /* of the Hugging Face folder */
    int n_files;
    int64_t n_bytes;
    int n_merged;      /* of them: an adapter was added to */
    int n_found_whole; /* of the files: left by the same conversion, interrupted */
    int vocab_before, vocab_after;
    int n_dropped;  /* tensors of optimizer state that a HF folder has no place for */
    int n_verified; /* tensors that are the same, bit for bit, in the type that was written */
    enum convert_logits logits;
    double logits_off; /* max|a-b| / max|a| */
};

/*
 * Which way it goes is found out from the folders. Returns 0, or -1: ERR_CONFIG for what was asked,
 * ERR_DATA naming file and tensor, ERR_FAILED where it cannot be written (too little room is found
 * out before); `to` is then not there. So it is where verifying fails: a number that is not finite,
 * or what was written is not what was read. One conversion at a time has a partial folder.
 */
int convert_model(const struct convert_options *options, struct convert_result *result,
                  struct err *err);

#endif
