/*
 * lora_impl.h - low-rank adapters around a layer's matrices
 */
#ifndef MODEL_LORA_IMPL_H
#define MODEL_LORA_IMPL_H

#include "model/model.h"

/*
 * Declare the adapters of a layer's matrix [rows x cols], which was declared last and lies over tp
 * as `parts` says. A is as torch's linear layers are at first, B zero.
 */
void lora_declare(const struct model_builder *builder, int layer, const char *matrix, int64_t rows,
                  int64_t cols, const struct parameter_split *parts);

/* Where and what is adapted. */
struct lora_site {
    int function, layer;
    const char *matrix; /* "qkv" */
    int x, y;           /* what the matrix reads, and the product, whose sum over tp may be owed */
};

/* Emit what the layer's adapters add to y. Returns the sum; y where there are none. */
int lora_emit(struct model_builder *builder, const struct lora_site *site);

#endif
