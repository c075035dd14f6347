/*
 * weights.h - a model's weights wherever they are: a checkpoint, or a Hugging Face folder
 *
 * Asked alike, by our names and as slices.
 */
#ifndef CKPT_WEIGHTS_H
#define CKPT_WEIGHTS_H

#include <stdbool.h>

#include "ckpt/adapter.h"
#include "ckpt/hf_folder.h"
#include "ckpt/store.h"

/* What the name of a parameter's moving average (train.ema) in a checkpoint ends with. */
#define WEIGHTS_AVERAGE ".ema"

/* One of the first two; the other is NULL. */
struct weights {
    struct store *store;
    struct hf_folder *folder;
    struct adapter *adapter; /* what was trained besides, or NULL */
    bool is_merged;          /* adapters' products are added to the matrices */
    bool is_average;         /* of the store the moving averages are read where there are some */
    bool half_away; /* fp32 of the store becomes bf16 as its run rounded masters (base/halves.h) */
};

/*
 * As store_read. What an adapter has in place of the model's is read from there; merged, matrices
 * are W + scale B A, computed in fp32 and rounded once.
 */
int weights_read(const struct weights *weights, const struct store_slice *slice, struct err *err);

/*
 * The tensor of a checkpoint that a parameter of this name is read from: that, or its moving
 * average. NULL if there is none; the store's.
 */
const struct store_slice *weights_stored(const struct weights *weights, const char *name);

/*
 * Read moving averages from now on, of parameters that have one: frozen ones have none. ERR_DATA
 * where no parameter has.
 */
int weights_use_average(struct weights *weights, struct err *err);

/*
 * Read with the adapters of a peft folder, or of a run or checkpoint, from now on, which become the
 * weights'. As adapter_open.
 */
int weights_adapt(struct weights *weights, const char *path, const char *family,
                  const struct model_spec *spec, struct err *err);

/*
 * Open path: a HF folder, whose tensors must be those of this model, or the newest checkpoint of a
 * run. ERR_DATA.
 */
int weights_open(struct weights *weights, const char *path, const struct model_spec *spec,
                 struct arena *arena, struct err *err);
void weights_close(struct weights *weights);

#endif
