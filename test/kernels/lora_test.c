/*
 * lora_test.c - adapters' products added, scaled; masks of a part of the columns; 16-bit sums
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

/* Ranks of three parts (0: no pair), their widths, rows: ranks of any size, blocks and their
 * rest. */
static const struct form {
    int rows, ranks[OPS_LORA_PARTS], parts[OPS_LORA_PARTS];
    int gap; /* 0: 3 columns behind each row; 8: all are of 16 bytes */
} forms[] = {
    { 1, { 1, 0, 0 }, { 1, 0, 0 }, 0 },        { 7, { 3, 0, 5 }, { 4, 2, 9 }, 0 },
    { 128, { 8, 8, 8 }, { 64, 16, 16 }, 0 },   { 300, { 0, 17, 0 }, { 33, 70, 1 }, 0 },
    { 129, { 64, 0, 0 }, { 500, 500, 0 }, 0 }, { 260, { 2, 1, 7 }, { 5, 300, 31 }, 0 },
    { 5, { 8, 16, 8 }, { 64, 8, 136 }, 8 },    { 130, { 0, 72, 0 }, { 24, 200, 8 }, 8 },
};

static void adapters_are_added(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            enum dtype act = act_at(i_act);
            struct op_attributes a = { 0 };
            int n = 0;

            for (int i = 0; i < OPS_LORA_PARTS; i++)
                n += a.parts[i] = forms[f].parts[i];
            struct op_case *c = op_case_create(OP_LORA, &a);
            c->gap = forms[f].gap;
            op_case_input(c, 0, forms[f].rows, n, act, 1);
            for (int i = 0; i < OPS_LORA_PARTS; i++)
                if (forms[f].ranks[i]) {
                    op_case_input(c, 1 + 2 * i, forms[f].rows, forms[f].ranks[i], act, 1);
                    op_case_input(c, 2 + 2 * i, forms[f].parts[i], forms[f].ranks[i], act, 0.3);
                }
            op_case_output(c, 0, forms[f].rows, n, act);
            op_case_check(c, 1e-5);
            op_case_destroy(c);
        }
}

/* Of experts, some of which have no rows. */
static void adapters_of_experts_are_added(void **state)
{
    static const int rows[] = { 0, 1, 130, 0, 7, 128, 0 };
    enum { M = 7 };

    (void)state;
    for (size_t f = 1; f < sizeof forms / sizeof *forms; f++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            struct op_attributes a = { 0 };
            enum dtype act = act_at(i_act);
            int n = 0, n_rows = 0, end = 0;

            for (int i = 0; i < OPS_LORA_PARTS; i++)
                n += a.parts[i] = forms[f].parts[i];
            for (int e = 0; e < M; e++)
                n_rows += rows[e];
            struct op_case *c = op_case_create(OP_EXPERT_LORA, &a);
            c->gap = forms[f].gap;
            op_case_input(c, EXPERT_LORA_Y, n_rows, n, act, 1);
            op_case_input(c, EXPERT_LORA_ENDS, 1, M, DTYPE_I32, 0);
            for (int i = 0; i < OPS_LORA_PARTS; i++)
                if (forms[f].ranks[i]) {
                    op_case_input(c, EXPERT_LORA_H0 + 2 * i, n_rows, forms[f].ranks[i], act, 1);
                    op_case_input(c, EXPERT_LORA_B0 + 2 * i, M * forms[f].parts[i],
                                  forms[f].ranks[i], act, 0.3);
                }
            op_case_output(c, EXPERT_LORA_OUT, n_rows, n, act);
            for (int e = 0; e < M; e++)
                tensor_set(&c->op.in[EXPERT_LORA_ENDS], 0, e, end += rows[e]);
            op_case_check(c, 1e-5);
            op_case_destroy(c);
        }
}

static void scaled(void **state)
{
    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        struct op_case *c = op_case_create(OP_SCALE, &(struct op_attributes){ .scale = 1.75 });
        enum dtype act = act_at(i_act);

        op_case_input(c, 0, 700, 50, act, 3);
        op_case_output(c, 0, 700, 50, act);
        op_case_check(c, 1e-7);
        op_case_destroy(c);
    }
}

/* All of one type, as gradients of what is read several times are. */
static void added_in_16_bits(void **state)
{
    (void)state;
    for (int i_act = 1; i_act < N_ACTS; i_act++) {
        struct op_case *c = op_case_create(OP_ADD, &(struct op_attributes){ 0 });

        op_case_input(c, 0, 70, 33, act_at(i_act), 3);
        op_case_input(c, 1, 70, 33, act_at(i_act), 3);
        op_case_output(c, 0, 70, 33, act_at(i_act));
        op_case_check(c, 1e-7);
        op_case_destroy(c);
    }
}

/* A rank's columns of a row are dropped as they are where all of it is. */
static void columns_know_their_places(void **state)
{
    static const int begins[] = { 0, 3, 4, 62, 1001 };

    (void)state;
    for (int i = 0; i < 5; i++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            struct op_attributes a = {
                .seq_len = 5, .p = 0.3, .seed = 42, .rng_site = 7, .by_columns = 1
            };
            struct op_case *c = op_case_create(OP_DROPOUT, &a);
            enum dtype act = act_at(i_act);

            op_case_input(c, 0, 15, 61, act, 1);
            op_case_input(c, 1, 3, 1, DTYPE_I64, 0);
            op_case_input(c, 2, 1, 1, DTYPE_I32, 0);
            op_case_output(c, 0, 15, 61, act);
            tensor_set(&c->op.in[2], 0, 0, begins[i]);
            op_case_check(c, 1e-7);
            op_case_destroy(c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_are_added),
        cmocka_unit_test(adapters_of_experts_are_added),
        cmocka_unit_test(scaled),
        cmocka_unit_test(added_in_16_bits),
        cmocka_unit_test(columns_know_their_places),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
