/*
 * dtype_choices.h - dtypes that jobs and options choose among
 *
 * Apart from dtype.h, which GPU code includes, too.
 */
#ifndef BASE_DTYPE_CHOICES_H
#define BASE_DTYPE_CHOICES_H

#include "base/choice.h"
#include "base/dtype.h"

extern const struct choice dtype_wide_choices[];       /* fp32, bf16 */
extern const struct choice dtype_float_choices[];      /* and fp16 */
extern const struct choice dtype_torch_choices[];      /* these three by PyTorch's names */
extern const struct choice dtype_conversion_choices[]; /* all of these, and keep: -1 */

#endif
