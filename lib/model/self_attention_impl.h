/*
 * self_attention_impl.h - attention of a layer, around the product with q, k and v
 */
#ifndef MODEL_SELF_ATTENTION_IMPL_H
#define MODEL_SELF_ATTENTION_IMPL_H

#include "model/emitter_impl.h"

/* The rows whose q, k and v the rank computes: x itself, or, with fastseq, those of all ranks along
 * ulysses. */
int self_attention_input(const struct emitter *e, int x);

/* qkv: of the rank's rows and of its tensor-parallel part of the heads, q | k | v; with fastseq of
 * all rows, and of its part of these heads. Returns the outputs of the rank's rows, of all heads of
 * its tensor-parallel part: the input of the last matrix. */
int self_attention(const struct emitter *e, int qkv);

#endif
