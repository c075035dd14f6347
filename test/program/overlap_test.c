/*
 * overlap_test.c - collectives stand where their input is made, and no earlier
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/tiny_model.h"

static int is_product(enum op_kind kind)
{
    return kind == OP_LINEAR || kind == OP_LINEAR_DX || kind == OP_LINEAR_DW;
}

static int makes(const struct program *p, const struct op *op, int value)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && program_base(p, op->out[k]) == program_base(p, value))
            return 1;
    return 0;
}

static int reads(const struct op *op, int value)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] == value)
            return 1;
    return 0;
}

/* Sums stand right behind what makes their summands, but for others of their stream. */
static void check_sum(const struct program *p, const struct function *f, int index)
{
    for (int i = index - 1; i >= 0; i--) {
        if (makes(p, &f->ops[i], f->ops[index].in[0]))
            return;
        if (f->ops[i].stream != STREAM_TP && is_product(f->ops[i].kind))
            fail_msg("op %d: a product stands between a sum and its summands", index);
    }
}

/* What is gathered again is on its way while one product runs, and not more. */
static void check_gathered_again(const struct function *f, int index)
{
    int n_products = 0, i = index + 1;

    for (; !reads(&f->ops[i], f->ops[index].out[0]); i++)
        n_products += is_product(f->ops[i].kind);
    assert_true(i < f->n_ops);
    assert_int_equal(n_products, 1);
}

static void check_model(const char *model, int sequence_parallel)
{
    struct model_spec spec = tiny_spec(model);
    struct compile_train options = tiny_compile(&spec, 1);
    struct program program;
    struct err err;
    int n_sums = 0, n_again = 0;

    options.mesh.size[AXIS_TP] = 2;
    options.sequence_parallel = sequence_parallel;
    options.recompute = RECOMPUTE_KIND_NONE;
    if (compile_train(&program, &options, &err) < 0)
        fail_msg("%s", err.text);
    const struct function *f = &program.functions[1];
    assert_string_equal(f->name, "backward 0");
    for (int i = 0; i < f->n_ops; i++) {
        if (f->ops[i].stream != STREAM_TP)
            continue;
        if (f->ops[i].phase == PHASE_R) {
            check_gathered_again(f, i);
            n_again++;
        } else if (f->ops[i].kind != OP_ALL_GATHER) {
            check_sum(&program, f, i);
            n_sums++;
        }
    }
    assert_int_equal(n_sums, 2 * spec.n_layers);
    assert_int_equal(n_again, sequence_parallel ? 2 * spec.n_layers : 0);
    program_release(&program);
}

static void tensor_parallel(void **state)
{
    (void)state;
    check_model("llama", 0);
    check_model("gpt2", 0);
}

static void sequence_parallel(void **state)
{
    (void)state;
    check_model("llama", 1);
    check_model("gpt2", 1);
}

/* Where nothing travels, nothing moves. */
static void one_rank(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_differentiate(&tiny, "llama", 1);
    struct function *f = &tiny.program.functions[tiny.backward];
    size_t n_bytes = sizeof *f->ops * (size_t)f->n_ops;
    struct op *before = arena_array(&tiny.program.arena, struct op, f->n_ops);
    memcpy(before, f->ops, n_bytes);
    overlap_collectives(&tiny.program, tiny.backward);
    assert_memory_equal(before, f->ops, n_bytes);
    tiny_release(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(sequence_parallel),
        cmocka_unit_test(one_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
