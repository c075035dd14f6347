/*
 * grown_vocab.c - weights that are read as if the vocabulary had grown already
 */
#include "ckpt/grown_vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "ckpt/convert_dtype.h"

#define STEP_BYTES ((int64_t)4 << 20)

/* What has a row a token, in the order of source.means. */
static const enum module_id tables[] = { MODULE_EMBEDDING, MODULE_HEAD };

#define N_TABLES (int)(sizeof tables / sizeof *tables)

static void name_table(char name[PARAMETER_NAME_MAX], int number)
{
    parameters_name(name, (struct parameter_id){ tables[number], PART_WEIGHT, LAYER_BEFORE });
}

/* N_TABLES if the name is none's. */
static int number_of(const char *name)
{
    char own[PARAMETER_NAME_MAX];
    int number = 0;

    for (; number < N_TABLES; number++) {
        name_table(own, number);
        if (!strcmp(own, name))
            break;
    }
    return number;
}

int grown_vocab_grows(const struct vocab_source *s, const char *name)
{
    return s->rows != s->rows_there && number_of(name) < N_TABLES;
}

const float *grown_vocab_mean(const struct vocab_source *s, const char *name, int64_t col)
{
    int number = number_of(name);

    CHECK(number < N_TABLES);
    CHECK(s->means[number]);
    return s->means[number] + col;
}

static int add_rows(const struct vocab_source *s, struct store_slice *slice, double *sums,
                    struct err *err)
{
    int64_t cols = slice->cols, step = max_i64(1, STEP_BYTES / (cols * (int64_t)sizeof(float)));
    float *rows = malloc((size_t)(step * cols) * sizeof *rows);
    int status = rows ? 0 : err_set(err, ERR_DEVICE, "out of host memory");

    slice->data = rows;
    for (int64_t row = 0; row < slice->rows && !status; row += step) {
        slice->row_begin = row;
        slice->row_end = min_i64(row + step, slice->rows);
        status = weights_read(s->weights, slice, err);
        for (int64_t i = 0; i < slice->row_end - row && !status; i++)
            for (int64_t col = 0; col < cols; col++)
                sums[col] += (double)rows[i * cols + col];
    }
    free(rows);
    return status;
}

static int find_mean(struct vocab_source *s, int number, int64_t cols, struct arena *arena,
                     struct err *err)
{
    char name[PARAMETER_NAME_MAX];
    struct store_slice slice = { .name = name,
                                 .dtype = DTYPE_F32,
                                 .n_dims = 2,
                                 .rows = s->rows_there,
                                 .cols = cols,
                                 .col_end = cols };
    double *sums = arena_array(arena, double, cols);

    name_table(name, number);
    if (add_rows(s, &slice, sums, err) < 0)
        return -1;
    s->means[number] = arena_array(arena, float, cols);
    for (int64_t col = 0; col < cols; col++)
        s->means[number][col] = (float)(sums[col] / (double)s->rows_there);
    return 0;
}

int grown_vocab_grow(struct vocab_source *s, const struct model_spec *spec, int64_t rows,
                     struct arena *arena, struct err *err)
{
    for (int i = 0; i < 2 - !!spec->tied_embeddings; i++)
        if (find_mean(s, i, spec->hidden_size, arena, err) < 0)
            return -1;
    s->rows = rows;
    return 0;
}

int grown_vocab_read(const struct vocab_source *s, const struct store_slice *slice, struct err *err)
{
    if (!grown_vocab_grows(s, slice->name))
        return weights_read(s->weights, slice, err);
    struct store_slice there = *slice;
    int64_t n_cols = slice->col_end - slice->col_begin, stride = slice->stride;
    size_t element = dtype_bytes(slice->dtype);

    there.rows = s->rows_there;
    there.row_end = min_i64(slice->row_end, s->rows_there);
    if (there.row_begin < there.row_end && weights_read(s->weights, &there, err) < 0)
        return -1;
    stride = stride ? stride : n_cols;
    for (int64_t row = max_i64(slice->row_begin, s->rows_there); row < slice->row_end; row++)
        convert(slice->dtype,
                (unsigned char *)slice->data +
                    (size_t)((row - slice->row_begin) * stride) * element,
                DTYPE_F32, grown_vocab_mean(s, slice->name, slice->col_begin), n_cols);
    return 0;
}
