/*
 * theirs.h - rows of their tensors, made from ours
 */
#ifndef CONVERT_THEIRS_H
#define CONVERT_THEIRS_H

#include "ckpt/source.h"

/* Rows of theirs that a piece of so many bytes has, at least 1; and rows there are in all. */
int64_t theirs_step(const struct hf_tensor *tensor, enum dtype dtype, int64_t piece_bytes);
int64_t theirs_rows(const struct hf_tensor *tensor);
/* Elements of a row. */
int64_t theirs_cols(const struct hf_tensor *tensor);

/*
 * n rows of a tensor of theirs, from row `begin` on, into out (dense). scratch is as large. ERR_DATA
 * as source_read.
 */
int theirs_read(const struct source *source, const struct hf_tensor *tensor, enum dtype dtype,
                int64_t begin, int64_t n, void *out, void *scratch, struct err *err);

#endif
