/*
 * weights.h - a model's weights wherever they are: a checkpoint, or a Hugging Face folder
 *
 * Asked alike, by our names and as slices.
 */
#ifndef CKPT_WEIGHTS_H
#define CKPT_WEIGHTS_H

#include "ckpt/hf_folder.h"
#include "ckpt/store.h"

/* One of both; the other is NULL. */
struct weights {
    struct store *store;
    struct hf_folder *folder;
};

/* As store_read. */
static inline int weights_read(const struct weights *weights, const struct store_slice *slice,
                               struct err *err)
{
    return weights->store ? store_read(weights->store, slice, err)
                          : hf_folder_read(weights->folder, slice, err);
}

static inline void weights_close(struct weights *weights)
{
    if (weights->store)
        store_close(weights->store);
    hf_folder_close(weights->folder);
    *weights = (struct weights){ 0 };
}

#endif
