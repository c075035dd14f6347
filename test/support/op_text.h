/*
 * op_text.h - an op's shape written as text, for tests of the catalogue
 *
 * "linear 12x8 bf16, 6x8 bf16, - : 12x6 f32": inputs, then outputs; "-" is absent. A "*" in front
 * of an extent says that it may be any: op_text_free finds it again.
 */
#ifndef TEST_SUPPORT_OP_TEXT_H
#define TEST_SUPPORT_OP_TEXT_H

#include "ops/op_info.h"

struct op_text {
    struct op_shape op;      /* attributes fit the dimensions used in test/ops */
    int n_inputs, n_outputs; /* as written, absent ones too */
    int free_rows[OPS_MAX_INPUTS + OPS_MAX_OUTPUTS], free_cols[OPS_MAX_INPUTS + OPS_MAX_OUTPUTS];
};

/* Fails the test where the text is wrong. */
void op_text_parse(struct op_text *out, const char *text);

/* Input i, or output i - OPS_MAX_INPUTS. */
struct tensor *op_text_operand(struct op_shape *op, int i);

#endif
