/*
 * hf_read.c - rectangles of our parameters out of the tensors of a Hugging Face folder
 *
 * Rows of an HF tensor are read whole, some MiB at a time; where no conversion is needed, directly
 * into the destination. A row of a transposed tensor is a column of our parameter, so each piece
 * that is read is transposed in blocks that stay in the cache. Eight-bit numbers become floats as
 * they are read.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "ckpt/convert_dtype.h"
#include "ckpt/fp8.h"
#include "ckpt/hf_folder_impl.h"
#include "ckpt/transpose.h"

#define BUFFER_BYTES ((int64_t)4 << 20)

/* One HF tensor while it is read into the requested slice. */
struct hf_transfer {
    struct hf_folder *folder;
    int number; /* of the names' tensors */
    const struct store_slice *want;
    const struct safetensors *file;
    const struct safetensors_tensor *tensor;
    enum dtype dtype;      /* the type of the HF tensor; fp32 for eight-bit numbers */
    int64_t row_elements;  /* of a row of the HF tensor */
    int64_t stride;        /* of what is wanted */
    struct hf_piece piece; /* what is wanted of its rows (columns of a transposed one) */
    struct hf_grid grid;   /* of the scale, if there is one */
    float table[256];      /* of eight-bit ones */
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

/* The number of whole rows of the HF tensor that are read at a time. */
static int64_t rows_at_a_time(const struct hf_transfer *t)
{
    return max_i64(1, BUFFER_BYTES / (t->row_elements * (int64_t)dtype_bytes(t->dtype)));
}

/* The whole scale as floats; that of the tensor read last is kept. */
static int read_scales(struct hf_folder *f, const struct hf_entry *scale, struct err *err)
{
    const struct safetensors_tensor *tensor = scale->tensor;
    size_t n_bytes = (size_t)(tensor->end - tensor->begin);
    int64_t n = (int64_t)(n_bytes / safetensors_type_bytes(tensor->type));

    if (f->scales_of == scale)
        return 0;
    f->scales_of = NULL;
    free(f->scales);
    f->scales = malloc((size_t)n * sizeof *f->scales);
    unsigned char *raw = malloc(n_bytes);
    int status = f->scales && raw ? 0 : err_set(err, ERR_DEVICE, "%s: out of host memory", f->path);
    if (!status)
        status = safetensors_read(f->files[scale->file], tensor, 0, raw, n_bytes, err);
    for (int64_t i = 0; i < n && !status && tensor->type == SAFETENSORS_F8_E8M0; i++)
        f->scales[i] = ldexpf(1, raw[i] - 127);
    if (!status && tensor->type != SAFETENSORS_F8_E8M0)
        convert(DTYPE_F32, f->scales, (enum dtype)safetensors_type_dtype(tensor->type), raw, n);
    free(raw);
    f->scales_of = status ? NULL : scale;
    return status;
}

static int transfer_init(struct hf_transfer *t, struct hf_folder *f, int number, struct err *err)
{
    const struct hf_tensor *tensor = &f->names.tensors[number];
    const struct hf_entry *entry = f->theirs[number];

    t->folder = f;
    t->number = number;
    t->file = hf_folder_tensor(f, number, &t->tensor);
    t->row_elements = tensor->transposed ? tensor->n_rows : tensor->whole->cols;
    if (!fp8_is(t->tensor->type)) {
        t->dtype = (enum dtype)safetensors_type_dtype(t->tensor->type);
        return 0;
    }
    t->dtype = DTYPE_F32;
    fp8_table(t->tensor->type, t->table);
    if (!entry->scale)
        return 0;
    hf_folder_grid(entry->scale->tensor, t->tensor->shape[0], t->row_elements, &t->grid);
    return read_scales(f, entry->scale, err);
}

static void decode_row(const struct hf_transfer *t, int64_t row, const unsigned char *in,
                       float *out)
{
    int64_t block = t->grid.rows ? t->grid.block_cols : t->row_elements;
    const float *scales = t->folder->scales;

    if (t->grid.rows)
        scales += row / t->grid.block_rows * t->grid.cols;
    for (int64_t begin = 0; begin < t->row_elements; begin += block, scales++) {
        float scale = t->grid.rows ? *scales : 1;
        int64_t end = min_i64(begin + block, t->row_elements);

        for (int64_t i = begin; i < end; i++)
            out[i] = t->table[in[i]] * scale;
    }
}

/* Rows without conversion, except eight-bit numbers, which become floats in the buffer. */
static int read_rows(const struct hf_transfer *t, int64_t row, int64_t n, void *out,
                     struct err *err)
{
    size_t row_bytes = (size_t)t->row_elements * safetensors_type_bytes(t->tensor->type);

