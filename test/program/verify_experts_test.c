/*
 * verify_experts_test.c - a mixture compiled for ep 2, dp 2 is refused where sums of gradients go
 * over the wrong ranks: experts' over ep, whose ranks have other experts, or dense ones not over
 * all
 */
#include "verify_judge.h"

#include <stdbool.h>

#include "support/tiny_model.h"

static void compile(struct program *program, int early, int zero)
{
    static struct model_spec spec;
    struct compile_train options;
    struct err err;

    spec = tiny_spec("mixture");
    options = tiny_compile(&spec, 2);
    options.mesh.size[AXIS_EP] = 2;
    options.gradients.early = early;
    options.gradients.zero = zero;
    if (compile_train(program, &options, &err) < 0)
        fail_msg("%s", err.text);
    check_accepted(program);
}

static bool is_sum(const struct op *op, enum mesh_axis axis)
{
    return (op->kind == OP_ALL_REDUCE || op->kind == OP_REDUCE_SCATTER) &&
           op->attributes.axis == axis;
}

/* Whether it is a bucket, and each rank of ep has it of other experts. */
static bool is_of_experts(const struct program *p, int id)
{
    return p->values[program_base(p, id)].role == ROLE_GRADIENT &&
           p->values[id].spread[AXIS_EP] == SPREAD_COLS;
}

/* The n-th sum of buckets over the axis, of experts' or of dense ones; NULL if there are fewer. */
static struct op *nth_sum(const struct program *p, enum mesh_axis axis, bool of_experts, int n,
                          struct function **function)
{
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            struct op *op = &p->functions[f].ops[i];
            int id = op->in[OPS_FIRST];

            *function = &p->functions[f];
            if (is_sum(op, axis) && p->values[program_base(p, id)].role == ROLE_GRADIENT &&
                is_of_experts(p, id) == of_experts && n-- == 0)
                return op;
        }
    return NULL;
}

static void remove_op(struct function *f, const struct op *op)
{
    int index = (int)(op - f->ops);

    f->n_ops--;
    memmove(f->ops + index, f->ops + index + 1, sizeof *f->ops * (size_t)(f->n_ops - index));
}

static void must_be_refused(const struct program *p, const char *what, int n)
{
    struct err err = { 0 };

    if (verify(p, &err) == 0)
        fail_msg("%s, sum %d: accepted", what, n);
}

/* Any one of them. Returns how many there are. */
static int each_missing(enum mesh_axis axis, bool of_experts, int early, int zero)
{
    for (int n = 0;; n++) {
        struct program p;
        struct function *f;

        compile(&p, early, zero);
        struct op *op = nth_sum(&p, axis, of_experts, n, &f);
        if (op)
            remove_op(f, op);
        if (op)
            must_be_refused(&p, of_experts ? "experts" : "dense", n);
        program_release(&p);
        if (!op)
            return n;
    }
}

static void sums_are_missing(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++)
        for (int zero = 0; zero < 2; zero++) {
            assert_true(each_missing(AXIS_DATA, false, early, zero) > 1);
            assert_int_equal(each_missing(AXIS_EP, false, early, zero), 0);
            assert_int_equal(each_missing(AXIS_DP, false, early, zero), 0);
            assert_true(each_missing(AXIS_DP, true, early, zero) >= 1);
            assert_int_equal(each_missing(AXIS_EP, true, early, zero), 0);
            assert_int_equal(each_missing(AXIS_DATA, true, early, zero), 0);
        }
}

/* The sum of experts' gradients over dp, and one over ep before it. */
static void experts_are_summed_over_ep(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) {
        struct program p;
        struct function *f;

        compile(&p, early, 0);
        struct op *op = nth_sum(&p, AXIS_DP, true, 0, &f);
        assert_non_null(op);
        int whole = op->in[OPS_FIRST], index = (int)(op - f->ops);
        const struct value v = p.values[whole];
        int sum = program_view(&p, program_base(&p, whole), v.offset, v.rows, v.cols, v.stride);
        memcpy(p.values[sum].spread, v.spread, sizeof v.spread);
        p.values[sum].spread[AXIS_EP] = SPREAD_SAME;
        struct op copy = *op;
        struct op more = { .kind = OP_ALL_REDUCE,
                           .attributes.axis = AXIS_EP,
                           .in = { whole },
                           .out = { sum },
                           .stream = op->stream,
                           .phase = op->phase,
                           .layer = op->layer };

        /* program_emit would refuse the spoiled op: another makes room for it. */
        program_emit(&p, (int)(f - p.functions), &copy);
        memmove(f->ops + index + 1, f->ops + index,
                sizeof *f->ops * (size_t)(f->n_ops - index - 1));
        f->ops[index] = more;
        REFUSED(&p, "all_reduce", "over ep", "wanted partial");
        /* Nor where what is summed is said to be owed. */
        for (int id = 1; id < p.n_values; id++)
            if (program_base(&p, id) == program_base(&p, whole) && id != sum &&
                is_of_experts(&p, id))
                p.values[id].spread[AXIS_EP] = SPREAD_PARTIAL;
        must_be_refused(&p, "experts' over ep, as partial ones", 0);
        program_release(&p);
    }
}

/* A sum that goes over another axis in its place. */
static void sums_over_another_axis(void **state)
{
    static const struct {
        enum mesh_axis axis, other;
        bool of_experts;
    } cases[] = { { AXIS_DATA, AXIS_DP, false },
                  { AXIS_DATA, AXIS_EP, false },
                  { AXIS_DP, AXIS_EP, true },
                  { AXIS_DP, AXIS_DATA, true } };

    (void)state;
    for (int i = 0; i < 4; i++)
        for (int zero = 0; zero < 2; zero++) {
            struct program p;
            struct function *f;

            compile(&p, 0, zero);
            struct op *op = nth_sum(&p, cases[i].axis, cases[i].of_experts, 0, &f);
            assert_non_null(op);
            op->attributes.axis = cases[i].other;
            must_be_refused(&p, "another axis", i);
            program_release(&p);
        }
}

/* Experts that all ranks are said to have. */
static void whole_experts(void **state)
{
    struct program p;

    (void)state;
    compile(&p, 0, 0);
    for (int i = 0; i < p.n_parameters; i++)
        if (p.values[p.parameters[i].weight].spread[AXIS_EP] == SPREAD_ROWS)
            p.values[p.parameters[i].weight].spread[AXIS_EP] = SPREAD_SAME;
    REFUSED(&p, "expert_linear", "over ep", "w is same, wanted split(rows)");
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_missing),
        cmocka_unit_test(experts_are_summed_over_ep),
        cmocka_unit_test(sums_over_another_axis),
        cmocka_unit_test(whole_experts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
