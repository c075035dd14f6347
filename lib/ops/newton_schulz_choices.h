/*
 * newton_schulz_choices.h - the words of newton_schulz.h's enums
 */
#ifndef OPS_NEWTON_SCHULZ_CHOICES_H
#define OPS_NEWTON_SCHULZ_CHOICES_H

#include "base/choice.h"
#include "ops/newton_schulz.h"

extern const struct choice newton_schulz_choices[];
extern const struct choice muon_scale_choices[];

#endif
