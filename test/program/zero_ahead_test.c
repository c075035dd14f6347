/*
 * zero_ahead_test.c - zero 1 and 2: what a step reads first is gathered in the update before it
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "zero3_programs.h"

/* Eight layers in many buckets, of two stages or one. */
static struct compile_train many_buckets(struct model_spec *spec, int n_stages, int n_ahead)
{
    struct compile_train options;

    *spec = tiny_spec("llama");
    spec->n_layers = 8;
    options = tiny_compile(spec, 2);
    options.mesh.size[AXIS_PP] = n_stages;
    options.n_micro_batches = 3;
    options.gradients.zero = 1;
    options.gradients.bucket_bytes = 4096;
    options.ahead.n_ahead = n_ahead;
    return options;
}

static const struct function *last_function(const struct program *p)
{
    const struct entry *step = &p->entries[ENTRY_STEP];

    return &p->functions[step->actions[step->n_actions - 1].function];
}

static int count_in_update(const struct program *p)
{
    const struct function *f = last_function(p);
    int n = 0;

    for (int i = 0; i < f->n_ops; i++)
        n += is_gather(p, &f->ops[i]) || f->ops[i].stream == STREAM_DP_GATHER;
    return n;
}

static int count_in_front(const struct program *p)
{
    const struct entry *step = &p->entries[ENTRY_STEP];
    const struct function *f = &p->functions[step->actions[0].function];

    return step->actions[0].kind == ACTION_RUN && step->actions[0].micro_batch < 0 ? f->n_ops : 0;
}

/* Of gathers and updates of these buckets: each gather comes behind its update, ahead of all
 * updates of buckets that are gathered at the front. */
static void check_order(const struct program *p)
{
    const struct function *f = last_function(p);
    int n_gathered = 0, n_ahead = count_in_update(p);

    for (int i = 0; i < f->n_ops; i++) {
        if (f->ops[i].stream == STREAM_DP_GATHER) {
            int base = program_base(p, f->ops[i].out[ALL_GATHER_FULL]);
            bool is_updated = false;

            for (int k = 0; k < i; k++)
                is_updated |= f->ops[k].kind == OP_ADAMW &&
                              (program_base(p, f->ops[k].out[OPTIMIZER_WEIGHT]) == base ||
                               program_base(p, f->ops[k].in[OPTIMIZER_MASTER]) == base);
            assert_true(is_updated);
            for (int k = i; k < f->n_ops; k++)
                assert_true(f->ops[k].kind != OP_ADAMW ||
                            (program_base(p, f->ops[k].out[OPTIMIZER_WEIGHT]) != base &&
                             program_base(p, f->ops[k].in[OPTIMIZER_MASTER]) != base));
            n_gathered++;
        } else if (f->ops[i].kind == OP_ADAMW) {
            int id = f->ops[i].out[OPTIMIZER_WEIGHT] ? f->ops[i].out[OPTIMIZER_WEIGHT]
                                                     : f->ops[i].in[OPTIMIZER_MASTER];
            bool is_ahead = false;

            for (int b = 0; b < p->n_buckets; b++)
                is_ahead |=
                    p->buckets[b].weights == program_base(p, id) && p->buckets[b].gathered_ahead;
            assert_true(is_ahead == (n_gathered < n_ahead));
        }
    }
}

static void first_buckets_in_the_update(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * 2 * 4; i++) {
        struct model_spec spec;
        struct compile_train options = many_buckets(&spec, 1 + i % 2, i / 4);
        struct program p;

        options.pipeline.rank = i % 2 ? i / 2 % 2 : 0;
        options.update.ema = i / 2 % 2 ? 0.99 : 0;
        compile(&p, &options);
        int n_all = p.functions[p.entries[ENTRY_GATHER].actions[0].function].n_ops;
        assert_true(n_all > 4);
        assert_int_equal(count_in_update(&p) + count_in_front(&p), n_all);
        assert_true(i / 4 ? count_in_update(&p) >= i / 4 : !count_in_update(&p));
        assert_true(count_in_front(&p) > 0);
        check_order(&p);
        program_release(&p);
    }
}

