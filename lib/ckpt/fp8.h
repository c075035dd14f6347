/*
 * fp8.h - numbers of eight bits, as files hold them
 *
 * E4M3 is safetensors' F8_E4M3 (torch.float8_e4m3fn: no infinities, NaN is all ones), E5M2 an
 * fp16's upper half. All of them are exact in bf16, fp16 and fp32. No value here is ever computed
 * in them.
 */
#ifndef CKPT_FP8_H
#define CKPT_FP8_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/safetensors.h"

/* Whether it is one of both. */
bool fp8_is(enum safetensors_type type);

/* What each of the 256 stands for. */
void fp8_table(enum safetensors_type type, float values[256]);

#endif
