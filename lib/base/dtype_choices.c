/*
 * dtype_choices.c - names of dtypes that users choose among
 */
#include "base/dtype_choices.h"

/* As dtype_name has them (test/base/choice_test.c). */
#define FP32 \
    { \
        "fp32", DTYPE_F32 \
    }
#define BF16 \
    { \
        "bf16", DTYPE_BF16 \
    }
#define FP16 \
    { \
        "fp16", DTYPE_F16 \
    }
#define TORCH \
    { "float32", DTYPE_F32 }, { "bfloat16", DTYPE_BF16 }, \
    { \
        "float16", DTYPE_F16 \
    }

const struct choice dtype_wide_choices[] = { FP32, BF16, { 0 } };
const struct choice dtype_float_choices[] = { FP32, BF16, FP16, { 0 } };
const struct choice dtype_torch_choices[] = { TORCH, { 0 } };
const struct choice dtype_conversion_choices[] = { { "keep", -1 }, FP32, BF16, FP16, TORCH, { 0 } };
