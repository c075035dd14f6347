/*
 * rope_tables.h - the cosines and sines of rotary positions, with every scaling of their
 * frequencies
 *
 * Su et al. 2021; element j turns with j + head_dim / 2. The scalings are those of transformers'
 * modeling_rope_utils: linear (kaiokendev), dynamic NTK (emozilla), llama3 (Llama 3.1's code), YaRN
 * (Peng et al. 2023).
 *
 * Dynamic depends on how long a text is: that is n_positions, the longest that the table is made
 * for. Up to the original length the frequencies are the plain ones. Generation computes rows again
 * for each length, as transformers' dynamic_frequency_update does (serve/decode.c).
 */
#ifndef WEIGHTS_ROPE_TABLES_H
#define WEIGHTS_ROPE_TABLES_H

#include <stdint.h>

#include "config/model_spec.h"

/* table [n_positions x head_dim]: a row is head_dim / 2 cosines, then as many sines. */
void rope_table_fill(float *table, int64_t n_positions, int head_dim,
                     const struct model_spec *spec);

/* The rows of n positions from `first` on, of the table of n_positions. */
void rope_table_fill_rows(float *rows, int64_t first, int64_t n, int64_t n_positions, int head_dim,
                          const struct model_spec *spec);

/* The shortest text whose frequencies are those of n_positions. */
int64_t rope_table_length(int64_t n_positions, const struct model_spec *spec);

/* The head_dim / 2 angles from a position to the next. */
void rope_table_frequencies(float *frequencies, int64_t n_positions, int head_dim,
                            const struct model_spec *spec);

#endif
