/*
 * stream_test.c - dtypes of the residual stream and of activations beside it
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_facts.h"
#include "support/op_text.h"

/* Operands of the residual stream to res, activations beside it to act, by their names. Returns how
 * many are of the stream. */
static int set_dtypes(struct op_text *text, enum dtype act, enum dtype res)
{
    const struct op_info *info = op_info(text->op.kind);
    int n_streams = 0;

    for (int i = 0; i < info->n_inputs + info->n_outputs; i++) {
        int is_input = i < info->n_inputs, k = is_input ? i : i - info->n_inputs;
        char name[32];
        struct tensor *t = is_input ? &text->op.in[k] : &text->op.out[k];

        snprintf(name, sizeof name, " %s ",
                 is_input ? info->inputs[k].name : info->outputs[k].name);
        if (strstr(" base x sum add dx ", name)) {
            t->dtype = res;
            n_streams++;
        } else if (strstr(" table y delta dy copy ", name)) {
            t->dtype = act;
        }
    }
    /* Of bf16 alone. */
    for (int k = info->codes_output - 1; k >= 0 && k < info->n_outputs && act != DTYPE_BF16; k++)
        text->op.out[k] = (struct tensor){ 0 };
    return n_streams;
}

/* The residual stream and activations beside it. */
static void test_dtypes_of_the_stream(void **state)
{
    static const enum op_kind kinds[] = { OP_EMBED,       OP_RMSNORM,        OP_RMSNORM_GRAD,
                                          OP_ADD_RMSNORM, OP_LAYERNORM_GRAD, OP_ADD_LAYERNORM };
    struct op_text good;

    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int act = DTYPE_F32; act <= DTYPE_F16; act++)
            for (int res = DTYPE_F32; res <= DTYPE_F16; res++) {
                op_text_parse(&good, op_example(kinds[k]));
                assert_true(set_dtypes(&good, (enum dtype)act, (enum dtype)res) > 0);
                struct err err = { 0 };
                bool fits = res == DTYPE_F32 || (res == DTYPE_BF16 && act == DTYPE_BF16);
                if (!op_check(&good.op, &err) != fits)
                    fail_msg("%s, %s beside %s: %s", op_name(kinds[k]), dtype_name((enum dtype)res),
                             dtype_name((enum dtype)act), fits ? err.text : "accepted");
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_dtypes_of_the_stream) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
