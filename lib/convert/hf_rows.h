/*
 * hf_rows.h - rows of Hugging Face tensors (HF tensors), made from lmtrain's parameters
 */
#ifndef CONVERT_HF_ROWS_H
#define CONVERT_HF_ROWS_H

#include "ckpt/grown_vocab.h"

/* Number of rows of the HF tensor in a chunk of piece_bytes, at least 1; and its number of rows. */
int64_t hf_rows_step(const struct hf_tensor *tensor, enum dtype dtype, int64_t piece_bytes);
int64_t hf_rows_rows(const struct hf_tensor *tensor);
/* Elements of a row. */
int64_t hf_rows_cols(const struct hf_tensor *tensor);

/*
 * n rows of an HF tensor, from row `begin` on, into out (dense, [n x hf_rows_cols]). scratch has
 * the same size. ERR_DATA as grown_vocab_read.
 */
int hf_rows_read(const struct vocab_source *source, const struct hf_tensor *tensor,
                 enum dtype dtype, int64_t begin, int64_t n, void *out, void *scratch,
                 struct err *err);

#endif
