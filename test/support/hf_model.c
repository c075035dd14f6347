#include "support/hf_model.h"

#include <string.h>

static int read_whole(void *context, const char *name, int n_dims, int64_t rows, int64_t cols,
                      float *out, struct err *err)
{
    struct hf_model *model = context;
    struct store_slice slice = { .name = name, .dtype = DTYPE_F32, .n_dims = n_dims, .data = out };

    slice.rows = slice.row_end = n_dims == 1 ? cols : rows;
    slice.cols = slice.col_end = n_dims == 1 ? 1 : cols;
    return weights_read(&model->served.weights, &slice, err);
}

int hf_model_open(struct hf_model *model, const char *folder, struct err *err)
{
    *model = (struct hf_model){ 0 };
    if (served_open(&model->served, folder, err) < 0)
        return -1;
    if (!model->served.weights.folder) {
        served_close(&model->served);
        return err_set(err, ERR_DATA, "%s is no Hugging Face folder", folder);
    }
    model->served.job.train.dtype = DTYPE_F32;
    model->names = hf_folder_names(model->served.weights.folder);
    model->experiment.spec = model->served.job.model;
    model->experiment.spec.dropout = model->experiment.spec.attention_dropout = 0;
    model->experiment.weights = read_whole;
    model->experiment.context = model;
    return 0;
}

void hf_model_close(struct hf_model *model)
{
    served_close(&model->served);
}

int64_t hf_model_size(const struct hf_model *model, int i)
{
    return hf_rows_rows(&model->names->tensors[i]) * hf_rows_cols(&model->names->tensors[i]);
}

bool hf_model_is_trained(const struct hf_model *model, int i)
{
    return !parameters_is_balance(model->names->tensors[i].id);
}

void hf_model_gradient(const struct hf_model *model, const struct outcome *outcome, int i,
                       float *out)
{
    const struct hf_tensor *tensor = &model->names->tensors[i];
    const struct gradient *ours = outcome_find(outcome, tensor->whole->name);
    int64_t cols = tensor->whole->cols;

    CHECK(ours);
    CHECK(ours->rows * ours->cols == tensor->whole->rows * cols);
    for (int p = 0; p < tensor->n_pieces; p++) {
        const struct hf_piece *piece = &tensor->pieces[p];

        for (int64_t row = 0; row < piece->n; row++)
            for (int64_t col = 0; col < cols; col++) {
                int64_t theirs = piece->theirs + row;
                int64_t at =
                    tensor->transposed ? col * tensor->n_rows + theirs : theirs * cols + col;

                out[at] = ours->data[(piece->ours + row) * cols + col];
            }
    }
}
