/*
 * rope.h - the cosines and sines of rotary positions, with every scaling of their frequencies
 *
 * Su et al. 2021; element j turns with j + head_dim / 2. The scalings are those of transformers'
 * modeling_rope_utils: linear (kaiokendev), dynamic NTK (emozilla), llama3 (Llama 3.1's code), YaRN
 * (Peng et al. 2023).
 *
 * Dynamic depends on how long a text is. Here that is n_positions, the longest that the table is
 * made for, also while a text that is being generated is still shorter; transformers changes the
 * frequencies as it grows. Up to the original length both are the plain ones.
 */
#ifndef TRAIN_ROPE_H
#define TRAIN_ROPE_H

#include <stdint.h>

#include "config/model_spec.h"

/* table [n_positions x head_dim]: a row is head_dim / 2 cosines, then as many sines. */
void rope_fill(float *table, int64_t n_positions, int head_dim, const struct model_spec *spec);

/* The head_dim / 2 angles from a position to the next. */
void rope_frequencies(float *frequencies, int64_t n_positions, int head_dim,
                      const struct model_spec *spec);

#endif
