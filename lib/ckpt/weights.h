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

/*
 * Open path: a HF folder, whose tensors must be those of this model, or the newest checkpoint of a
 * run. ERR_DATA.
 */
int weights_open(struct weights *weights, const char *path, const struct model_spec *spec,
                 struct arena *arena, struct err *err);
void weights_close(struct weights *weights);

#endif
