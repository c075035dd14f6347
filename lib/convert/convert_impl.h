/*
 * convert_impl.h - the ways, and what they share
 */
#ifndef CONVERT_CONVERT_IMPL_H
#define CONVERT_CONVERT_IMPL_H

#include <stdbool.h>

#include "ckpt/grown_vocab.h"
#include "config/hf_config.h"
#include "convert/convert.h"
#include "convert/tensor_hashes.h"
#include "serve/served.h"

struct conversion {
    const struct convert_options *options;
    struct convert_result *result;
    struct arena arena;
    struct served from; /* its job is that of the model as it will be */
    struct vocab_source source;
    const char *family;       /* NULL from checkpoint to checkpoint, */
    struct hf_names names;    /* where there are none: of the model as it will be */
    struct tensor_hash *seen; /* [names.n_tensors] */
    const char *partial;      /* where is written */
    int lock;                 /* on it; 0: none */
    bool owns_partial;        /* it goes if we fail */
    int n_tokens;             /* that the tokenizer has; 0: not known */
    int64_t done, total;      /* bytes */
};

/* Write all of it into the partial folder but its name. */
int convert_to_checkpoint(struct conversion *conversion, struct err *err);
int convert_to_folder(struct conversion *conversion, struct err *err);

/* The same tensors and the same logits in what was written there; ERR_DATA if not. */
int convert_verify(struct conversion *conversion, struct err *err);

/* Whether a checkpoint becomes another one with all that is in it. Merged it is a model alone: the
 * training of either could not go on with it. */
bool conversion_is_between(const struct conversion *conversion);

/* Whether the folder that the checkpoint was converted from had what this word says
 * ("tied_head", "bare_names"): to_checkpoint.c puts it down, to_folder.c makes it so again. */
int conversion_had(const struct conversion *conversion, const char *word);

void conversion_tell(struct conversion *conversion, const char *doing, int64_t n_bytes);

/* Bytes that are read and written at a time. */
int64_t conversion_piece(const struct conversion *conversion);

/* The type in which one of ours that has this type is written; a balance bias never loses bits. */
enum dtype conversion_dtype(const struct conversion *conversion, enum dtype stored);
enum dtype conversion_dtype_of(const struct conversion *conversion, struct parameter_id id,
                               enum dtype stored);

/* ---- the partial folder (partial.c) ---- */

/*
 * Create the partial folder, or continue that of the same conversion; check that no other process
 * uses it and that there is room for n_bytes. ERR_CONFIG, ERR_FAILED.
 */
int partial_begin(struct conversion *conversion, int64_t n_bytes, struct err *err);

/* Whether a file of a HF folder is whole; it is counted as done. */
bool partial_has_file(struct conversion *conversion, const char *name);

/* Note down that it is. */
int partial_note_file(const struct conversion *conversion, const char *name, uint64_t hash,
                      struct err *err);

/* Remove the notes: the folder is what it is to be. */
int partial_forget(const struct conversion *conversion, struct err *err);

/* ---- what lies beside the weights ---- */

/*
 * Copy the model's tokenizer into a folder, in place of the one it has; or remove that one
 * (--no-tokenizer).
 */
int conversion_put_tokenizer(struct conversion *conversion, const char *folder, struct err *err);

/* config.json as it has to be now (copy_aux.c). */
int carry_config(const char *from, const char *to, const struct hf_config_changes *changes,
                 struct err *err);

#endif
