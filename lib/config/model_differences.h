/*
 * model_differences.h - in which fields two models differ, of those that mean something in them
 *
 * An activation's width where no layer has it, a rope base under learned positions and the like are
 * no difference; nor is a model's name.
 */
#ifndef CONFIG_MODEL_DIFFERENCES_H
#define CONFIG_MODEL_DIFFERENCES_H

#include "base/str.h"
#include "config/model_spec.h"

enum model_use {
    MODEL_COMPUTES, /* fields by which the same weights give other logits, or are other tensors */
    MODEL_TRAINS,   /* that only training looks at: dropout, first values, balance; and the length
                       that rotary positions promise */
};

/*
 * Adds a's fields of that use that b has otherwise: "model.qk_norm true, model.window 32". Returns
 * how many. Numbers are the same to rounding of a product.
 */
int model_differences(const struct model_spec *a, const struct model_spec *b, enum model_use use,
                      struct str *out);

#endif
