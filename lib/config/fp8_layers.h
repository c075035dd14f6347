/*
 * fp8_layers.h - which layers of a model have products of fp8
 */
#ifndef CONFIG_FP8_LAYERS_H
#define CONFIG_FP8_LAYERS_H

#include <stdbool.h>

#include "config/model_spec.h"
#include "ops/fp8_recipe.h"

/* Whether the layer's matrices, but those of routers, and of experts unless they are chosen, too,
 * may be multiplied in fp8. */
bool fp8_has_layer(const struct fp8_choice *choice, const struct model_spec *spec, int layer);

#endif
