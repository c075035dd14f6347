/*
 * cost_test.c - FLOPs of an entry against what is counted by hand, and the memory table
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "support/tiny_model.h"

static void must_compile(struct program *program, const struct compile_train *options)
{
    struct err err;

    if (compile_train(program, options, &err) < 0)
        fail_msg("%s", err.text);
}

/* Every op of every action, one by one. */
static double counted(const struct program *p, enum entry_kind entry)
{
    double total = 0;

    for (int i = 0; i < p->entries[entry].n_actions; i++) {
        const struct action *a = &p->entries[entry].actions[i];

        if (a->kind != ACTION_RUN)
            continue;
        for (int k = 0; k < p->functions[a->function].n_ops; k++) {
            struct op_shape shape = program_op_shape(p, &p->functions[a->function].ops[k]);
            total += op_flops(&shape);
        }
    }
    return total;
}

static void flops_are_those_of_all_ops(void **state)
{
    (void)state;
    for (int dp_size = 1; dp_size <= 2; dp_size++)
        for (int kind = RECOMPUTE_KIND_NONE; kind <= RECOMPUTE_KIND_FULL; kind++) {
            struct model_spec spec = tiny_spec("llama");
            struct compile_train options = tiny_compile(&spec, dp_size);
            struct program p;

            options.recompute = (enum recompute_kind)kind;
            must_compile(&p, &options);
            for (int e = 0; e < N_ENTRIES; e++) {
                double flops = program_entry_flops(&p, (enum entry_kind)e);

                assert_true(fabs(flops - counted(&p, (enum entry_kind)e)) <= 1e-9 * flops);
            }
            assert_true(program_entry_flops(&p, ENTRY_STEP) > 0);
            assert_true(program_entry_flops(&p, ENTRY_PREFILL) <= 0);
            program_release(&p);
        }
}

/*
 * A large model's step is what MFU counts, 6 N + 6 L d T a token, but for what is no product
 * (norms, optimizer): a few percent.
 */
static void real_models_agree_with_the_formula(void **state)
{
    static const char *const models[] = { "llama-100m", "gpt2", "llama2-7b", "gpt3-175b" };

    (void)state;
    for (int m = 0; m < 4; m++) {
        struct model_spec spec = real_spec(models[m]);
        struct compile_train options = tiny_compile(&spec, 1);
        struct program p;

        options.seq_len = 1024;
        options.n_micro_batches = 16;
        must_compile(&p, &options);
        double tokens = 16.0 * options.micro_batch * options.seq_len;
        double formula = tokens * model_spec_flops_per_token(&spec, options.seq_len);
        double ratio = program_entry_flops(&p, ENTRY_STEP) / formula;
        if (!(ratio > 1 && ratio < 1.06))
            fail_msg("%s: %.4f of the formula", models[m], ratio);
        program_release(&p);
    }
}

/*
 * A mixture's are those of the experts that tokens go to; a rank's, of experts that are divided,
 * those of as many rows as its tokens have choices, whatever room there is.
 */
static void mixtures_agree_with_the_formula(void **state)
{
    static const char *const models[] = { "mixtral-8x7b", "qwen3-30b-a3b" };

    (void)state;
    for (int m = 0; m < 2; m++) {
        struct model_spec spec = real_spec(models[m]);
        double of_one = 0;

        for (int ep = 1; ep <= 8; ep *= 2) {
            struct compile_train options = tiny_compile(&spec, 1);
            struct program p;

            options.seq_len = 1024;
            options.n_micro_batches = 16;
            options.mesh.size[AXIS_EP] = ep;
            must_compile(&p, &options);
            double tokens = 16.0 * options.micro_batch * options.seq_len;
            double formula = tokens * model_spec_flops_per_token(&spec, options.seq_len);
            double flops = program_entry_flops(&p, ENTRY_STEP), ratio = flops / formula;
            of_one = ep == 1 ? flops : of_one;
            /* Fewer experts are updated here. */
            if (!(ratio > 1 && ratio < 1.08) || !(flops <= of_one && flops > 0.97 * of_one))
                fail_msg("%s, ep %d: %.4f of the formula, %.4f of ep 1", models[m], ep, ratio,
                         flops / of_one);
            program_release(&p);
        }
    }
}

/* What the table says of each segment is what place decided, and adds up. */
static void memory_table(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 1);
    struct memory_row rows[N_SEGMENTS];
    struct program p;
    size_t total = 0;

    (void)state;
    must_compile(&p, &options);
    int n = program_memory_table(&p, rows, N_SEGMENTS);
    for (int i = 0; i < n; i++) {
        int found = 0;

        for (int s = 0; s < N_SEGMENTS; s++)
            if (!strcmp(rows[i].name, segment_name((enum segment)s)))
                found = rows[i].n_bytes == p.segment_bytes[s];
        assert_true(found);
        assert_true(rows[i].n_bytes > 0);
        total += rows[i].n_bytes;
    }
    assert_int_equal(total, program_memory_bytes(&p));
    assert_int_equal(program_memory_table(&p, rows, 2), 2);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flops_are_those_of_all_ops),
        cmocka_unit_test(real_models_agree_with_the_formula),
        cmocka_unit_test(mixtures_agree_with_the_formula),
        cmocka_unit_test(memory_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
