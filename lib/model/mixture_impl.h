/*
 * mixture_impl.h - a layer's mixture of experts
 */
#ifndef MODEL_MIXTURE_IMPL_H
#define MODEL_MIXTURE_IMPL_H

#include "model/emitter_impl.h"

/* y: a norm's output. Returns what is to be added to the residual stream. */
int mixture_emit(const struct emitter *emitter, int y);

#endif
