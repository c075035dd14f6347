/*
 * hf_model.h - loss and gradients, in fp32, of the model in a Hugging Face folder, by its own names
 */
#ifndef SUPPORT_HF_MODEL_H
#define SUPPORT_HF_MODEL_H

#include "convert/hf_rows.h"
#include "serve/served.h"
#include "support/layouts.h"

struct hf_model {
    struct served served;
    const struct hf_names *names;
    struct experiment experiment; /* its model without dropout and its weights; text is to be set */
};

int hf_model_open(struct hf_model *model, const char *folder, struct err *err);
void hf_model_close(struct hf_model *model);

/* Elements of tensor i of the names. */
int64_t hf_model_size(const struct hf_model *model, int i);

/* Whether it has a gradient: balance biases have none. */
bool hf_model_is_trained(const struct hf_model *model, int i);

/* Its gradient as it lies in the folder: [hf_rows_rows x hf_rows_cols], or a vector. */
void hf_model_gradient(const struct hf_model *model, const struct outcome *outcome, int i,
                       float *out);

#endif
