/*
 * convert_impl.h - the two directions, and what they share
 */
#ifndef CONVERT_CONVERT_IMPL_H
#define CONVERT_CONVERT_IMPL_H

#include "convert/convert.h"
#include "serve/served.h"

struct conversion {
    const struct convert_options *options;
    struct convert_result *result;
    struct arena arena;
    struct served from;
    const char *family;
    const char *partial; /* where is written */
    int64_t done, total; /* bytes */
};

int convert_to_checkpoint(struct conversion *conversion, struct err *err);
int convert_to_folder(struct conversion *conversion, struct err *err);

/* The same tensors and the same logits in what was written; ERR_DATA if not. */
int convert_verify(struct conversion *conversion, struct err *err);

void conversion_tell(struct conversion *conversion, const char *doing, int64_t n_bytes);

/* Copy what belongs to a model beside its weights; config.json only where asked. */
int carry_files(const char *from, const char *to, int with_config, struct err *err);

/* config.json with another type of weights. */
int carry_config(const char *from, const char *to, enum dtype dtype, struct err *err);

#endif