/* More than there are: no gather is left at the front, and nothing else changes. */
static void all_of_them(void **state)
{
    struct model_spec spec;
    struct compile_train options = many_buckets(&spec, 1, 1000);
    struct program p, before;

    (void)state;
    compile(&p, &options);
    options.ahead.n_ahead = 0;
    compile(&before, &options);
    assert_int_equal(p.entries[ENTRY_STEP].n_actions + 1, before.entries[ENTRY_STEP].n_actions);
    assert_int_equal(p.entries[ENTRY_STEP].actions[0].kind, ACTION_LOAD);
    check_order(&p);
    for (int s = 0; s < N_SEGMENTS; s++)
        assert_true(p.segment_bytes[s] == before.segment_bytes[s]);
    program_release(&p);
    program_release(&before);
}

/* ---- weights of fp8 ---- */

static bool gathers_codes(const struct program *p, const struct op *op)
{
    return op->kind == OP_ALL_GATHER &&
           p->values[program_base(p, op->out[ALL_GATHER_FULL])].role == ROLE_CODES;
}

/* What is read first is bf16, if the first layer is: it moves. Codes do not, nor what is behind
 * them; and if codes are read first, nothing does but vectors. */
static void before_weights_are_rounded(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * 2; i++) {
        struct model_spec spec;
        struct compile_train options = many_buckets(&spec, 1, 1 + i / 2 * 1000);
        struct program p;

        options.fp8 =
            (struct fp8_choice){ .recipe = i % 2 ? FP8_TENSOR : FP8_BLOCKWISE, .edge_layers = 1 };
        compile(&p, &options);
        const struct function *f = &p.functions[p.entries[ENTRY_STEP].actions[0].function];
        int n_codes = 0;

        assert_true(count_in_update(&p) > 0);
        check_order(&p);
        for (int k = 0; k < f->n_ops; k++)
            n_codes += gathers_codes(&p, &f->ops[k]);
        assert_true(n_codes > 0);
        f = last_function(&p);
        for (int k = 0; k < f->n_ops; k++)
            assert_false(gathers_codes(&p, &f->ops[k]));
        program_release(&p);
    }
}

/* ---- by time ---- */

struct times {
    int64_t gather_ns, update_ns;
};

static int64_t op_ns(void *context, const struct op_shape *shape)
{
    return shape->kind == OP_ADAMW ? ((const struct times *)context)->update_ns : 0;
}

static int64_t collective_ns(void *context, const struct op_shape *shape)
{
    (void)shape;
    return ((const struct times *)context)->gather_ns;
}

/* Of n buckets so many k that k gathers take as long as the other n - k updates, at least one. */
static void as_many_as_travel(void **state)
{
    static const struct times list[] = { { 1000000, 1 }, { 10, 10 }, { 10, 30 }, { 1, 1000000 } };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct times times = list[i];
        struct model_spec spec;
        struct compile_train options = many_buckets(&spec, 1, -1);
        struct program p;

        options.ahead.times = (struct slice_times){ op_ns, collective_ns, NULL, &times };
        compile(&p, &options);
        int n = p.functions[p.entries[ENTRY_GATHER].actions[0].function].n_ops;
        int k = (int)((int64_t)n * times.update_ns / (times.gather_ns + times.update_ns));
        int got = count_in_update(&p);
        program_release(&p);
        options.ahead.n_ahead = 1;
        compile(&p, &options);
        assert_int_equal(got, max_int(k, count_in_update(&p)));
        assert_true(i == 0 ? got > k : got == k);
        program_release(&p);
    }
}

/* ---- what verify refuses ---- */

static void a_step_leaves_what_it_begins_with(void **state)
{
    struct model_spec spec;
    struct compile_train options = many_buckets(&spec, 1, 2);
    struct program p;

    (void)state;
    compile(&p, &options);
    struct function *f = (struct function *)last_function(&p);
    int at = 0;
    while (f->ops[at].stream != STREAM_DP_GATHER)
        at++;
    struct op gather = f->ops[at];

    memmove(&f->ops[at], &f->ops[at + 1], sizeof gather * (size_t)(f->n_ops - at - 1));
    f->n_ops--;
    must_refuse(&p, p.values[gather.out[0]].name, "is not gathered, though the next step reads it");
    /* Ahead of its update. */
    memmove(&f->ops[1], &f->ops[0], sizeof gather * (size_t)f->n_ops);
    f->ops[0] = gather;
    f->n_ops++;
    must_refuse(&p, p.values[gather.out[0]].name, "is not gathered, though the next step reads it");
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_buckets_in_the_update),       cmocka_unit_test(all_of_them),
        cmocka_unit_test(before_weights_are_rounded),        cmocka_unit_test(as_many_as_travel),
        cmocka_unit_test(a_step_leaves_what_it_begins_with),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
