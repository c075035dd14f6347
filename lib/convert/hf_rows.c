/*
 * hf_rows.c - rows of their tensors, made from ours
 *
 * A row of a transposed one is a column of ours: columns are read as they lie, then turned.
 */
#include <stdbool.h>

#include "convert/hf_rows.h"

#include "base/num.h"
#include "ckpt/transpose.h"

int64_t hf_rows_rows(const struct hf_tensor *tensor)
{
    return tensor->transposed ? tensor->whole->cols : tensor->n_rows;
}

int64_t hf_rows_cols(const struct hf_tensor *tensor)
{
    return tensor->transposed ? tensor->n_rows : tensor->whole->cols;
}

int64_t hf_rows_step(const struct hf_tensor *tensor, enum dtype dtype, int64_t piece_bytes)
{
    int64_t row_bytes = hf_rows_cols(tensor) * (int64_t)dtype_bytes(dtype);

    return min_i64(max_i64(1, piece_bytes / row_bytes), hf_rows_rows(tensor));
}

int hf_rows_read(const struct vocab_source *source, const struct hf_tensor *tensor,
                 enum dtype dtype, int64_t begin, int64_t n, void *out, void *scratch,
                 struct err *err)
{
    struct store_slice slice = *tensor->whole;
    size_t element = dtype_bytes(dtype);
    bool turned = tensor->transposed;
    unsigned char *data = turned ? scratch : out;

    slice.dtype = dtype;
    slice.col_begin = turned ? begin : 0;
    slice.col_end = turned ? begin + n : tensor->whole->cols;
    int64_t cols = slice.col_end - slice.col_begin;
    int64_t first = turned ? 0 : begin, end = turned ? tensor->n_rows : begin + n;
    for (int i = 0; i < tensor->n_pieces; i++) {
        struct hf_piece p = tensor->pieces[i];
        int64_t from = max_i64(p.theirs, first), to = min_i64(p.theirs + p.n, end);

        if (from >= to)
            continue;
        slice.row_begin = p.ours + from - p.theirs;
        slice.row_end = slice.row_begin + to - from;
        slice.data = data + (size_t)((from - first) * cols) * element;
        if (grown_vocab_read(source, &slice, err) < 0)
            return -1;
    }
    if (turned)
        transpose(out, tensor->n_rows, scratch, n, tensor->n_rows, n, element);
    return 0;
}
