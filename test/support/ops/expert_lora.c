/*
 * expert_lora.c - facts of adapters of experts
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/gradient_check.h"
#include "support/ops/op_family.h"

static void expert_lora(const struct op_shape *op)
{
    const struct tensor *ends = &op->in[EXPERT_LORA_ENDS];
    int64_t begin = 0, n_rows = int_at(ends, ends->cols - 1);

    for (int64_t t = 0; t < n_rows; t++)
        for (int64_t i = 0; i < op->out[EXPERT_LORA_OUT].cols; i++)
            OUT(EXPERT_LORA_OUT, t, i) = IN(EXPERT_LORA_Y, t, i);
    for (int part = 0; part < OPS_LORA_PARTS; begin += op->attributes.parts[part++]) {
        const struct tensor *h = &op->in[EXPERT_LORA_H0 + 2 * part], *b = h + 1;
        int64_t n = op->attributes.parts[part];

        for (int64_t t = 0; h->rows && t < n_rows; t++) {
            int64_t row = 0;

            for (int64_t e = 0; int_at(ends, e) <= t; e++)
                row += n;
            for (int64_t i = 0; i < n; i++)
                for (int64_t k = 0; k < h->cols; k++)
                    OUT(EXPERT_LORA_OUT, t, begin + i) +=
                        tensor_get(h, t, k) * tensor_get(b, row + i, k);
        }
    }
}

const struct op_facts expert_lora_facts[N_OP_KINDS] = {
    [OP_EXPERT_LORA] = {
        .example = "expert_lora 24x6 bf16, 1x5 i32, 24x2 bf16, 10x2 bf16, 24x1 bf16, 5x1 bf16, "
                   "24x3 bf16, 15x3 bf16 : 24x6 bf16",
        .spreads = "ssssssss > s; rrrsrsrs > r; rcrrrrrr > r; cssrsrsr > c; pspspsps > p",
        .reference = expert_lora,
    },
};
