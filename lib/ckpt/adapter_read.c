/*
 * adapter_read.c - an adapter's tensors as parts of ours
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "ckpt/adapter_impl.h"
#include "ckpt/convert_dtype.h"

/* The pair's tensor that a name of ours stands for, or the first expert's; NULL if there is none.
 */
static const struct safetensors_tensor *own_tensor(const struct adapter *a, const char *name,
                                                   int *layer, enum lora_module *module,
                                                   enum lora_matrix *matrix)
{
    if (!a->file || !lora_parse_name(name, layer, module, matrix) || *layer >= a->spec.n_layers ||
        *layer < 0)
        return NULL;
    return a->pairs[adapter_pair(a, *layer, *module, 0)][*matrix];
}

static bool has_replacement(const struct adapter *a, const char *name)
{
    const struct hf_whole *whole = hf_names_find(&a->names, name);

    for (int i = 0; whole && i < whole->n; i++)
        if (a->replacements[whole->first + i])
            return true;
    return false;
}

int adapter_has(const struct adapter *a, const char *name)
{
    int layer;
    enum lora_module module;
    enum lora_matrix matrix;

    if (a->store)
        return store_find(a->store, name) != NULL;
    return own_tensor(a, name, &layer, &module, &matrix) || has_replacement(a, name);
}

bool adapter_has_all(const struct adapter *a, const char *name)
{
    const struct hf_whole *whole = hf_names_find(&a->names, name);

    if (a->store)
        return store_find(a->store, name) != NULL;
    for (int i = 0; whole && i < whole->n; i++)
        if (!a->replacements[whole->first + i])
            return false;
    return whole != NULL;
}

/* The HF tensor of this parameter that such an adapter belongs to, or that of an expert; NULL if
 * there is none. */
static const struct hf_tensor *adapted_tensor(const struct adapter *a, const struct hf_whole *whole,
                                              enum lora_module module, int expert)
{
    int layer = whole->id.layer;

    if (!parameters_is_of_layers(whole->id.module) || !tuning_place(&a->tuning, layer, module).rank)
        return NULL;
    const struct hf_tensor *t = adapter_module(&a->names, &a->spec, layer, module, expert);
    return t && t->whole == &whole->whole ? t : NULL;
}

int adapter_changes(const struct adapter *a, const char *name)
{
    const struct hf_whole *whole = hf_names_find(&a->names, name);

    for (int m = 0; m < N_LORA_MODULES && whole; m++)
        if (adapted_tensor(a, whole, (enum lora_module)m, 0))
            return 1;
    return 0;
}

static int no_memory(const struct adapter *a, struct err *err)
{
    return err_set(err, ERR_DEVICE, "%s: out of host memory", a->path);
}

/* n rows of the file's tensor of `cols` columns, columns [begin, end), to data of that stride. */
static int read_rows(const struct adapter *a, const struct safetensors_tensor *t, int64_t row,
                     int64_t n, const struct store_slice *want, void *data, struct err *err)
{
    enum dtype dtype = (enum dtype)safetensors_type_dtype(t->type);
    int64_t cols = t->n_dims > 1 ? t->shape[1] : 1, element = (int64_t)dtype_bytes(dtype);
    int64_t n_cols = want->col_end - want->col_begin, stride = want->stride ? want->stride : n_cols;
    unsigned char *buffer = malloc((size_t)max_i64(1, cols * element));
    int status = buffer ? 0 : no_memory(a, err);

    for (int64_t i = 0; i < n && !status; i++) {
        status = safetensors_read(a->file, t, (uint64_t)((row + i) * cols * element), buffer,
                                  (size_t)(cols * element), err);
        if (!status)
            convert(want->dtype,
                    (unsigned char *)data + i * stride * (int64_t)dtype_bytes(want->dtype), dtype,
                    buffer + want->col_begin * element, n_cols);
    }
    free(buffer);
    return status;
}

