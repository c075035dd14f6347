/*
 * hf_names.h - the mapping between lmtrain's parameters and the tensors of a Hugging Face folder
 *
 * A family is a list of pairs of an lmtrain parameter (config/parameters.h, "ours" below) and a
 * tensor of the Hugging Face folder ("theirs" in identifiers, HF tensor in comments). A parameter
 * may consist of several HF tensors, each with some of its rows; an HF tensor may be transposed
 * (GPT-2's Conv1D). Pure: shapes only, no files.
 */
#ifndef CKPT_HF_NAMES_H
#define CKPT_HF_NAMES_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"
#include "ckpt/store.h"
#include "config/parameters.h"

/* Rows [theirs, theirs + n) of the HF tensor (columns if transposed) are rows [ours, ours + n) of
 * the parameter. */
struct hf_piece {
    int64_t theirs, ours, n;
};

/* An HF tensor: [n_rows x whole->cols], transposed [whole->cols x n_rows], a vector [n_rows]. */
struct hf_tensor {
    const char *name;
    struct parameter_id id; /* of the parameter that it is part of */
    const struct store_slice *whole;
    int64_t n_rows;
    bool transposed;
    int layer; /* LAYER_BEFORE .. n_layers: files are filled in this order */
    int n_pieces;
    const struct hf_piece *pieces; /* ascending by HF row; together all n_rows */
};

/* A parameter consists of the HF tensors [first, first + n), which have all its rows. */
struct hf_whole {
    struct parameter_id id;
    struct store_slice whole; /* data NULL, dtype fp32 */
    int first, n;
};

struct hf_names {
    const char *family;
    const char
        *prefix; /* of all HF tensors but the head, absent in files of bare models: "model." */
    int n_tensors, n_wholes;
    struct hf_tensor *tensors;
    struct hf_whole *wholes;       /* in name order */
    const struct hf_whole **by_id; /* by parameters_index */
};

/* All of *names lives in the arena. ERR_CONFIG if there is no such family. */
int hf_names_build(struct hf_names *names, const char *family, const struct model_spec *spec,
                   struct arena *arena, struct err *err);

/* NULL if there is none of that id, or of that name, for names that come from files. */
const struct hf_whole *hf_names_of(const struct hf_names *names, struct parameter_id id);
const struct hf_whole *hf_names_find(const struct hf_names *names, const char *ours);

/* Whether it is a buffer that old versions saved and that is not needed: causal masks, RoPE
 * frequencies. */
bool hf_names_is_buffer(const char *name);

/* The head's name in folders of any family here. */
#define HF_NAMES_HEAD "lm_head.weight"

#endif
