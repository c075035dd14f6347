/*
 * lora_impl.h - low-rank adapters around a layer's matrices
 */
#ifndef MODEL_LORA_IMPL_H
#define MODEL_LORA_IMPL_H

#include "model/model.h"

/* The matrix that adapters are added to, and its operands. */
struct lora_site {
    int function, layer;
    enum module_id module; /* whose matrix is adapted */
    int x, y;       /* the input of the matrix, and the product, which may be partial over tp */
    int ends;       /* of each expert's rows, where the matrix is one of experts; else 0 */
    int64_t n_rows; /* of all experts, as many as are expected; 0: all */
};

/* Emit y plus the layer's adapters of this matrix. Returns the sum; y if there are none. */
int lora_emit(struct model_builder *builder, const struct lora_site *site);

#endif