/* Of the wanted rows [row_begin, row_end) those that the piece has. `first`: of ours, row 0. */
static int read_piece(const struct adapter *a, const struct safetensors_tensor *t,
                      struct hf_piece piece, int64_t first, const struct store_slice *want,
                      struct err *err)
{
    int64_t n_cols = want->col_end - want->col_begin, stride = want->stride ? want->stride : n_cols;
    int64_t ours = piece.ours - first;
    int64_t begin = max_i64(ours, want->row_begin), end = min_i64(ours + piece.n, want->row_end);

    if (begin >= end)
        return 0;
    return read_rows(a, t, piece.theirs + begin - ours, end - begin, want,
                     (unsigned char *)want->data +
                         (begin - want->row_begin) * stride * (int64_t)dtype_bytes(want->dtype),
                     err);
}

/* Experts' are one below the other. */
static int overlay_experts(const struct adapter *a, const struct store_slice *want, int layer,
                           enum lora_module module, enum lora_matrix matrix, struct err *err)
{
    for (int expert = 0; expert < a->spec.n_experts; expert++) {
        const struct safetensors_tensor *t =
            a->pairs[adapter_pair(a, layer, module, expert)][matrix];
        struct hf_piece all = { 0, expert * t->shape[0], t->shape[0] };

        if (read_piece(a, t, all, 0, want, err) < 0)
            return -1;
    }
    return 0;
}

static int overlay_own(struct adapter *a, const struct store_slice *want,
                       const struct safetensors_tensor *t, int layer, enum lora_module module,
                       enum lora_matrix matrix, struct err *err)
{
    struct hf_piece whole = { 0, 0, t->shape[0] };
    int64_t rows = t->shape[0] * lora_n_pairs(&a->spec, module);

    if (want->n_dims != 2 || want->rows != rows || want->cols != t->shape[1])
        return err_set(err, ERR_DATA, "%s: %.100s is %lld x %lld, expected %lld x %lld", a->path,
                       want->name, (long long)rows, (long long)t->shape[1], (long long)want->rows,
                       (long long)want->cols);
    if (lora_is_of_experts(module))
        return overlay_experts(a, want, layer, module, matrix, err);
    if (matrix == LORA_A)
        return read_piece(a, t, whole, 0, want, err);
    const struct hf_tensor *theirs = adapter_module(&a->names, &a->spec, layer, module, 0);
    int64_t first = theirs->pieces[0].ours;
    for (int i = 0; i < theirs->n_pieces; i++)
        first = min_i64(first, theirs->pieces[i].ours);
    for (int i = 0; i < theirs->n_pieces; i++)
        if (read_piece(a, t, theirs->pieces[i], first, want, err) < 0)
            return -1;
    return 0;
}

int adapter_overlay(struct adapter *a, const struct store_slice *want, struct err *err)
{
    int layer;
    enum lora_module module;
    enum lora_matrix matrix;

    if (a->store)
        return store_find(a->store, want->name) ? store_read(a->store, want, err) : 0;
    const struct safetensors_tensor *own = own_tensor(a, want->name, &layer, &module, &matrix);
    if (own)
        return overlay_own(a, want, own, layer, module, matrix, err);
    const struct hf_whole *whole = hf_names_find(&a->names, want->name);
    for (int i = 0; whole && i < whole->n; i++) {
        const struct hf_tensor *theirs = &a->names.tensors[whole->first + i];
        const struct safetensors_tensor *t = a->replacements[whole->first + i];

        for (int k = 0; t && k < theirs->n_pieces; k++)
            if (read_piece(a, t, theirs->pieces[k], 0, want, err) < 0)
                return -1;
    }
    return 0;
}

/* ---- merging ---- */

/* data[n x cols] += scale b[n x rank] a[rank x cols] */
static void add_product(float *data, int64_t stride, const float *b, const float *a, int64_t n,
                        int64_t cols, int rank, float scale)
{
    for (int64_t row = 0; row < n; row++)
        for (int64_t col = 0; col < cols; col += 512) {
            float sums[512] = { 0 };
            int64_t width = min_i64(512, cols - col);

            for (int r = 0; r < rank; r++) {
                float factor = b[row * rank + r];

                for (int64_t i = 0; i < width; i++)
                    sums[i] = __builtin_fmaf(factor, a[r * cols + col + i], sums[i]);
            }
            for (int64_t i = 0; i < width; i++)
                data[row * stride + col + i] += scale * sums[i];
        }
}

