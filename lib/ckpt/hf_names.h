/*
 * hf_names.h - how the families of Hugging Face name and place a model's tensors
 *
 * A family is a list of rows "ours, theirs": one of ours (config/parameters.h) may be several of
 * theirs, each some of its rows. Theirs may be transposed (GPT-2's Conv1D). Pure: it knows shapes,
 * no files.
 */
#ifndef CKPT_HF_NAMES_H
#define CKPT_HF_NAMES_H

#include "base/arena.h"
#include "base/err.h"
#include "ckpt/store.h"
#include "config/parameters.h"

/* Rows [theirs, theirs + n) of theirs (columns where it is transposed) are rows [ours, ours + n). */
struct hf_piece {
    int64_t theirs, ours, n;
};

/* One of theirs: [n_rows x whole->cols], transposed [whole->cols x n_rows], of a vector [n_rows]. */
struct hf_tensor {
    const char *name;
    struct parameter_id id; /* of the one of ours that it is part of */
    const struct store_slice *whole;
    int64_t n_rows;
    int transposed;
    int layer; /* LAYER_BEFORE .. n_layers: files are filled in this order */
    int n_pieces;
    const struct hf_piece *pieces; /* by rising theirs and, together, all n_rows */
};

/* One of ours is tensors [first, first + n) of theirs, which have all its rows. */
struct hf_whole {
    struct parameter_id id;
    struct store_slice whole; /* data NULL, dtype fp32 */
    int first, n;
};

struct hf_names {
    const char *family;
    const char *prefix; /* of all theirs but the head, that bare models' files lack: "model." */
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

/* Whether it is a buffer that old versions saved and nobody needs: causal masks, frequencies. */
int hf_names_is_buffer(const char *name);

/* The head's name in folders of any family here. */
#define HF_NAMES_HEAD "lm_head.weight"

#endif
