/*
 * verify_sums_test.c - tiny models compiled for dp 2 are refused with one mistake in their sums
 * over ranks: a reduce or a gather is missing, misplaced or done twice, a part is read as the whole
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/tiny_model.h"
#include "verify_judge.h"

static void compile(struct program *program, const char *model, int early)
{
    static struct model_spec spec;
    struct compile_train options;
    struct err err;

    spec = tiny_spec(model);
    options = tiny_compile(&spec, 2);
    options.gradients.early = early;
    if (compile_train(program, &options, &err) < 0)
        fail_msg("%s", err.text);
}

static int find_op(const struct program *p, int *function, enum op_kind kind)
{
    for (*function = 0; *function < p->n_functions; (*function)++)
        for (int i = 0; i < p->functions[*function].n_ops; i++)
            if (p->functions[*function].ops[i].kind == kind)
                return i;
    fail_msg("there is no %s", op_info(kind)->name);
    return -1;
}

static void remove_op(struct program *p, int function, int index)
{
    struct function *f = &p->functions[function];

    f->n_ops--;
    memmove(f->ops + index, f->ops + index + 1, sizeof *f->ops * (size_t)(f->n_ops - index));
}

static void missing_reduce(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) {
        struct program p;
        int function;

        compile(&p, "gpt2", early);
        int index = find_op(&p, &function, OP_REDUCE_SCATTER);
        remove_op(&p, function, index);
        if (early)
            REFUSED(&p, "micro-batch 1", ".grad",
                    "is overwritten before its sum over ranks is started");
        else
            REFUSED(&p, "all_gather", "bucket.", "is read before it is written");
        program_release(&p);
    }
}

/* Zero 2: what shares a staging cell is written there while another's sums still wait for their
 * reduce. */
static void staging_with_two_buckets(void **state)
{
    static struct model_spec spec;
    struct compile_train options;
    struct program p;
    struct err err;
    int function;

    (void)state;
    spec = tiny_spec("llama");
    options = tiny_compile(&spec, 2);
    options.gradients.zero = 2;
    options.gradients.early = 1;
    if (compile_train(&p, &options, &err) < 0)
        fail_msg("%s", err.text);
    check_accepted(&p);
    /* The first reduce of the backward moves behind all else that its function does. */
    int index = find_op(&p, &function, OP_REDUCE_SCATTER);
    while (strcmp(p.functions[function].name, "backward 0") != 0) {
        for (index = 0, function++; index < p.functions[function].n_ops; index++)
            if (p.functions[function].ops[index].kind == OP_REDUCE_SCATTER)
                break;
    }
    struct function *f = &p.functions[function];
    struct op reduce = f->ops[index];
    memmove(f->ops + index, f->ops + index + 1, sizeof *f->ops * (size_t)(f->n_ops - index - 1));
    f->ops[f->n_ops - 1] = reduce;
    REFUSED(&p, "backward 0", ".grad", "is overwritten before its sum over ranks is started");
    program_release(&p);
}

static void missing_gather(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) {
        struct program p;
        int function;

        compile(&p, "llama", early);
        int index = find_op(&p, &function, OP_ALL_GATHER);
        remove_op(&p, function, index);
        REFUSED(&p, "update: sumsq", ".grad", "is read as whole while sums over ranks are owed");
        program_release(&p);
    }
}

static void compile_zero_one(struct program *program, const char *model)
{
    static struct model_spec spec;
    struct compile_train options;
    struct err err;

    spec = tiny_spec(model);
    options = tiny_compile(&spec, 2);
    options.gradients.zero = 1;
    if (compile_train(program, &options, &err) < 0)
        fail_msg("%s", err.text);
}

/* Weights of which a rank has updated its own part alone, read as if they were whole. */
static void missing_gather_of_weights(void **state)
{
    static const char *const wanted = "is read as whole before its shards were gathered";

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct program p;

        compile_zero_one(&p, i == 2 ? "gpt2" : "llama");
        struct entry *step = &p.entries[ENTRY_STEP];
        int gather = step->actions[0].function;
        check_accepted(&p);
        if (i == 0) {
            /* One bucket's. */
            remove_op(&p, gather, p.functions[gather].n_ops / 2);
            REFUSED(&p, "forward 0", "weight", wanted);
        } else if (i == 1) {
            p.entries[ENTRY_GATHER].n_actions = 0;
            REFUSED(&p, "evaluate 0: embed", "embedding.weight", wanted);
        } else {
            step->actions[0].function = step->actions[step->n_actions - 1].function;
            step->actions[step->n_actions - 1].function = (int16_t)gather;
            assert_int_equal(verify(&p, &(struct err){ 0 }), -1);
        }
        program_release(&p);
    }
}

