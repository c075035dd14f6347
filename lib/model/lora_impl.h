/*
 * lora_impl.h - low-rank adapters around a layer's matrices
 */
#ifndef MODEL_LORA_IMPL_H
#define MODEL_LORA_IMPL_H

#include "model/model.h"

/* Where and what is adapted. */
struct lora_site {
    int function, layer;
    enum module_id module; /* whose matrix is adapted */
    int x, y; /* what the matrix reads, and the product, whose sum over tp may be owed */
};

/* Emit what the layer's adapters add to y. Returns the sum; y where there are none. */
int lora_emit(struct model_builder *builder, const struct lora_site *site);

#endif
