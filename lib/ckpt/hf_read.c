/*
 * hf_read.c - rectangles of our tensors out of theirs
 *
 * Their rows are read whole, some MiB at a time. Of a transposed one a row is a column of ours, so
 * that each piece read is turned in blocks that stay in the cache.
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "ckpt/convert.h"
#include "ckpt/hf_folder_impl.h"
#include "ckpt/transpose.h"

#define BUFFER_BYTES ((int64_t)4 << 20)

/* One tensor of theirs on its way into the slice that is wanted. */
struct transfer {
    struct hf_folder *folder;
    const struct store_slice *want;
    const struct safetensors *file;
    const struct safetensors_tensor *tensor;
    enum dtype dtype;      /* theirs */
    int64_t row_elements;  /* of theirs */
    int64_t stride;        /* of what is wanted */
    struct hf_piece piece; /* what is wanted of its rows (columns of a transposed one) */
};

static int need_buffer(struct hf_folder *f, size_t n_bytes, struct err *err)
{
    if (f->buffer_bytes >= n_bytes)
        return 0;
    free(f->buffer);
    f->buffer = malloc(n_bytes);
    f->buffer_bytes = f->buffer ? n_bytes : 0;
    return f->buffer ? 0 : err_set(err, ERR_DEVICE, "%s: out of host memory", f->path);
}

/* How many whole rows of theirs are read at a time. */
static int64_t rows_at_a_time(const struct transfer *t)
{
    return max_i64(1, BUFFER_BYTES / (t->row_elements * (int64_t)dtype_bytes(t->dtype)));
}

static int read_rows(struct transfer *t, int64_t row, int64_t n, struct err *err)
{
    size_t row_bytes = (size_t)t->row_elements * dtype_bytes(t->dtype);

    return safetensors_read(t->file, t->tensor, (uint64_t)row * row_bytes, t->folder->buffer,
                            (size_t)n * row_bytes, err);
}

static unsigned char *place(const struct transfer *t, int64_t row, int64_t col)
{
    const struct store_slice *want = t->want;

    return (unsigned char *)want->data +
           ((row - want->row_begin) * t->stride + col - want->col_begin) *
               (int64_t)dtype_bytes(want->dtype);
}

static int copy_straight(struct transfer *t, struct err *err)
{
    const struct store_slice *want = t->want;
    int64_t element = (int64_t)dtype_bytes(t->dtype), n_cols = want->col_end - want->col_begin;
    int64_t step = rows_at_a_time(t);
    int dense = n_cols == t->row_elements && t->stride == n_cols;

    if (need_buffer(t->folder, (size_t)(step * t->row_elements * element), err) < 0)
        return -1;
    for (int64_t i = 0; i < t->piece.n; i += step) {
        int64_t n = min_i64(step, t->piece.n - i);

        if (read_rows(t, t->piece.theirs + i, n, err) < 0)
            return -1;
        if (dense) {
            convert(want->dtype, place(t, t->piece.ours + i, want->col_begin), t->dtype,
                    t->folder->buffer, n * n_cols);
            continue;
        }
        for (int64_t row = 0; row < n; row++)
            convert(want->dtype, place(t, t->piece.ours + i + row, want->col_begin), t->dtype,
                    t->folder->buffer + (row * t->row_elements + want->col_begin) * element,
                    n_cols);
    }
    return 0;
}

/* n rows of theirs, converted, are columns [col, col + n) of ours. */
static void turn(const struct transfer *t, const unsigned char *rows, int64_t col, int64_t n)
{
    size_t element = dtype_bytes(t->want->dtype);

    transpose(place(t, t->piece.ours, col), t->stride, rows + (size_t)t->piece.theirs * element,
              t->row_elements, n, t->piece.n, element);
}

static int copy_turned(struct transfer *t, struct err *err)
{
    const struct store_slice *want = t->want;
    int64_t step = rows_at_a_time(t), theirs = (int64_t)dtype_bytes(t->dtype);
    int64_t ours = (int64_t)dtype_bytes(want->dtype);
    size_t raw_bytes = ((size_t)(step * t->row_elements * theirs) + 15) & ~(size_t)15;

    /* As read, and behind it as wanted. */
    if (need_buffer(t->folder, raw_bytes + (size_t)(step * t->row_elements * ours), err) < 0)
        return -1;
    for (int64_t col = want->col_begin; col < want->col_end; col += step) {
        int64_t n = min_i64(step, want->col_end - col);
        unsigned char *converted = t->folder->buffer + raw_bytes;

        if (read_rows(t, col, n, err) < 0)
            return -1;
        convert(want->dtype, converted, t->dtype, t->folder->buffer, n * t->row_elements);
        turn(t, converted, col, n);
    }
    return 0;
}

static int copy_tensor(struct hf_folder *f, int number, const struct store_slice *want,
                       struct err *err)
{
    const struct hf_tensor *tensor = &f->names.tensors[number];
    struct transfer t = { .folder = f, .want = want };

    t.file = hf_folder_tensor(f, number, &t.tensor);
    t.dtype = (enum dtype)safetensors_type_dtype(t.tensor->type);
    t.row_elements = tensor->transposed ? tensor->n_rows : want->cols;
    t.stride = want->stride ? want->stride : want->col_end - want->col_begin;
    for (int i = 0; i < tensor->n_pieces; i++) {
        struct hf_piece piece = tensor->pieces[i];
        int64_t begin = max_i64(piece.ours, want->row_begin);
        int64_t end = min_i64(piece.ours + piece.n, want->row_end);

        if (begin >= end)
            continue;
        t.piece = (struct hf_piece){ piece.theirs + begin - piece.ours, begin, end - begin };
        if ((tensor->transposed ? copy_turned(&t, err) : copy_straight(&t, err)) < 0)
            return -1;
    }
    return 0;
}

int hf_folder_read(struct hf_folder *f, const struct store_slice *want, struct err *err)
{
    const struct hf_whole *found = hf_names_find(&f->names, want->name);

    if (!found)
        return err_set(err, ERR_DATA, "%s has no tensor %.200s", f->path, want->name);
    const struct store_slice *whole = &found->whole;
    if (whole->n_dims != want->n_dims || whole->rows != want->rows || whole->cols != want->cols)
        return err_set(err, ERR_DATA, "%s: tensor %.200s is %lld x %lld, %lld x %lld is wanted",
                       f->path, want->name, (long long)whole->rows, (long long)whole->cols,
                       (long long)want->rows, (long long)want->cols);
    CHECK(0 <= want->row_begin && want->row_begin <= want->row_end && want->row_end <= want->rows);
    CHECK(0 <= want->col_begin && want->col_begin <= want->col_end && want->col_end <= want->cols);
    for (int i = 0; i < found->n; i++)
        if (copy_tensor(f, found->first + i, want, err) < 0)
            return -1;
    return 0;
}
