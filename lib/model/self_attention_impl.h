/*
 * self_attention_impl.h - attention of a layer, from the product with q, k and v to the input of
 * its last matrix
 */
#ifndef MODEL_SELF_ATTENTION_IMPL_H
#define MODEL_SELF_ATTENTION_IMPL_H

#include "model/emitter_impl.h"

/* qkv: of the rank's rows and of its tensor-parallel part of the heads, q | k | v. Returns the
 * outputs of these heads, of the same rows. */
int self_attention(const struct emitter *e, int qkv);

#endif