    if (!fp8_is(t->tensor->type))
        return safetensors_read(t->file, t->tensor, (uint64_t)row * row_bytes, out,
                                (size_t)n * row_bytes, err);
    /* Read to the end of where the floats will be: each row is taken before it is overwritten. */
    unsigned char *raw = (unsigned char *)out + (size_t)n * row_bytes * (sizeof(float) - 1);
    if (safetensors_read(t->file, t->tensor, (uint64_t)row * row_bytes, raw, (size_t)n * row_bytes,
                         err) < 0)
        return -1;
    for (int64_t i = 0; i < n; i++)
        decode_row(t, row + i, raw + (size_t)i * row_bytes, (float *)out + i * t->row_elements);
    return 0;
}

static void tell(const struct hf_transfer *t, int64_t row, const void *data, enum dtype dtype,
                 int64_t n_rows)
{
    struct hf_folder *f = t->folder;

    if (f->seen)
        f->seen(f->seen_context, t->number, row * t->row_elements, data, dtype,
                n_rows * t->row_elements);
}

static unsigned char *place(const struct hf_transfer *t, int64_t row, int64_t col)
{
    const struct store_slice *want = t->want;

    return (unsigned char *)want->data +
           ((row - want->row_begin) * t->stride + col - want->col_begin) *
               (int64_t)dtype_bytes(want->dtype);
}

/* Whole rows, one behind the other. */
static int copy_dense(struct hf_transfer *t, int64_t step, struct err *err)
{
    const struct store_slice *want = t->want;

    for (int64_t i = 0; i < t->piece.n; i += step) {
        int64_t n = min_i64(step, t->piece.n - i), row = t->piece.theirs + i;
        unsigned char *out = place(t, t->piece.ours + i, want->col_begin);
        int as_it_is = t->dtype == want->dtype && !fp8_is(t->tensor->type);
        void *rows = as_it_is ? out : t->folder->buffer;

        if (read_rows(t, row, n, rows, err) < 0)
            return -1;
        if (!as_it_is)
            convert(want->dtype, out, t->dtype, rows, n * t->row_elements);
        tell(t, row, out, want->dtype, n);
    }
    return 0;
}

static int copy_straight(struct hf_transfer *t, struct err *err)
{
    const struct store_slice *want = t->want;
    int64_t element = (int64_t)dtype_bytes(t->dtype), n_cols = want->col_end - want->col_begin;
    int64_t step = rows_at_a_time(t);

    if (need_buffer(t->folder, (size_t)(step * t->row_elements * element), err) < 0)
        return -1;
    if (n_cols == t->row_elements && t->stride == n_cols)
        return copy_dense(t, step, err);
    for (int64_t i = 0; i < t->piece.n; i += step) {
        int64_t n = min_i64(step, t->piece.n - i);

        if (read_rows(t, t->piece.theirs + i, n, t->folder->buffer, err) < 0)
            return -1;
        if (t->dtype == want->dtype)
            tell(t, t->piece.theirs + i, t->folder->buffer, t->dtype, n);
        for (int64_t row = 0; row < n; row++)
            convert(want->dtype, place(t, t->piece.ours + i + row, want->col_begin), t->dtype,
                    t->folder->buffer + (row * t->row_elements + want->col_begin) * element,
                    n_cols);
    }
    return 0;
}

/* n rows of the HF tensor, converted, are columns [col, col + n) of the parameter. */
static void turn(const struct hf_transfer *t, const unsigned char *rows, int64_t col, int64_t n)
{
    size_t element = dtype_bytes(t->want->dtype);

    transpose(place(t, t->piece.ours, col), t->stride, rows + (size_t)t->piece.theirs * element,
              t->row_elements, n, t->piece.n, element);
}

static int copy_turned(struct hf_transfer *t, struct err *err)
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

        if (read_rows(t, col, n, t->folder->buffer, err) < 0)
            return -1;
        convert(want->dtype, converted, t->dtype, t->folder->buffer, n * t->row_elements);
        tell(t, col, converted, want->dtype, n);
        turn(t, converted, col, n);
    }
    return 0;
}

/* Whether the slice has rows of it: of a mixture's parameter most tensors are other experts'. */
static bool has_rows(const struct hf_tensor *tensor, const struct store_slice *want)
{
    bool has = false;

    for (int i = 0; i < tensor->n_pieces && !has; i++)
        has = tensor->pieces[i].ours < want->row_end &&
              tensor->pieces[i].ours + tensor->pieces[i].n > want->row_begin;
    return has;
}

static int copy_tensor(struct hf_folder *f, int number, const struct store_slice *want,
                       struct err *err)
{
    const struct hf_tensor *tensor = &f->names.tensors[number];
    struct hf_transfer t = { .want = want };

    if (!has_rows(tensor, want))
        return 0;
    if (transfer_init(&t, f, number, err) < 0)
        return -1;
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
        return err_set(err, ERR_DATA, "%s: tensor %.200s is %lld x %lld, expected %lld x %lld",
                       f->path, want->name, (long long)whole->rows, (long long)whole->cols,
                       (long long)want->rows, (long long)want->cols);
    CHECK(0 <= want->row_begin && want->row_begin <= want->row_end && want->row_end <= want->rows);
    CHECK(0 <= want->col_begin && want->col_begin <= want->col_end && want->col_end <= want->cols);
    for (int i = 0; i < found->n; i++)
        if (copy_tensor(f, found->first + i, want, err) < 0)
            return -1;
    return 0;
}

int hf_folder_read_rows(struct hf_folder *f, int i, int64_t begin, int64_t n, enum dtype dtype,
                        void *out, struct err *err)
{
    struct hf_transfer t = { .want = NULL };
    unsigned char *to = out;

    if (transfer_init(&t, f, i, err) < 0)
        return -1;
    int64_t step = rows_at_a_time(&t);
    size_t row_bytes = (size_t)t.row_elements * dtype_bytes(dtype);
    if (t.dtype == dtype && !fp8_is(t.tensor->type))
        return read_rows(&t, begin, n, out, err);
    if (need_buffer(f, (size_t)(step * t.row_elements) * dtype_bytes(t.dtype), err) < 0)
        return -1;
    for (int64_t row = 0; row < n; row += step, to += (size_t)step * row_bytes) {
        int64_t rows = min_i64(step, n - row);

        if (read_rows(&t, begin + row, rows, f->buffer, err) < 0)
            return -1;
        convert(dtype, to, t.dtype, f->buffer, rows * t.row_elements);
    }
    return 0;
}