/* Whose rows of a matrix are merged: a module's of a layer, or of one of its experts. */
struct merged {
    int layer, expert;
    enum lora_module module;
    int64_t rows; /* of its B */
};

/* The expert's part of all that the adapter's parameter has. */
static struct store_slice own_slice(const struct adapter *a, const struct merged *of,
                                    const char *name, int64_t rows, int64_t cols)
{
    return (struct store_slice){ .name = name,
                                 .dtype = DTYPE_F32,
                                 .n_dims = 2,
                                 .rows = rows * lora_n_pairs(&a->spec, of->module),
                                 .cols = cols,
                                 .row_begin = rows * of->expert,
                                 .row_end = rows * (of->expert + 1),
                                 .col_end = cols };
}

/* Rows [begin, end) of the adapter's own, which are rows `at` and on of what is wanted. */
static int add_rows(struct adapter *a, const struct merged *of, const struct store_slice *want,
                    int64_t begin, int64_t end, int64_t at, struct err *err)
{
    struct lora_place place = tuning_place(&a->tuning, of->layer, of->module);
    int64_t n_cols = want->col_end - want->col_begin, stride = want->stride ? want->stride : n_cols;
    char name_a[PARAMETER_NAME_MAX], name_b[PARAMETER_NAME_MAX];
    float *own_a = malloc((size_t)(place.rank * n_cols) * sizeof *own_a);
    float *own_b = malloc((size_t)((end - begin) * place.rank) * sizeof *own_b);
    struct store_slice slice = own_slice(a, of, name_a, place.rank, want->cols);

    slice.col_begin = want->col_begin;
    slice.col_end = want->col_end;
    slice.data = own_a;
    lora_name(name_a, of->layer, of->module, LORA_A);
    lora_name(name_b, of->layer, of->module, LORA_B);
    int status = own_a && own_b ? adapter_overlay(a, &slice, err) : no_memory(a, err);
    slice = own_slice(a, of, name_b, of->rows, place.rank);
    slice.row_end = slice.row_begin + end;
    slice.row_begin += begin;
    slice.data = own_b;
    if (!status)
        status = adapter_overlay(a, &slice, err);
    if (!status)
        add_product((float *)want->data + (at - want->row_begin) * stride, stride, own_b, own_a,
                    end - begin, n_cols, place.rank, (float)place.scale);
    free(own_a);
    free(own_b);
    return status;
}

/* What the HF tensor has of the wanted rows. */
static int add_tensor(struct adapter *a, const struct hf_tensor *t, struct merged *of,
                      const struct store_slice *want, struct err *err)
{
    int64_t first = t->pieces[0].ours;

    for (int i = 0; i < t->n_pieces; i++)
        first = min_i64(first, t->pieces[i].ours);
    int64_t begin = max_i64(first, want->row_begin);
    int64_t end = min_i64(first + t->n_rows, want->row_end);
    of->rows = t->n_rows;
    return begin < end ? add_rows(a, of, want, begin - first, end - first, begin, err) : 0;
}

int adapter_add(struct adapter *a, const struct store_slice *want, struct err *err)
{
    const struct hf_whole *whole = hf_names_find(&a->names, want->name);

    CHECK(want->dtype == DTYPE_F32);
    for (int m = 0; m < N_LORA_MODULES && whole; m++) {
        struct merged of = { .layer = whole->id.layer, .module = (enum lora_module)m };

        for (; of.expert < lora_n_pairs(&a->spec, of.module); of.expert++) {
            const struct hf_tensor *t = adapted_tensor(a, whole, of.module, of.expert);

            if (t && add_tensor(a, t, &of, want, err) < 0)
                return -1;
        }
    }
    return 0;
}