/* What a rank changes in its own part after the gather makes the others' copies stale. */
static void updated_after_its_gather(void **state)
{
    struct program p;

    (void)state;
    compile_zero_one(&p, "gpt2");
    program_emit(&p, p.entries[ENTRY_STEP].actions[0].function,
                 &(struct op){ .kind = OP_ACCUMULATE,
                               .in = { p.buckets[0].moment1 },
                               .out = { p.buckets[0].weight_shard },
                               .first = FIRST_NEVER,
                               .layer = -1 });
    REFUSED(&p, "forward 0", "is read as whole before its shards were gathered");
    program_release(&p);
}

static void wrong_local_shard(void **state)
{
    struct program p;

    (void)state;
    compile_zero_one(&p, "llama");
    int own = p.buckets[0].weight_shard;
    p.values[own].spread[AXIS_DP] = SPREAD_SAME;
    REFUSED(&p, "weights.0:shard", "is not a rank's own part over dp");
    p.values[own].spread[AXIS_DP] = SPREAD_COLS;
    p.values[own].cols /= 2;
    REFUSED(&p, "weights.0:shard", "is not a rank's own part over dp");
    /* Of some of the weights: others would never be updated. */
    p.values[own].stride = p.values[own].cols;
    REFUSED(&p, "weights.0:shard", "is not a rank's own part over dp");
    program_release(&p);
}

/* Nobody else has a rank's shard of gradients: what adds it to something whole is refused. */
static void shard_read_as_whole(void **state)
{
    struct program p;
    int function;

    (void)state;
    compile_zero_one(&p, "llama");
    int index = find_op(&p, &function, OP_GRADIENT_NORM);
    struct op *norm = &p.functions[function].ops[index];
    p.values[norm->in[0]].spread[AXIS_DP] = SPREAD_COLS;
    REFUSED(&p, "update");
    program_release(&p);
}

/* The sum is there for the one bucket, and read from the other before its gather. */
static void sum_read_before_its_gather(void **state)
{
    struct program p;
    int function;

    (void)state;
    compile(&p, "llama", 1);
    int index = find_op(&p, &function, OP_ALL_GATHER);
    struct op gather = p.functions[function].ops[index];
    remove_op(&p, function, index);
    program_emit(&p, function, &gather);
    REFUSED(&p, "update: sumsq", ".grad", "is read as whole while sums over ranks are owed");
    program_release(&p);
}

/* A reduce in every micro-batch of what adds micro-batches up would count them twice. */
static void summed_twice(void **state)
{
    struct program p;

    (void)state;
    compile(&p, "llama", 1);
    for (int f = 0; f < p.n_functions; f++)
        for (int i = 0; i < p.functions[f].n_ops; i++)
            if (p.functions[f].ops[i].kind == OP_LINEAR_DW)
                p.functions[f].ops[i].first = FIRST_MICRO_BATCH;
    REFUSED(&p, "linear_dw", ".grad", "is added to after its sum over ranks was begun");
    program_release(&p);
}

static void partial_read_as_same(void **state)
{
    struct program p;
    int function;

    (void)state;
    compile(&p, "llama", 0);
    int index = find_op(&p, &function, OP_SUMSQ);
    struct op *op = &p.functions[function].ops[index];
    p.values[op->in[0]].spread[AXIS_DP] = SPREAD_PARTIAL;
    REFUSED(&p, "update", "over dp", "sumsq: x is partial");
    program_release(&p);
}

/* The loss of this rank alone in place of all ranks'. */
static void host_reads_partial_sum(void **state)
{
    struct program p;

    (void)state;
    compile(&p, "llama", 0);
    p.ports.loss_total = p.ports.loss;
    REFUSED(&p, "loss is partial over dp where the host reads it");
    program_release(&p);
    compile(&p, "llama", 0);
    p.ports.eval_total = p.ports.eval_loss;
    REFUSED(&p, "eval_loss is partial over dp where the host reads it");
    program_release(&p);
}

static void spread_that_no_op_gives(void **state)
{
    struct program p;
    int function;

    (void)state;
    compile(&p, "llama", 0);
    int index = find_op(&p, &function, OP_SWIGLU_GRAD);
    p.values[p.functions[function].ops[index].out[0]].spread[AXIS_DP] = SPREAD_SAME;
    REFUSED(&p, "backward 0", "swiglu_grad", "does not have the spread its op gives");
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(staging_with_two_buckets),
        cmocka_unit_test(missing_reduce),
        cmocka_unit_test(missing_gather),
        cmocka_unit_test(missing_gather_of_weights),
        cmocka_unit_test(updated_after_its_gather),
        cmocka_unit_test(wrong_local_shard),
        cmocka_unit_test(shard_read_as_whole),
        cmocka_unit_test(sum_read_before_its_gather),
        cmocka_unit_test(summed_twice),
        cmocka_unit_test(partial_read_as_same),
        cmocka_unit_test(host_reads_partial_sum),
        cmocka_unit_test(spread_that_no_op_gives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
